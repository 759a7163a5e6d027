"""`PlanPrices`: a plan stays as it was made, and its report predicts by newer times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import tensorflow as tf
from rewriting import settled
from tensorflow.python.eager import context as context_lib

import amp
from amp.graph_rewrite.assign.nominee import CUT, EVERYTHING
from amp.graph_rewrite.cost.op_instance import Instance, Timer, Times
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.rewrite import Prepared, prepare
from amp.integration.contests.entrants import MEASURED
from amp.integration.functions.plan_prices import PlanPrices
from amp.integration.measuring.job_timer import Noted
from amp.integration.runtime import definitions


def product_takes(high: float, low: float) -> Timer:
    def timer(wanted: Sequence[Instance]) -> Mapping[str, Times]:
        return {one.key: (high, low) for one in wanted if "MatMul" in one.key}

    return timer


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """Of one product, by the model's prices."""
    with amp.mixed_precision_scope(dtype="bfloat16"):
        pass  # the hooks are in place: what is traced has its shapes
    x = tf.ones([256, 256])
    concrete = tf.function(lambda x: tf.matmul(x, x)).get_concrete_function(x)
    module = definitions.read(context_lib.context(), concrete.name.decode())
    return prepare(module, settled(CPU_AMX, assignment="cost"))


def test_reports_predict_by_what_was_told_last(prepared: Prepared) -> None:
    made, prices = prepared.made(EVERYTHING), PlanPrices(prepared.timer)
    assert prices.of("all") is None
    assert prices.predicted("all", made.report) is made.report
    told = prepared.repriced(product_takes(8.0, 2.0))
    prices.tell(told, {"all": made.low})
    found = prices.predicted("all", made.report)
    assert found.seconds32 == pytest.approx(8.0, rel=0.01)  # casts are the rest
    assert found.seconds16 == pytest.approx(2.0, rel=0.01)
    assert found.nodes_low == made.report.nodes_low > 0
    prices.forget("all")
    assert prices.predicted("all", made.report) is made.report


def test_a_plan_that_is_made_later_predicts_by_them_too(prepared: Prepared) -> None:
    made, prices = prepared.made(EVERYTHING), PlanPrices(prepared.timer)
    prices.made("all", prepared, made.low)
    assert prices.of("all") is None, "there are no newer ones"
    prices.tell(prepared.repriced(product_takes(8.0, 2.0)), {})
    prices.made("all", prepared, made.low)
    found = prices.predicted("all", made.report)
    assert found.seconds16 == pytest.approx(2.0, rel=0.01)


def test_each_plan_has_the_times_that_it_was_made_by(prepared: Prepared) -> None:
    noted: Any = Noted(prepared.settled)
    prices = PlanPrices(prepared.timer)
    prices.made_by(MEASURED.name, noted)
    assert prices.timer(MEASURED.name) is noted
    assert prices.timer(CUT.name) is prepared.timer
    noted.times["a key"] = (2.0, 1.0)
    assert prices.times(MEASURED.name) == {"a key": (2.0, 1.0)}
    assert prices.times(CUT.name) == prices.times("none") == {}
