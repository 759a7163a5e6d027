"""`FunctionCall`: a call that the user made, before it is decided what is called.

`function_hooks` makes it and `twins` decides. Nothing is decided here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from amp.integration.runtime.twin_making import MadeTwin


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a function by the user, before it is decided which function runs.

    Attributes:
      run: takes the name of the original or of the twin, calls that function with the
        user's arguments, and returns its outputs.
      record: the same for a function that runs once; takes how many outputs it has
        more than the original, too.
      starts: takes a name, the error that its call raised, and how many outputs it has
        more. Returns whether TensorFlow can start that function (place its nodes and
        make their kernels) without running any of it. If it can, the failed call may
        have run in part.
      inputs: the user's arguments.
      replaced: the same call with other arguments.
    """

    run: Callable[[bytes], Any]
    record: Callable[[bytes, int], Any]
    starts: Callable[[bytes, tf.errors.OpError, int], bool]
    inputs: Sequence[Any]
    replaced: Callable[[Sequence[Any]], FunctionCall]

    @property
    def work(self) -> float:
        """How many elements the arguments have; batches may differ in size."""
        return float(sum(tensor.shape.num_elements() for tensor in self.inputs))

    def has_begun(
        self,
        which: bytes,
        error: tf.errors.OpError,
        twin: MadeTwin | None,
        more: int = 0,
    ) -> bool:
        """Whether a function that failed may have changed state before it did.

        A function that only computes changes none. One that XLA compiles as a whole
        writes its variables only after all of it has succeeded. For any other, the
        message of the error does not tell, so TensorFlow is asked whether it can start:
        if it can, it has probably run in part.

        Args:
          which: the function.
          error: what its call raised.
          twin: of the same original; None if it is gone.
          more: how many outputs the function has more than the original.
        """
        repeatable = twin is not None and twin.repeatable
        return not repeatable and self.starts(which, error, more)
