"""Writes docs/whitelist.md: the op table as a page that a user can read.

    python docs/whitelist.py

Run it after a row has changed; a test compares the page with the table. Nothing else
may be written here.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator

from amp.graph_rewrite.ops.op_table import FAMILIES, SOURCES, Role, Row

PAGE = pathlib.Path(__file__).with_suffix(".md")
HEAD = """\
# The white-list

What the rewrite may do with each op. This page is written by
`python docs/whitelist.py` from the rows in `amp/graph_rewrite/ops`;
`Policy(allow=...)` and `Policy(deny=...)` change it for a job. An op that is not listed
stays float32.

* **compute**: products and convolutions, where 16-bit arithmetic pays; mixed
  precision starts here.
* **follow**: arithmetic that may be 16-bit beside such an op.
* **move**: no arithmetic; what is moved may be 16-bit.
* **keep**: always float32.

"Float32 ports" stay float32 even where the op is 16-bit. "Adds up in" names the 16-bit
types in which a CPU kernel of TensorFlow may add up, so that long sums stay float32
there. "Fuses" says whether XLA may compile the op into one loop with its neighbours.
"""
COLUMNS = (
    "Ops",
    "Role",
    "Why",
    "Source",
    "Float32 ports",
    "Hazards",
    "Adds up in",
    "Fuses",
)


def page() -> str:
    """The page as it is to be."""
    parts = [HEAD]
    for family, groups in FAMILIES.items():
        listed = [group for group in groups if group[0].role is not None]
        if listed:
            parts.append(f"## {family}\n\n" + "\n".join(table(listed)) + "\n")
    sources = [f"* `{key}`: {text}" for key, text in SOURCES.items()]
    parts.append("## Sources\n\n" + "\n".join(sources) + "\n")
    return "\n".join(parts)


def table(groups: Iterable[tuple[Row, ...]]) -> Iterator[str]:
    """The lines of a table: one for each group of ops of which the same is known."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{' --- |' * len(COLUMNS)}"
    for group in groups:
        ops = ", ".join(f"`{row.op}`" for row in group)
        yield f"| {' | '.join((ops, *cells(group[0])))} |"


def cells(row: Row) -> tuple[str, ...]:
    """What a group's line says besides the names of its ops."""
    return (
        row.role.value if isinstance(row.role, Role) else "",
        row.why,
        f"`{row.source}`",
        ", ".join(row.float32_ports),
        "; ".join(hazards(row)),
        "; ".join(adds_up_low(row)),
        "yes" if row.fusible else "",
    )


def adds_up_low(row: Row) -> Iterator[str]:
    """The 16-bit types in which kernels add up: those of CPUs, then those of GPUs."""
    if row.accumulates_low:
        yield ", ".join(row.accumulates_low)
    if row.gpu_accumulates_low:
        yield f"GPU: {', '.join(row.gpu_accumulates_low)}"


def hazards(row: Row) -> Iterator[str]:
    """What makes a value of an op too large, too small or too coarse for 16 bits."""
    if row.singular:
        ports = " and ".join(map(str, row.singular))
        yield f"singular at 0 of input {ports}"
    if row.sums:
        yield "sums many elements"
    if row.multiplies:
        yield "its products leave the range"
    if row.bounded:
        yield "none: its values are bounded"


if __name__ == "__main__":
    PAGE.write_text(page())
