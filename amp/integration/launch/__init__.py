"""How a job comes under `AMP_ENABLE=1` or `amp run` without a changed line.

Nothing of TensorFlow is imported before the job does.
Before it: `api`. After it: `amp.cli`.
"""
