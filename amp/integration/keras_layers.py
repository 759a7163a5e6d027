"""Finds the Keras layer that a node belongs to, from its stack trace and its scope.

Used by `source_lines`. Keras is neither imported nor patched: its layers call each
other in methods of known names, and open name scopes. Nothing is noted beforehand.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Where a layer is called: of Keras 3, and of the one before.
_CALLED = ("/keras/src/layers/layer.py", "/keras/src/engine/base_layer.py")
_TAPE = "gradient_tape/"
_NUMBER = re.compile(r"_\d+$")


def classes(frames: Iterable[tuple[str, int, str]]) -> tuple[str, ...]:
    """The classes of the layers inside which a node was built, the model's first.

    Args:
      frames: file, line and function of a stack trace, the outermost first.

    Returns:
      "" stands for a class whose file is not here.
    """
    found: list[str] = []
    known = True
    for file, line, function in frames:
        if function == "__call__" and file.endswith(_CALLED):
            found.append("")
            known = False
        elif function == "call" and not known:
            found[-1] = _class_at(file, line)
            known = True
    return tuple(found)


def _class_at(file: str, line: int) -> str:
    """The class whose method a line is in."""
    spans = [span for span in _classes_in(file) if span[0] <= line <= span[1]]
    return max(spans)[2] if spans else ""


@functools.lru_cache(maxsize=256)
def _classes_in(file: str) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and name of each class in a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return tuple((n.lineno, n.end_lineno or n.lineno, n.name) for n in found)


def described(node: str, of: Sequence[str]) -> str:
    """The layer of a node, as "head (Dense) in net (Functional)"; "" if it has none.

    Keras 3 opens the scope of a layer twice at each call and builds nodes in the
    second, whose name TensorFlow has given a number: "head_1" of a layer "head". Where
    not all scopes have a number, they are the layers' names.

    Args:
      node: its name in the function that it was traced in.
      of: what `classes` returned for it.
    """
    parts = node.split("/")[:-1][: len(of)]
    numbered = all(_NUMBER.search(part) for part in parts)
    names = [_NUMBER.sub("", part) if numbered else part for part in parts]
    shown = (
        f"{name} ({kind})" if kind else name
        for name, kind in zip(names, of, strict=False)
    )
    return " in ".join([*shown][::-1])


def forward(node: str, known: Mapping[str, Any]) -> str:
    """The node whose gradient a node computes, or itself.

    Args:
      node: its name.
      known: has the names of all nodes that were traced.
    """
    before, _, scope = node.partition(_TAPE)  # before it, calls that were inlined
    while scope and before + scope not in known:
        scope = scope.rpartition("/")[0]
    return before + scope if scope else node
