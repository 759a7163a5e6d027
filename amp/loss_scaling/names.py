"""What scalers are called: after their variables, else after their gradient's line.

For those who read reports, warnings and dictionaries of state. No TensorFlow, and no
scaler is looked up by its name here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Sequence

# What TensorFlow and Keras call a variable that the program gave no name.
_UNNAMED = re.compile(r"[Vv]ariable(_\d+)?")


def of(variables: Sequence[str], line: str) -> str:
    """Returns what the scaler of a gradient call is called.

    ::

        no variable has a name of its own:  the line               train.py:42
        one variable:                       its name               dense/kernel
        all in one name scope:              the scope, the number  critic (6 variables)
        otherwise:                          the first, the rest    first and 2 more

    Args:
      variables: the names of the variables by which the gradient is taken.
      line: the file and line of the call, as `line` returns it.
    """
    names = [name.partition(":")[0] for name in variables]
    if all(_UNNAMED.fullmatch(name) for name in names):
        return line or "loss_scaler"
    if len(names) == 1:
        return names[0]
    scope = _scope([name.split("/")[:-1] for name in names])
    if scope:
        return f"{scope} ({len(names)} variables)"
    return f"{names[0]} and {len(names) - 1} more"


def _scope(scopes: Sequence[list[str]]) -> str:
    """The parts with which all scopes begin, as one name."""
    first, last = min(scopes), max(scopes)
    pairs = zip(first, last, strict=False)
    length = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return "/".join(first[: min(len(first), len(last)) if length is None else length])


def free(name: str, taken: Container[str]) -> str:
    """Returns `name`, or the first of "name #2", "name #3" and so on that is free."""
    number, each = 1, name
    while each in taken:
        number += 1
        each = f"{name} #{number}"
    return each


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of variables without ":0", each of them once."""
    found: list[str] = []
    for name in names:
        found.append(free(name.partition(":")[0], found))
    return tuple(found)


def line(file: str, number: int) -> str:
    """Returns a line of the program, without folders: train.py:42.

    "" for a line that AutoGraph generated, which nobody knows. (In the threads of
    replicas the line of the program is not to be found.)
    """
    if os.path.basename(file).startswith("__autograph_generated_file"):
        return ""
    return f"{os.path.basename(file)}:{number}"
