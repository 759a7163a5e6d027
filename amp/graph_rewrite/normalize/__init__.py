"""Prepares float32 graphs: calls inlined, loop invariants hoisted, reads merged.

No types and no costs may enter; what is computed stays the same to the last bit.
Before it: `graph`, `ops`. After it: `candidates`, which then sees one flat function.
"""
