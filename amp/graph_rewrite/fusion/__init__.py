"""Casts and their elementwise neighbours into loops that XLA compiles.

No precision is chosen; what is computed stays the same.
Before it: `apply`. After it: nothing but the check by `verify` and the report.
"""
