"""Sessions of `tf.compat.v1`: a twin of the user's graph, and runs mapped onto it.

No graph algorithm may enter.
Before it: `functions`. After it: `distributed`, `training`.
"""
