"""The op table: the rows of all families by op name, and the white-list among them.

Facts only: no TensorFlow, no graph, no device, no decision that needs more than a row.
Algorithms do not compare op names: they call `facts` for the row of an op.

The white-list are the ops with a role; no other op is converted. `Cast`, `Const`,
`ReadVariableOp` and the random ops have none on purpose: the rewriter adds the first,
rounds the second, and may not choose the type of the others. To add an op, write its
row in the module of its family, and run `python docs/whitelist.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from amp.errors import AmpError
from amp.graph_rewrite.ops import elementwise, moves, products, reductions, structure
from amp.graph_rewrite.ops.accumulation import Terms
from amp.graph_rewrite.ops.row import SOURCES, WORK, Kind, Role, Row, Unmoved

__all__ = [
    "FAMILIES",
    "ROWS",
    "SOURCES",
    "TABLE",
    "WORK",
    "Kind",
    "Role",
    "Row",
    "Terms",
    "Unmoved",
    "by_name",
    "facts",
]

FAMILIES: Mapping[str, Iterable[tuple[Row, ...]]] = MappingProxyType(
    {
        "Products": products.PRODUCTS,
        "Elementwise": elementwise.ELEMENTWISE,
        "Activations": elementwise.ACTIVATIONS,
        "Normalisation": reductions.NORMALISATION,
        "Pooling and resizing": reductions.POOLING,
        "Reductions and scatters": reductions.REDUCTIONS,
        "Moves": moves.MOVES,
        "Tensor lists": moves.LISTS,
        "Arrays and stacks of TensorFlow 1": moves.ARRAYS,
        "Special cases": structure.EXCLUDED,
        "Structure": structure.STRUCTURE,
    }
)


def by_name(rows: Iterable[Row]) -> Mapping[str, Row]:
    """The rows by op name, read-only.

    Raises:
      AmpError: two rows have the same op.
    """
    table: dict[str, Row] = {}
    for row in rows:
        if row.op in table:
            raise AmpError(
                f"{row.op} has two rows",
                where="op_table",
                allowed="one row an op",
                remedy="delete one of the rows",
            )
        table[row.op] = row
    return MappingProxyType(table)


_groups = itertools.chain.from_iterable(FAMILIES.values())
ROWS = by_name(itertools.chain.from_iterable(_groups))
TABLE = by_name(row for row in ROWS.values() if row.role is not None)
COMPUTE = frozenset(op for op, row in TABLE.items() if row.role is Role.COMPUTE)

# TensorFlow has about ninety ops that write variables, with names alike, and every
# version adds some, so they are recognised by name instead of by a list.
_WRITERS = ("Assign", "Apply")
_WRITER = Row("", None, "writes a variable", "definition", attrs=(), kind=Kind.WRITE)
_ROW_WRITERS = ("SparseApply", "Scatter")
_ROW_WRITER = dataclasses.replace(_WRITER, why="writes rows", work="scatter")
_UNKNOWN = Row("", None, "not in the table", "definition", attrs=())


@functools.cache
def facts(op: str) -> Row:
    """The row of an op, whether it is on the white-list or not.

    An op without a row gets one that only says whether it writes a variable.
    """
    row = ROWS.get(op)
    if row is not None:
        return row
    name = op.removeprefix("Resource")
    if name.startswith(_ROW_WRITERS):
        return _ROW_WRITER
    return _WRITER if name.startswith(_WRITERS) else _UNKNOWN
