"""From float32 to float32: calls inlined, invariants hoisted, variable reads shared.

No types and no costs may enter; what is computed stays the same to the last bit.
Before it: `graph`, `ops`. After it: `candidates`, which then sees one flat function.
"""
