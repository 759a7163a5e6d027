"""`tf.function` and everything that eager Python runs: twins, and their race.

No graph algorithm, no session and no gradient may enter.
Before it: `measuring`. After it: `sessions`, whose twins are made by the same policy.
"""
