"""Which plan of a step runs: who may race, when, and what of it the next run knows.

No function, session or gradient may enter: who calls makes the plans and calls them.
Before it: `racing`, how a race goes. After it: `functions` and `sessions`.
"""
