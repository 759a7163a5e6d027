"""A step in float32 with the hooks for gradients and optimizers, and one past them.

Used by `drills`, which demands that hooks change nothing of a gradient or an update; no
step is taken here.
"""

from __future__ import annotations

import dataclasses
from unittest import mock

import keras
import tensorflow as tf

import amp
from amp.integration import wrapping
from convergence import terms
from convergence.steps import Scope, Step
from convergence.task import Task

GRADIENT = "GradientTape.gradient"
UPDATE = "BaseOptimizer.apply"


def step(task: Task) -> Step:
    """The step of a task's first stage, in float32, as Keras alone would take it.

    It has the variables of any other step of the same task.
    """
    first = dataclasses.replace(terms.added(task), stages=task.stages[:1])
    optimizer = keras.optimizers.Optimizer  # it inherits the method that has the hook
    with (
        mock.patch.object(optimizer, "apply", wrapping.original(UPDATE)),
        mock.patch.object(tf.GradientTape, "gradient", wrapping.original(GRADIENT)),
    ):
        return Step(first, None)


def kept(task: Task, policy: amp.Policy, planted: Scope) -> Step:
    """The same with hooks, in a mixed scope in which all stays float32."""
    first = dataclasses.replace(terms.added(task), stages=task.stages[:1])
    return Step(first, dataclasses.replace(policy, keep=("*",)), planted)
