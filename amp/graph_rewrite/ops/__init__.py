"""Every fact about an op type, each in the op's own row, with its reason and source.

No graph is walked and nothing is decided here; rules elsewhere ask the rows.
Before it: `graph`, for shapes. After it: every room that asks what an op is.
"""
