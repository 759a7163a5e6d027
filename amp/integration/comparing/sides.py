"""`Sides`: a function as planned in float32 and as its twin, for one call of it.

Used by `compare` and `suggest`. What the figures mean is not known here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from amp.graph_rewrite import rewrite as rewrite_lib
from amp.graph_rewrite.assign.nominee import CUT, Nominee
from amp.graph_rewrite.candidates.context import FORMATS, Format
from amp.graph_rewrite.comparison import noise, observed, rounding_bound, tensor_errors
from amp.graph_rewrite.comparison.comparison import ComparedTensor
from amp.graph_rewrite.comparison.pair import Pair, Watched
from amp.graph_rewrite.comparison.tensor_errors import Array
from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.rewrite import Prepared
from amp.integration.comparing.paired_runs import PairedRuns
from amp.integration.comparing.traced import State, Traced
from amp.integration.measuring import job_timer
from amp.integration.runtime import definitions, shape_inference
from amp.policy import Policy

_SMALLEST32 = 2.0**-126  # the smallest normal number of float32


class Sides:
    """The two sides of a comparison.

    Args:
      call: the function with the arguments of a call.

    Attributes:
      call: the same, with the policy that is compared.
      state: the variables that the function may change.
      prepared: the function, analyzed.
      format: the 16-bit type.
      pair: the two sides.
      noise: the tensors by which nothing is judged (see `comparison.noise`).
      forced: whether everything is converted, as the cheapest plan converts nothing.
    """

    def __init__(self, call: Traced) -> None:
        self.call, self.state = call, State(call.inputs)
        self.format: Format = FORMATS[call.policy.dtype]
        self.prepared = self.prepare(call.policy)
        self.forced = not any(self.prepared.foreseen(CUT).low.values())
        if self.forced:
            policy = Policy.make(call.policy, assignment="all")
            settled = dataclasses.replace(call.settled, policy=policy)
            self.call = dataclasses.replace(call, settled=settled)
            self.prepared = self.prepare(policy)
        suffix = definitions.new_suffix()
        self._plain = observed.flat(self.prepared.in_float32(suffix))
        self.pair = self.planned(self.prepared, CUT)
        self.noise: frozenset[ir.Edge] = frozenset()

    def prepare(self, policy: Policy) -> Prepared:
        """The function, analyzed under a policy that differs from the call's."""
        return rewrite_lib.prepare(
            self.call.module,
            dataclasses.replace(self.call.settled, policy=policy),
            timer=job_timer.stored,
            sizes=shape_inference.at_call(self.call.inputs),
        )

    def planned(self, prepared: Prepared, nominee: Nominee) -> Pair:
        """The function and its twin by one of its plans."""
        args = self._plain.main.args
        variables = frozenset(args[place].name for place in self.state.places)
        twin = observed.flat(prepared.draft(nominee, definitions.new_suffix()))
        return Pair(self._plain, twin, self.format.number, variables)

    def tensors(
        self, pair: Pair, watched: Sequence[Watched], runs: PairedRuns
    ) -> tuple[ComparedTensor, ...]:
        """The figures of some tensors."""
        exact = runs.values(pair.plain, [each.edge for each in watched])
        found = runs.values(pair.twin, [each.twin for each in watched])
        return self.figures(pair, watched, (zip(exact, found, strict=True), {}))

    def figures(
        self,
        pair: Pair,
        watched: Sequence[Watched],
        values: tuple[Iterable[tuple[Array, Array]], Mapping[str, float]],
    ) -> tuple[ComparedTensor, ...]:
        """The figures of tensors from their values.

        Args:
          pair: the function, or one that it calls.
          watched: the tensors.
          values: their values on both sides, and by name the errors that arguments of
            the twin came with.
        """
        bounds = rounding_bound.bounds(pair, self.format.unit, values[1])
        return tuple(
            self._compared(each, one, other, bounds.get(each.twin[0], 0.0))
            for each, (one, other) in zip(watched, values[0], strict=True)
        )

    def _compared(
        self, watched: Watched, exact: Array, found: Array, allowed: float
    ) -> ComparedTensor:
        low = watched.dtype != ir.DTYPE_NAMES[ir.FLOAT]
        smallest = self.format.smallest if low else _SMALLEST32
        figures = tensor_errors.tensor_error(exact, found, smallest)
        return ComparedTensor(
            name=watched.name,
            op=watched.op,
            dtype=watched.dtype,
            role=watched.role,
            # An error below that of a single rounding is no parting.
            allowed=max(allowed, self.format.unit),
            error=figures.error,
            overflowed=figures.overflowed,
            underflowed=figures.underflowed,
            denormal=figures.denormal,
            small_error=figures.small_error,
            largest=figures.largest,
            not_finite=figures.not_finite,
            noise=watched.edge in self.noise,
        )

    def without_noise(
        self,
        tensors: Sequence[ComparedTensor],
        watched: Sequence[Watched],
        runs: PairedRuns,
    ) -> tuple[ComparedTensor, ...]:
        """The figures with noise marked, among those that parted."""
        pairs = zip(tensors, watched, strict=True)
        parted = noise.sums(each for t, each in pairs if t.parted and not t.overflowed)
        names = [each.edge[0] for each in parted]
        totals = noise.with_totals(self.pair.plain, names)
        exact = runs.values(totals, [each.edge for each in parted])
        terms = runs.values(totals, [noise.total(name) for name in names])
        unit = self.format.unit
        found = frozenset(
            each.edge
            for each, one, total in zip(parted, exact, terms, strict=True)
            if noise.is_noise(one, total, unit)
        )
        self.noise = noise.with_readers(found, watched, self.pair.plain.main)
        return tuple(
            dataclasses.replace(tensor, noise=each.edge in self.noise)
            for tensor, each in zip(tensors, watched, strict=True)
        )
