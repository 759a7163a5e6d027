"""Errors: four parts, printed, kept by pickling; each kind is a built-in one too."""

from __future__ import annotations

import pickle

import pytest

from amp import errors

KINDS = [
    (errors.PolicyError, ValueError),
    (errors.GraphError, ValueError),
    (errors.VerifyError, RuntimeError),
    (errors.TensorFlowError, ImportError),
    (errors.CheckpointError, ValueError),
    (errors.LossScaleError, ValueError),
]
PARTS = {"where": "node 'a'", "allowed": "a float", "remedy": "pass one"}


@pytest.mark.parametrize(("kind", "builtin"), KINDS)
def test_the_text_has_all_four_parts(
    kind: type[errors.AmpError], builtin: type[Exception]
) -> None:
    error = kind("a string was found", **PARTS)
    assert isinstance(error, (errors.AmpError, builtin))
    for part in ("a string was found", *PARTS.values()):
        assert part in str(error)


@pytest.mark.parametrize(("kind", "builtin"), KINDS)
def test_pickling_keeps_kind_and_parts(
    kind: type[errors.AmpError], builtin: type[Exception]
) -> None:
    again = pickle.loads(pickle.dumps(kind("found", **PARTS)))
    assert type(again) is kind
    assert issubclass(kind, builtin)
    parts = {"where": again.where, "allowed": again.allowed, "remedy": again.remedy}
    assert parts == PARTS
    assert again.found == "found"


def test_no_part_may_be_left_out() -> None:
    with pytest.raises(TypeError):
        errors.GraphError("found", where="here", allowed="that")
