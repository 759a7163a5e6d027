"""The graph, and what TensorFlow itself says of it: IR, protobuf, op schemas, calls.

No choice of precision, no price and no fact of ours about an op may enter.
Before it: nothing of the rewriter. After it: every other room reads graphs through it.
"""
