"""`outward`: a graph and those around it.

The graph of a function, branch or loop body lies within the one that was being built as
it was traced. What is looked for in them is not known here. Public TensorFlow only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def outward(graph: Any) -> Iterator[Any]:
    """Yields a graph, then those around it, the innermost first; of None nothing."""
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)
