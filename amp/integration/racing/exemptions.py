"""For what reasons a policy has no race, and whether a job is to repeat bit for bit.

Used by functions and sessions, and by the check of accuracy. Only the policy is asked,
and how the process was set up: never a function.
"""

from __future__ import annotations

from tensorflow.python.framework import config as config_lib

from amp.integration.runtime import clusters
from amp.policy import Policy


def repeats(policy: Policy) -> bool:
    """Whether runs are to be the same bit for bit: no plan may depend on timing."""
    if policy.trial == "auto":
        return bool(config_lib.is_op_determinism_enabled())
    return policy.trial is False


def why_not(policy: Policy) -> str:
    """Returns the reason why a function gets no race, "" if it gets one.

    No prediction is so clear that it needs none: a step predicted at 1.48, nearly all
    of it from measured times, ran at 0.90 to 1.08.

    Args:
      policy: with every "auto" settled.
    """
    if policy.trial is False:
        return "trial=False, AMP_TRIAL=0"
    if policy.emulate:
        return "emulation is not meant to be faster"
    if policy.trial is True:
        return ""
    if policy.assignment == "all":
        return "assignment='all' is not chosen for speed"
    if config_lib.is_op_determinism_enabled():
        return "operations are to be deterministic"
    if clusters.is_in_one():
        return "several workers take a step together, and none is timed alone"
    return ""
