"""The graph rewriter: protobuf in, protobuf out, deciding apart from doing.

No TensorFlow session, device or hook may enter; those live in `amp.integration`.
"""
