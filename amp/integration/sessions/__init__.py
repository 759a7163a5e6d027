"""Sessions of `tf.compat.v1`: a rewritten graph (twin), which they run instead.

No graph algorithm is here.
Before it: `functions`. After it: `distributed`, `training`.
"""
