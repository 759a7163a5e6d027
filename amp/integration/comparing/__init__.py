"""`amp.compare` and `amp compare`: a function and its twin, run on the same inputs.

No plan is changed and no hook lives here.
Before it: `files`, which reads functions and graphs. After it: `amp.cli`.
"""
