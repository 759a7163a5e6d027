"""Which values of a test's parameter are tried by `make test`, and which once more."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def but(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Values for `parametrize`: all but the `quick` ones are marked as thorough."""
    values, mark = list(values), pytest.mark.thorough
    assert all(one in values for one in quick)
    several = [v if isinstance(v, tuple) else (v,) for v in values]
    return [
        v if v in quick else pytest.param(*each, marks=mark)
        for v, each in zip(values, several, strict=True)
    ]
