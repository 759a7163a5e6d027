"""The intermediate representation of a graph, its protobuf form, op schemas and calls.

No choice of precision, no cost and no fact from the op table may enter.
Before it: nothing of the rewriter. After it: every other folder, which imports it.
"""
