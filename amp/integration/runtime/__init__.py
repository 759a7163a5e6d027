"""Functions as TensorFlow's eager runtime has them: read, made, called, inferred.

No plan may be chosen here, and nothing races.
Before it: `measuring`. After it: `racing`, `observing`, `functions`, `sessions`.
"""
