"""Names that a policy gives are names of something, or the policy is refused."""

from __future__ import annotations

import pytest

from amp.errors import PolicyError
from amp.graph_rewrite.ops import op_names
from amp.policy import Policy


@pytest.mark.parametrize("field", ["allow", "deny"])
def test_an_op_that_is_not_registered_is_refused_with_the_nearest(field: str) -> None:
    op_names.check_op_names(Policy(**{field: ("MatMul",)}))
    with pytest.raises(PolicyError, match="there is no op 'Matmul'") as caught:
        op_names.check_op_names(Policy(**{field: ("Matmul",)}))
    assert f"AMP_{field.upper()}" in caught.value.where
    assert "MatMul" in caught.value.remedy


def test_patterns_are_checked_against_names_as_they_are() -> None:
    op_names.check_patterns(Policy(keep=("tan*",)), ["tanh", "out"])
    with pytest.raises(PolicyError, match="the pattern 'Tan") as caught:
        op_names.check_patterns(Policy(keep=("Tan*",)), ["tanh"])
    assert "AMP_KEEP" in caught.value.where
