"""`json_fields`: what JSON holds becomes the dataclass, or is refused by field."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import pytest

from amp.graph_rewrite import json_fields


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int
    places: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    seconds: float
    maybe: float | None = None
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    lists: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)
    on: bool = False


FULL = Outer("n", 1.5, 2.0, Inner(3, (4, 5)), (Inner(6),), {"a": 7}, {"b": [8]}, True)


@pytest.mark.parametrize("given", [FULL, Outer("n", 1)])
def test_what_was_written_is_read(given: Outer) -> None:
    read = json.loads(json.dumps(dataclasses.asdict(given)))
    assert json_fields.made(Outer, read) == given


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 5),
        ("name", None),
        ("seconds", "x"),
        ("seconds", None),
        ("seconds", True),
        ("maybe", []),
        ("inner", 3),
        ("inner", {"size": 1.5}),
        ("many", {}),
        ("many", [None]),
        ("counts", None),
        ("counts", {"a": "x"}),
        ("lists", [1]),
        ("on", 1),
        ("later", 1),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_its_field(
    field: str, value: object
) -> None:
    read = {"name": "n", "seconds": 1.0, field: value}
    with pytest.raises(ValueError, match=f"field '{field}'"):
        json_fields.made(Outer, read)


def test_a_number_that_is_not_finite_is_written_as_null() -> None:
    given = {"a": [1.5, float("inf")], "b": {"c": (float("nan"), True, "x")}}
    read = json.loads(json_fields.text(given))
    assert read == {"a": [1.5, None], "b": {"c": [None, True, "x"]}}


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="lacks the field seconds"):
        json_fields.made(Outer, {"name": "n"})


@pytest.mark.parametrize("read", [[], 3, None, "text"])
def test_what_is_no_object_is_refused(read: object) -> None:
    with pytest.raises(ValueError, match="the fields of Outer"):
        json_fields.made(Outer, read)
