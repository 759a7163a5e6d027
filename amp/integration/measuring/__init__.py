"""The stopwatch, the device's profile, and the times of the job's own operations.

No graph is rewritten and no user's function is called here.
Before it: `hooks`, `fallback`. After it: `runtime`, and all that plans by its times.
"""
