"""`tf.function` and everything that eager Python runs: its twins, and who runs when.

No graph algorithm, no session and no gradient may enter.
Before it: `observing`. After it: `sessions`, whose twins are made by the same policy.
"""
