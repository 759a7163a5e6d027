"""The race between a step's plans: its rules, its budget and its statistics.

No function, session or device may enter: who calls says what was called and how long it
took. Before it: `runtime`. After it: `functions` and `sessions`, which hold races.
"""
