"""A step in float32 past the package's hook for optimizers.

Used by `drills`, which demands that the hook changes nothing of an update; no step is
taken here.
"""

from __future__ import annotations

import dataclasses
from unittest import mock

import keras

from amp.integration import wrapping
from convergence import terms
from convergence.steps import Step
from convergence.task import Task

HOOK = "BaseOptimizer.apply"


def step(task: Task) -> Step:
    """The step of a task's first stage, in float32, as Keras alone would take it.

    It has the variables of any other step of the same task.
    """
    first = dataclasses.replace(terms.added(task), stages=task.stages[:1])
    owner = keras.optimizers.Optimizer  # which inherits the method that has the hook
    with mock.patch.object(owner, "apply", wrapping.original(HOOK)):
        return Step(first, None)
