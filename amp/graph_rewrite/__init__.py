"""The graph rewriter: takes a GraphDef or functions and returns 16-bit versions.

It first decides (a `Plan` for each function) and then builds the new graph. No
TensorFlow session, device query or hook may enter; those live in `amp.integration`.
"""
