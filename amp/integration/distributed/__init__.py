"""Replicas and workers: what they agree on, and how gradients travel between hosts.

No gradient is taken and no loss scale stepped here.
Before it: `sessions`. After it: `training`, which asks whom it has to agree with.
"""
