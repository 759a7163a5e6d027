"""The table of prices has each op with what was predicted and what was measured."""

from __future__ import annotations

import pytest

from amp.graph_rewrite.cost.op_instance import Instance
from benchmarks import price_list


def test_predicted_and_measured_times_are_added_up_over_the_step() -> None:
    one = Instance("key", "matmul", (None, None), "kernels", (2e-3, 1e-3), 3.0, 8)
    cells = price_list.line("MatMul", [(one, (4e-3, 0.5e-3)), (one, (2e-3, 0.5e-3))])
    assert cells.split() == ["MatMul", "12.00", "18.00", "1.50", "6.00", "3.00", "0.50"]


@pytest.mark.kernels
def test_every_op_of_a_model_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    price_list.main(["--model", "mlp", "--seconds", "5", "--each"])
    rows = capsys.readouterr().out.splitlines()[3:]
    ops = {row.split()[0] for row in rows if not row.startswith(" ")}
    assert "MatMul" in ops
    assert len(rows) > len(ops)
