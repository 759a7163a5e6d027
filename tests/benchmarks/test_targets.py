"""What timed runs were to come to: the worst case decides, ranks are compared."""

from __future__ import annotations

import pytest
from timed_runs import of_gains, run

from benchmarks import summary, targets


def named(rows: list[summary.Row], name: str) -> targets.Target:
    (found,) = [target for target in targets.targets(rows) if target.name == name]
    return found


def test_the_slowest_model_decides() -> None:
    rows = of_gains(mlp={"amp": 2.0}, small_mlp={"amp": 0.9}, resnet50={"amp": 1.7})
    target = named(rows, "slowest model over float32")
    assert (target.wanted, target.where, target.met) == (0.98, "small mlp", False)
    assert target.seen == pytest.approx(0.9)


def test_the_better_neighbour_counts_case_by_case() -> None:
    rows = of_gains(
        mlp={"amp": 2.0, "keras": 1.0, "grappler": 1.6},
        resnet50={"amp": 2.0, "keras": 2.5, "grappler": 1.6},
    )
    worst = named(rows, "slowest model over the better neighbour")
    assert (worst.where, worst.met) == ("resnet50", False)
    assert worst.seen == pytest.approx(0.8)
    mean = named(rows, "geometric mean over the better neighbour")
    assert mean.seen == pytest.approx((1.25 * 0.8) ** 0.5)
    grappler = named(rows, "geometric mean over Grappler")
    assert grappler.seen == pytest.approx(1.25)
    assert grappler.met


def test_targets_by_name_apply_to_every_transformer_and_not_to_the_small_mlp() -> None:
    rows = of_gains(
        mlp={"amp": 2.5},
        small_mlp={"amp": 1.0},
        transformer_512_gelu={"amp": 2.0},
        transformer_1024_relu={"amp": 2.2},
    )
    found = {
        target.name: (target.wanted, target.met)
        for target in targets.targets(rows)
        if target.name.endswith(" over float32") and "slowest" not in target.name
    }
    assert found == {
        "mlp over float32": (2.5, True),
        "transformer 512 gelu over float32": (2.1, False),
        "transformer 1024 relu over float32": (2.1, True),
    }


def test_memory_cases_count_for_memory_only() -> None:
    rows = summary.rows(
        [
            *(run(), run("amp", 0.5)),
            run(case="unet memory"),
            run("amp", 5.0, case="unet memory", peak_bytes=65, steady_peak_bytes=75),
        ]
    )
    slowest = named(rows, "slowest model over float32")
    assert (slowest.where, slowest.seen) == ("mlp", 2.0)
    memory = named(rows, "peak memory over float32's, unet")
    steady = named(rows, "peak memory over float32's, unet, after the first steps")
    assert (memory.seen, memory.met) == (0.65, True)
    assert (steady.seen, steady.met) == (0.75, False)


def test_measuring_is_reported_and_asked_of_nobody() -> None:
    rows = summary.rows([run(), run("amp", measuring_seconds=10.0)])
    seconds = named(rows, "seconds of measuring between steps, at most")
    assert (seconds.seen, seconds.met) == (10.0, None)


def test_a_first_step_takes_at_most_1_3_times_float32s() -> None:
    rows = summary.rows([run(), run("amp", first_step_seconds=6.0)])
    target = named(rows, "first step over float32's")
    assert (target.seen, target.met) == (1.5, False)


def test_first_runs_and_later_ones_have_targets_of_their_own() -> None:
    runs = []
    for number, first in enumerate((True, False)):
        known = {"case": "unet memory", "number": number, "first_run": first}
        seen = {"first_step_seconds": 6.0, "peak_bytes": 80} if first else {}
        runs += [run(**known), run("amp", **known, **seen)]
    rows = summary.rows(runs)
    for name, worse in (
        ("first step over float32's", 1.5),
        ("peak memory over float32's, unet", 0.8),
    ):
        assert named(rows, f"{name}, first run").seen == worse
        assert named(rows, f"{name}, later runs").seen == 1.0


def test_a_loss_that_is_not_finite_meets_no_target() -> None:
    rows = summary.rows([run(), run("amp", 0.1, loss_last=None)])
    assert {target.seen for target in targets.targets(rows)} == {None}


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    rows = of_gains(mlp={"keras": 1.2})
    assert {target.met for target in targets.targets(rows)} == {None}


def test_each_executor_has_targets_of_its_own() -> None:
    rows = summary.rows([run(), run(executor="xla")])
    found = [t.executor for t in targets.targets(rows) if t.name.startswith("slowest")]
    assert sorted(found) == ["kernels", "kernels", "xla", "xla"]


def test_rank_correlation_compares_orders_not_sizes() -> None:
    predicted = {"mlp": 3.0, "small mlp": 1.0, "resnet50": 1.1, "unet": 1.2}
    measured = {"mlp": 9.0, "small mlp": 1.0, "resnet50": 1.2, "unet": 1.3}
    runs = []
    for case, gain in measured.items():
        runs += [run(case=case), run("amp", 1 / gain, case=case)]
        runs[-1]["predicted"] = predicted[case]
    assert targets.rank_correlation(summary.rows(runs)) == pytest.approx(1.0)
    runs[1]["predicted"] = 0.5  # the fastest, predicted to be the slowest
    assert targets.rank_correlation(summary.rows(runs)) == pytest.approx(-0.2)


def test_two_cases_or_one_prediction_have_no_rank_correlation() -> None:
    same = of_gains(mlp={"amp": 1.0}, unet={"amp": 2.0}, resnet50={"amp": 3.0})
    assert targets.rank_correlation(same) is None
    assert targets.rank_correlation([]) is None
