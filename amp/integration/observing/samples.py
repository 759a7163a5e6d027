"""`Sample`: what one step let observe, and what is to be learnt from it.

Made by `step_probes` and by `session_stalls`; read later, by whoever asked. No step is
run here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize import step_probes
from amp.graph_rewrite.normalize.step_probes import Gradient, Tensor
from amp.graph_rewrite.ops import op_table
from amp.loss_scaling.advice import Finding

_CAST = "/amp_"  # in the names of the casts that a rewrite adds


def _emulated(tensor: Tensor) -> int | None:
    """The 16-bit type that a tensor is rounded to by a rewrite, None if by none."""
    kind = tensor.edge[0].partition(_CAST)[2]
    return ir.DTYPE_NUMBERS.get(kind.partition("_")[0])


def _unknown(node: str) -> str:
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What one step let observe.

    Attributes:
      function: the name of the function that ran.
      gradients: of the step, in the order in which the program asked for them.
      own: the nodes whose results are 16-bit in the program itself.
      tensors: that were asked whether they are finite; () if exponents were counted.
      observed: a tensor that may still be being computed: for each of `tensors`
        whether it holds a NaN and whether an infinity, or for each of `gradients` what
        `exponents.counted` returns.
      line: gives the user's line that made a node, as "file:line"; "" if that is not
        known.
    """

    function: str
    gradients: tuple[Gradient, ...]
    own: frozenset[str]
    tensors: tuple[Tensor, ...]
    observed: Any
    line: Callable[[str], str] = _unknown

    def counts(self) -> Mapping[str, Any]:
        """The exponents of each gradient by its label; replicas are added up."""
        found: dict[str, Any] = {}
        pairs = zip(self.gradients, np.asarray(self.observed), strict=True)
        for gradient, counts in pairs:
            found[gradient.label] = found.get(gradient.label, 0) + counts
        return found

    def finding(self, number: int) -> Finding | None:
        """The first tensor that was not finite, of the gradients of one scaler."""
        flags = np.asarray(self.observed)
        numbers = {tensor.edge: index for index, tensor in enumerate(self.tensors)}

        def bad(index: int) -> bool:
            return bool(flags[index].any())

        met = []
        for gradient in self.gradients:
            if gradient.label.startswith(f"{number}:"):
                first = step_probes.first_bad(self.tensors, bad, gradient.edge)
                if first is not None:
                    met.append((numbers[gradient.edge], first, gradient.label))
        if not met:
            return None
        # The backward pass comes to the gradients in the order of the graph.
        label = min(met)[2].partition(":")[2]
        first = min((each[1] for each in met), key=self._order)
        return self._told(first, label, "NaN" if flags[first][0] else "infinity")

    def _order(self, index: int) -> tuple[bool, int]:
        return not self.tensors[index].forward, index

    def _told(self, index: int, variable: str, value: str) -> Finding:
        tensor = self.tensors[index]
        near = [tensor, *(self.tensors[each] for each in tensor.sources)]
        low = next((t.type for t in near if t.type != ir.FLOAT), None)
        name, cast, _ = tensor.edge[0].partition(_CAST)
        low = _emulated(tensor) if low is None else low
        sources = [self.tensors[each] for each in tensor.sources] if cast else []
        made = [t for t in sources if t.edge[0] == name] or [tensor]
        port = made[0].edge[1]
        return Finding(
            variable=variable,
            tensor=f"{name}:{port}" if port else name,
            op=made[0].op,
            dtype="" if low is None else ir.DTYPE_NAMES[low],
            forward=tensor.forward,
            value=value,
            is_state=made[0].is_state,
            own=name in self.own,
            readers=self._readers(index, name),
            line=self.line(name),
            rounded=self._rounded(index),
        )

    def _rounded(self, index: int) -> str:
        """The 16-bit type of something that a tensor is computed from, "" if none."""
        waiting, seen = [index], {index}
        while waiting:
            tensor = self.tensors[waiting.pop()]
            low = tensor.type if tensor.type != ir.FLOAT else _emulated(tensor)
            if low is not None:
                return ir.DTYPE_NAMES[low]
            waiting += [each for each in tensor.sources if each not in seen]
            seen.update(tensor.sources)
        return ""

    def _readers(self, index: int, name: str) -> tuple[str, ...]:
        """The operations that read a tensor, by the user's names.

        Behind those that only move it, what reads it there too. Those of the backward
        pass are last: a product's gradient reads what the product read.

        Args:
          index: of the tensor.
          name: of what makes it; its casts, by whose readers it is read, have that too.
        """
        found: dict[str, bool] = {}  # whether it is of the forward pass
        same = {index}
        for place, tensor in enumerate(self.tensors):
            if not same.isdisjoint(tensor.sources):
                reader = tensor.edge[0].partition(_CAST)[0]
                if reader == name:
                    same.add(place)
                else:
                    found.setdefault(reader, tensor.forward)
                    row = op_table.TABLE.get(tensor.op)
                    if row is not None and row.role is op_table.Role.MOVE:
                        same.add(place)
        return tuple(sorted(found, key=lambda reader: not found[reader]))
