"""An op that could not run with a 16-bit type cannot be allowed one."""

from __future__ import annotations

import pytest

from amp.errors import PolicyError
from amp.graph_rewrite.ops import allowable, op_names
from amp.graph_rewrite.ops.op_table import TABLE, Role
from amp.policy import Policy


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("EagerPyFunc", "it runs Python"),
        ("PyFunc", "it runs Python"),
        ("MapDefun", "it calls functions"),
        ("While", "it calls functions"),
        ("QueueEnqueueV2", "settled elsewhere"),
        ("TensorDataset", "settled elsewhere"),
        ("VariableV2", "settled elsewhere"),
        ("SaveV2", "settled elsewhere"),
        ("Bitcast", "settled elsewhere"),
        ("FFT", "none of its types"),
        ("NoOp", "none of its types"),
    ],
)
def test_an_op_that_can_never_be_16_bit_is_refused(op: str, why: str) -> None:
    assert why in allowable.refusal(op)
    with pytest.raises(PolicyError, match=f"{op} cannot be 16-bit: .*{why}") as caught:
        op_names.check_op_names(Policy(allow=(op,)))
    assert "AMP_ALLOW" in caught.value.where
    op_names.check_op_names(Policy(deny=(op,)))  # which says what is so


@pytest.mark.parametrize("op", ["Lgamma", "Cumprod", "Print", "CheckNumerics", "Pow"])
def test_an_op_whose_opdef_has_a_16_bit_form_may_be_allowed(op: str) -> None:
    assert not allowable.refusal(op)


def test_what_is_on_the_white_list_may_be_allowed() -> None:
    listed = [op for op, row in TABLE.items() if row.role is not Role.KEEP]
    assert not [op for op in listed if allowable.refusal(op)]
