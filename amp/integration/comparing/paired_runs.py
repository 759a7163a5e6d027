"""Runs copies of a function and of its twin on the same inputs and the same state.

Variables are restored after every run, and what the function takes from elsewhere is
recorded in the first one. Which tensors are returned is asked for by the caller; no
array is looked at here.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.eager import execute

from amp.graph_rewrite.comparison import observed
from amp.graph_rewrite.comparison.pair import Pair
from amp.graph_rewrite.comparison.pairing import Taken
from amp.graph_rewrite.comparison.tensor_errors import Array
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.graph.shapes import elements
from amp.integration import as_written
from amp.integration.comparing.traced import State
from amp.integration.runtime import definitions
from amp.loss_scaling import stalls

MOST = 2**28  # elements that one run returns: 1 GiB in float32


class PairedRuns:
    """Runs either side of a pair, any number of times; used as a context.

    Args:
      pair: the function in float32 and its twin.
      inputs: the tensors that both are called with.
      state: what is restored after each run.

    Attributes:
      state: the same.
      taken: what is recorded of the function.
    """

    def __init__(self, pair: Pair, inputs: Sequence[Any], state: State) -> None:
        self._context: Any = context_lib.context()
        self._inputs, self.state = tuple(inputs), state
        self._registered: list[str] = []
        self._numbers = itertools.count()
        self._plain, self.taken = pair.plain, pair.taken()
        self._given: tuple[Any, ...] = ()
        self._quiet = contextlib.ExitStack()

    def __enter__(self) -> PairedRuns:
        """Records what the function takes from elsewhere."""
        tensors = self.taken.tensors
        if tensors:
            name = self._name()
            made = observed.recorder(self._plain, self.taken, name)
            self._given = tuple(self._run(made, self._inputs))
        self._quiet.enter_context(stalls.paused())  # loss scales are tried out
        return self

    def __exit__(self, *error: object) -> None:
        self._given = ()
        self.state.release()
        self._quiet.close()
        definitions.unregister(self._context, self._registered)
        self._registered.clear()

    def values(self, module: ir.Module, edges: Sequence[ir.Edge]) -> Iterator[Array]:
        """The tensors on some edges of a side, as float32, in order.

        Args:
          module: a side of the pair, or another twin of the same function.
          edges: whose tensors to return, in as many runs as their sizes ask for.
        """
        for part in _parts(module.main, edges):
            made = observed.copy(module, self.taken, part, self._name())
            for tensor in self._run(made, (*self._inputs, *self._given)):
                yield array_of(tensor)

    def function(
        self, module: ir.Module, edges: Sequence[ir.Edge], taken: Taken | None = None
    ) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """A function that returns tensors of a side as they are, of any type.

        Args:
          module: a side of the pair, or of a function that it calls.
          edges: whose tensors to return.
          taken: what it takes besides its arguments; nothing by default.
        """
        nothing = Taken((), frozenset(), ())
        made = observed.copy(module, taken or nothing, edges, self._name())
        return lambda inputs: self._run(made, inputs)

    def tensors(self, module: ir.Module, edges: Sequence[ir.Edge]) -> Sequence[Any]:
        """The tensors on some edges of a side as they are, of any type."""
        run = self.function(module, edges, self.taken)
        return run((*self._inputs, *self._given))

    def _name(self) -> str:
        return f"{self._plain.main.name}_compared_{next(self._numbers)}"

    def _run(self, module: ir.Module, inputs: Sequence[Any]) -> Sequence[Any]:
        try:
            outputs: Sequence[Any] = execute.execute(
                self._add(module),
                num_outputs=len(module.main.results),
                inputs=[*inputs],
                attrs=as_written.options(),
                ctx=self._context,
            )
        finally:
            self.state.restore()
        return outputs

    def _add(self, module: ir.Module) -> str:
        """Registers a main function, and of what it calls what TensorFlow lacks."""
        self._registered += definitions.register(self._context, module)
        return module.main.name


def array_of(tensor: Any) -> Array:
    """A tensor of floating numbers as a float32 array."""
    return np.asarray(tf.cast(tensor, tf.float32))


def _parts(graph: ir.Graph, edges: Sequence[ir.Edge]) -> Iterator[Sequence[ir.Edge]]:
    """Edges in groups, each of at most `MOST` elements, or of one edge."""
    part: list[ir.Edge] = []
    size = 0
    for edge in edges:
        more = elements(graph.size(edge))
        if part and size + more > MOST:
            yield part
            part, size = [], 0
        part.append(edge)
        size += more
    if part:
        yield part
