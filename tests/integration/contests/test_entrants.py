"""`entrants`: which plans may race, and which are worth a try."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf
from rewriting import settled, spec, traced

from amp.graph_rewrite.assign.nominee import CUT, EVERYTHING, PRODUCTS, REWRITTEN
from amp.graph_rewrite.cost.shipped_devices import CPU_AMX
from amp.graph_rewrite.rewrite import Foreseen, Prepared, prepare
from amp.integration.contests import entrants
from amp.integration.contests.entrants import (
    NOMINEES,
    Found,
    beside_float32,
    nominee_under,
    why_not_made,
)
from amp.loss_scaling import DynamicLossScale

pytestmark = pytest.mark.kernels


@pytest.fixture
def prepared() -> Prepared:
    product = tf.function(lambda x: tf.matmul(tf.tanh(tf.matmul(x, x)), x))
    module, _ = traced(product, spec(64, 64))
    return prepare(module, settled(CPU_AMX, assignment="cost", min_gain=0.02))


def test_what_does_not_race_has_no_clusters_for_any_length() -> None:
    for trial, races in ((True, True), (False, False)):
        under = settled(dtype="bfloat16", trial=trial)
        nominee = nominee_under(under, CUT.name)
        assert nominee == dataclasses.replace(CUT, lengths=races)


@pytest.mark.parametrize(
    ("fields", "unscaled"),
    [
        ({}, {REWRITTEN.name}),
        ({"trial": False}, set()),  # nothing would show what a scale costs
        ({"loss_scale": DynamicLossScale()}, set()),  # the user asked for it
        ({"dtype": "bfloat16"}, set()),
    ],
)
def test_float32_goes_without_a_scale_that_nobody_asked_for(
    fields: dict[str, object], unscaled: set[str]
) -> None:
    under = settled(**{"dtype": "float16", "trial": True, **fields})
    plans = (nominee_under(under, name) for name in NOMINEES)
    assert {nominee.name for nominee in plans if nominee.unscaled} == unscaled


@pytest.mark.parametrize(
    ("foreseen", "why"),
    [
        (Foreseen(0.1, {}, 1.0), "10.00 times as long"),  # than 10 ms
        (Foreseen(0.015, {}, 1.0), ""),
    ],
)
def test_a_plan_in_float32_races_if_its_kernels_make_it_close(
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    foreseen: Foreseen,
    why: str,
) -> None:
    report = dataclasses.replace(prepared.made(CUT).report, seconds16=0.01)
    monkeypatch.setattr(Prepared, "foreseen", lambda *_: foreseen)
    found = Found(prepared, report, ())
    told = why_not_made(found, REWRITTEN)
    assert (why in told) if why else not told


@pytest.mark.parametrize(
    ("everything", "part", "least", "usual", "plan"),
    [
        (1.4, 0.5, 0.01, 1.0, EVERYTHING.name),  # 1.5 times as long may be wrong
        (1.6, 0.5, 0.01, 1.0, ""),
        (1.4, 0.5, 2.0, 1.0, ""),  # too short a step to pay for a race
        (1.4, 0.5, 0.01, -1.0, ""),  # more is asked for than a race may find
        (1.0, 0.014, 0.01, 1.0, EVERYTHING.name),  # of the step, were it 1.5 times that
        (1.0, 0.013, 0.01, 1.0, ""),  # so at most 1.95 % could be gained
    ],
)
def test_float32_races_what_is_predicted_to_be_close(
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    everything: float,
    part: float,
    least: float,
    usual: float,
    plan: str,
) -> None:
    low = prepared.foreseen(EVERYTHING).low
    ((use, names),) = low.items()
    taken = sum(prepared.priced.uses[use].times[name][0] for name in names)
    step = taken / part
    report = dataclasses.replace(prepared.made(CUT).report, seconds32=step)
    held = {EVERYTHING.name: everything, PRODUCTS.name: 1.7}

    def foreseen(self: Prepared, nominee: object) -> Foreseen:
        return Foreseen(step * held[nominee.name], low)  # type: ignore[attr-defined]

    monkeypatch.setattr(Prepared, "foreseen", foreseen)
    monkeypatch.setattr(entrants, "LEAST_STEP", least * step)
    monkeypatch.setattr(entrants, "USUAL_GAIN", usual)
    assert beside_float32(prepared, report, NOMINEES.__getitem__) == plan
