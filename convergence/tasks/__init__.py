"""One task a file: how a family's model, data, loss and metric go together.

Each has `load(size, directory) -> data`, `make(data, size) -> Task`, and `trivial(data,
size) -> Metric`: what the row's trivial model gets on the same data by the same metric.
No mixed precision here: a task does not know which setting it is trained in.
"""
