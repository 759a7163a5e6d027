"""Finds the cheapest assignment of two types to nodes exactly, by a minimum cut.

Knows numbers and sets only: no op, no shape, no device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

# Capacities are whole numbers of at most 32 bits in SciPy's solver; all finite ones
# together stay below this, so that no flow overflows and infinity can be told apart.
_TOTAL = 2**30
_INFINITE = 2**31 - 1

V = TypeVar("V", bound=Hashable)  # a variable of the cut


# A cast in branches has to be cheaper by this part, which covers how 1/n is rounded.
_LESS = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Branch(Generic[V]):
    """A branch that a tensor is passed to, whose readers may have a cast in the branch.

    Attributes:
      name: the caller's name for the tensor in the branch.
      share: the price of a cast in it, as a part of a cast where the tensor is made.
      readers: the variables of the nodes in it that read the tensor.
      branches: the branches in it that the tensor is passed on to.
    """

    name: Any
    share: float
    readers: Sequence[V]
    branches: Sequence[Branch[V]] = ()

    def casts(self, made_low: bool, low: Set[V]) -> tuple[float, Sequence[Any]]:
        """The cheapest casts for its readers: their price, and the branches with one.

        One cast here serves all that is inside; otherwise each branch inside whose
        readers need one has its own.

        Args:
          made_low: whether the tensor is 16-bit.
          low: the 16-bit variables.
        """
        here = (self.share, (self.name,))
        if any((reader in low) != made_low for reader in self.readers):
            return here
        inside = [branch.casts(made_low, low) for branch in self.branches]
        share = sum(part for part, _ in inside)
        if share >= self.share * (1 - _LESS):
            return here
        return share, [name for _, names in inside for name in names]


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor(Generic[V]):
    """A tensor, which costs a cast if a reader needs another type than its producer's.

    Attributes:
      producer: the variable of the node that makes it, None if it always is float32 (an
        argument, a variable).
      readers: the variables of the nodes that read it, those in `branches` left out.
      cast: seconds of the cast to float32, which all readers share.
      down: seconds of the cast to 16 bits (0 for a constant).
      branches: the branches that read it, each with a cast of its own where these take
        less time together.
    """

    producer: V | None
    readers: Sequence[V]
    cast: float
    down: float
    branches: Sequence[Branch[V]] = ()

    @property
    def reads(self) -> Branch[V]:
        """All that reads it, in the form of a branch that always runs."""
        return Branch(None, 1.0, self.readers, self.branches)


def solve(
    times: Mapping[V, tuple[float, float]],
    fixed_low: Set[V],
    tensors: Sequence[Tensor[V]],
    ties_low: Set[V] = frozenset(),
) -> frozenset[V]:
    """Returns the variables to be 16-bit so that the total time is smallest.

    It minimises the sum of each variable's time in its type plus, for each tensor, one
    cast if the type of its producer and of any reader differ (or one in each branch
    that needs it, if that is cheaper). That is a minimum s-t cut with s the 16-bit
    side: the edge s -> v has the seconds that v gains in 16 bits as its capacity,
    v -> t the seconds that it loses; each tensor has one auxiliary vertex per direction
    and one for each branch behind it, so that a cast counts once however many readers
    share it. Among equal cuts the one with the fewest 16-bit variables is taken, so a
    tie stays float32 (to within `rounding`). But as many of `ties_low` are 16-bit as
    may be at the same price, and what that takes.

    Args:
      times: seconds of each variable in (float32, 16 bits).
      fixed_low: variables that are 16-bit in any case.
      tensors: every tensor that one of these variables makes or reads.
      ties_low: variables that are 16-bit where both types come to the same price.
    """
    if not times:
        return frozenset()
    builder = _Network(times, fixed_low)
    for tensor in tensors:
        builder.add(tensor)
    return builder.cut(ties_low)


def total(
    times: Mapping[V, tuple[float, float]],
    tensors: Sequence[Tensor[V]],
    low: Set[V],
) -> float:
    """The total seconds of an assignment, which `solve` minimises.

    Args:
      times, tensors: as in `solve`.
      low: the 16-bit variables, `fixed_low` included.
    """
    seconds = sum(time[name in low] for name, time in times.items())
    for tensor in tensors:
        made_low = tensor.producer in low
        share, _ = tensor.reads.casts(made_low, low)
        seconds += share * (tensor.cast if made_low else tensor.down)
    return seconds


def rounding(
    times: Mapping[V, tuple[float, float]], tensors: Sequence[Tensor[V]]
) -> float:
    """The most seconds by which the result of `solve` may exceed the optimum.

    `solve` rounds every capacity to a whole number of units, an error of half a unit at
    most, in the cost of the cut found and in that of the optimum.
    """
    total = math.fsum(abs(high - low) for high, low in times.values())
    shares = [_shares(tensor.reads) for tensor in tensors]
    total += math.fsum(
        sum(one) * (tensor.cast + tensor.down)
        for one, tensor in zip(shares, tensors, strict=True)
    )
    count = len(times) + 2 * sum(map(len, shares))
    return count / _units(total) if total else 0.0


def _shares(branch: Branch[V]) -> list[float]:
    """The shares of a branch and of all inside it."""
    return [branch.share, *(s for inner in branch.branches for s in _shares(inner))]


def _units(total: float) -> float:
    """Units per second; a power of two, so that scaling itself does not round."""
    return float(2.0 ** math.floor(math.log2(_TOTAL / total)))


class _Casting(NamedTuple):
    """One direction of a tensor's casts.

    Attributes:
      producer: the vertex of what makes the tensor.
      seconds: of one cast where the tensor is made.
      up: whether it is a cast to float32.
    """

    producer: int
    seconds: float
    up: bool


class _Network(Generic[V]):
    """The flow network: vertex 0 is the source (16 bits), 1 the sink (float32)."""

    def __init__(
        self, times: Mapping[V, tuple[float, float]], fixed_low: Set[V]
    ) -> None:
        self._names = list(times)
        self._vertex = {name: index + 2 for index, name in enumerate(self._names)}
        self._vertex.update((name, 0) for name in fixed_low)
        self._count = len(self._names) + 2
        self._from: list[int] = []
        self._to: list[int] = []
        self._capacity: list[float] = []
        for name, (high, low) in times.items():
            vertex = self._vertex[name]
            if high > low:
                self._edge(0, vertex, high - low)
            elif low > high:
                self._edge(vertex, 1, low - high)

    def _edge(self, tail: int, head: int, capacity: float) -> None:
        if tail != head:
            self._from.append(tail)
            self._to.append(head)
            self._capacity.append(capacity)

    def add(self, tensor: Tensor[V]) -> None:
        producer = (
            1 if tensor.producer is None else self._vertex.get(tensor.producer, 1)
        )
        if producer != 1 and tensor.cast > 0:  # made in 16 bits, read in float32
            self._shared(producer, tensor.reads, _Casting(producer, tensor.cast, True))
        if producer != 0 and tensor.down > 0:  # made in float32, read in 16 bits
            self._shared(producer, tensor.reads, _Casting(producer, tensor.down, False))

    def _shared(self, above: int, reads: Branch[V], casting: _Casting) -> None:
        """The vertex of a cast for some readers, behind the vertex of one for more."""
        never = {casting.producer, 0 if casting.up else 1}
        readers = {self._vertex.get(name, 1) for name in reads.readers} - never
        if not readers and not reads.branches:
            return
        if len(readers) == 1 and not reads.branches:  # no sharing to model
            (middle,) = readers
        else:
            middle = self._count
            self._count += 1
            for reader in readers:
                ends = (middle, reader) if casting.up else (reader, middle)
                self._edge(*ends, np.inf)
        for branch in reads.branches:
            self._shared(middle, branch, casting)
        ends = (above, middle) if casting.up else (middle, above)
        self._edge(*ends, casting.seconds * reads.share)

    def cut(self, ties_low: Set[V]) -> frozenset[V]:
        capacity = np.asarray(self._capacity, np.float64)
        finite = np.isfinite(capacity)
        total = float(capacity[finite].sum())
        if total == 0.0:  # whatever is chosen
            return frozenset(ties_low)
        whole = np.full(capacity.shape, _INFINITE, np.int64)
        whole[finite] = np.rint(capacity[finite] * _units(total))
        shape = (self._count, self._count)
        ends = (np.asarray(self._from), np.asarray(self._to))
        graph = csr_array((whole, ends), shape=shape)  # parallel edges add up
        graph.data = np.minimum(graph.data, _INFINITE)
        graph = csr_array(graph, dtype=np.int32)
        flow = maximum_flow(graph, 0, 1, method="dinic").flow
        residual = csr_array(graph.astype(np.int64) - flow.astype(np.int64))
        residual.data = (residual.data > 0).astype(np.int8)
        residual.eliminate_zeros()
        reached = _from(residual, 0)
        tied = {self._vertex[name] for name in ties_low}.difference(reached)
        if tied:
            tied.difference_update(_from(csr_array(residual.T), 1))
            reached = _from(residual + self._edges_to(tied), 0)
        return frozenset(
            self._names[v - 2] for v in reached if 2 <= v < len(self._names) + 2
        )

    def _edges_to(self, vertices: Set[int]) -> Any:
        """Edges from the source: with these vertices, all behind them are 16-bit."""
        ends = ([0] * len(vertices), sorted(vertices))
        ones = np.ones(len(vertices), np.int8)
        return csr_array((ones, ends), shape=(self._count, self._count))


def _from(residual: Any, vertex: int) -> list[int]:
    """The vertices that a vertex leads to along edges with capacity left, and itself.

    A set of vertices that the source is in, that no such edge leaves, and that the sink
    is not in, is a smallest cut: all that the source leads to, or that further vertices
    lead to which do not lead to the sink.
    """
    found = breadth_first_order(residual, vertex, return_predecessors=False)
    return [int(number) for number in found]
