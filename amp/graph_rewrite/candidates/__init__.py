"""Who may be 16-bit, and for every other node the rule and the cause that keep it.

No price and no choice may enter.
Before it: `normalize`. After it: `cost` prices the candidates.
"""
