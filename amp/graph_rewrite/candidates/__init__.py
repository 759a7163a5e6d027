"""Finds the candidates: nodes that may be 16-bit; for all others, why they may not.

No price and no choice may enter.
Before it: `normalize`. After it: `cost` prices the candidates.
"""
