"""`Started`: a function that was read and is not planned yet, and what it has told.

`first_step` has one for each function and makes its first step. Nothing is called here,
and what is to be told is not decided here.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.element_sources import ElementSource
from amp.graph_rewrite.normalize.wanted import Wanted
from amp.graph_rewrite.rewrite import Begun
from amp.integration.observing.value_copies import Recorded
from amp.integration.runtime import definitions, shape_inference
from amp.integration.runtime.function_call import FunctionCall


@dataclasses.dataclass(frozen=True, slots=True)
class FirstStepResult:
    """What is known of a function when it is planned.

    Attributes:
      begun: as it was read, with its sizes; None if it was not read.
      recorded: what its step in float32 was computed from, if that was recorded.
      too_large: whether that step ran out of memory.
      seconds: that the step took, with all that made it ready; 0 if there was none.
      key: its fingerprint, "" if that was not looked up.
    """

    begun: Begun | None = None
    recorded: Recorded | None = None
    too_large: bool = False
    seconds: float = 0.0
    key: str = ""


@dataclasses.dataclass(slots=True)
class Started:
    """A function that was read, before it is planned.

    Threads may make its first step at the same time. What the first to be done has told
    counts, and what was registered is removed when none is at it any more.

    Attributes:
      begun: as it was read; None once it is being planned.
      waits: whether its first step is still to be made in float32.
      trains: whether it is a training step.
      roots: the tensors whose shapes that step is to tell.
      teller: the function that makes it, b"" where the original does: nothing is told.
      functions: names of what was registered for it.
      wanted: the gradients to compare, None where none are to be.
      sources: the arguments that the function's loops take elements from, as long as
        none was looked at.
      recorded: what they are computed from, once the step was made; may be let go.
      too_large: whether the step ran out of memory.
      seconds: that the step took, once it was made.
      key: as of `FirstStepResult`.
      running: how many threads are making the step.
      lock: held for a few lines, by no finalizer, and not while the step runs.
    """

    begun: Begun | None
    waits: bool = False
    trains: bool = False
    roots: tuple[ir.Edge, ...] = ()
    teller: bytes = b""
    functions: tuple[str, ...] = ()
    wanted: Wanted | None = None
    sources: tuple[ElementSource, ...] = ()
    recorded: Recorded | None = None
    too_large: bool = False
    seconds: float = 0.0
    key: str = ""
    running: int = 0
    lock: Any = dataclasses.field(default_factory=threading.RLock)

    @property
    def taken(self) -> tuple[ir.Edge, ...]:
        """The tensors that the step takes from elsewhere, and that it records."""
        taken = () if self.wanted is None else self.wanted.taken
        return tuple(edge for edge, _ in taken)

    @property
    def more(self) -> int:
        """How many results the teller has that the original has not."""
        return len(self.taken) + len(self.roots)

    def begins(self) -> bool:
        """Whether a call is to be a first step; if so `ends` is called after it."""
        with self.lock:
            self.running += self.waits
            return self.waits

    def ends(self, context: Any) -> None:
        """Is told that a thread has made its first step, or failed in it."""
        with self.lock:
            self.running -= 1
        self._remove_unused(context)

    def looks(self) -> tuple[ElementSource, ...]:
        """The arguments to look at elements of, for the first that asks."""
        with self.lock:
            sources, self.sources = self.sources, ()
        return sources

    def resize(self, begun: Begun, resized: Begun) -> None:
        """Takes other sizes for a function, unless it is being planned by now.

        Args:
          begun: as it was read.
          resized: the same for the sizes of the elements that were looked at.
        """
        with self.lock:
            if self.begun is begun:
                self.begun = resized

    def told(self, call: FunctionCall, more: list[Any], seconds: float) -> bool:
        """Takes what the first step told; what a later one tells counts no more.

        Args:
          call: the call that the user made.
          more: the further results of its teller.
          seconds: that the step took.

        Returns:
          Whether it counts.
        """
        taken, shapes = more[: len(self.taken)], more[len(self.taken) :]
        told = zip(self.roots, shapes, strict=True)
        tensors = {edge: tuple(shape.numpy().tolist()) for edge, shape in told}
        with self.lock:
            if self.begun is None or not self.waits:
                return False
            if self.roots:
                sizes = shape_inference.at_call(call.inputs, tensors)
                self.begun = self.begun.resized(sizes)
            if self.wanted is not None:
                own = self.wanted.own(call.inputs)
                self.recorded = Recorded(self.taken, (*own, *taken))
            self.seconds = seconds
            self.waits = False
            return True

    def told_nothing(self) -> bool:
        """Is told that what a step told cannot be used: it is read anew to be planned.

        Returns:
          False, as `told` where that does not count.
        """
        with self.lock:
            self.begun, self.waits = None, False
        return False

    def planned(self, context: Any) -> FirstStepResult:
        """Gives what is known of it, once: it is being planned."""
        with self.lock:
            told = FirstStepResult(
                self.begun, self.recorded, self.too_large, self.seconds, self.key
            )
            self.begun, self.recorded, self.waits = None, None, False
        self._remove_unused(context)
        return told

    def _remove_unused(self, context: Any) -> None:
        """Removes what was registered, if no thread calls it any more."""
        with self.lock:
            if self.begun is not None or self.running:
                return
            functions, self.functions = self.functions, ()
        definitions.unregister(context, functions)
