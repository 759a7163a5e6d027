"""Makes clusters: casts and elementwise nodes that XLA compiles together as one loop.

No precision is chosen; what is computed stays the same.
Before it: `apply`. After it: nothing but the check by `verify` and the report.
"""
