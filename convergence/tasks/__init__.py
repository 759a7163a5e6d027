"""One task a file: how a family's model, data, loss and metric go together.

Each has `load(size, directory) -> data` and `make(data, size) -> Task`. No mixed
precision here: a task does not know which setting it is trained in.
"""
