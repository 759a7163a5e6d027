"""`Report`: counts, reasons and text of what a rewrite did."""

from __future__ import annotations

import dataclasses
import json

import pytest
from rewriting import graph_def, matmul_chain, nodes, rewritten

from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.outcomes import (
    AccuracyOutcome,
    GradientError,
    Prices,
    RacedPlan,
    TrialOutcome,
)
from amp.graph_rewrite.plan import RULES
from amp.graph_rewrite.report import Report


def chain(**fields: object) -> Report:
    return rewritten(graph_def(matmul_chain), **fields).report


def test_counts_are_those_of_the_graph() -> None:
    result = rewritten(graph_def(matmul_chain))
    types = {n.name: n.attr["T"].type for n in result.graph.node if "T" in n.attr}
    low = {name for name, number in types.items() if number == 14 and "amp" not in name}
    assert low == {"product", "tanh"}  # and the reshape that moved aside as out/amp_...
    assert result.report.nodes_low == 3
    assert result.report.nodes_total == len(graph_def(matmul_chain).node)
    assert result.report.casts == 2  # x down, and the result up as it is fetched


def test_every_decision_has_a_known_rule_and_a_cause() -> None:
    report = chain()
    assert len({d.node for d in report.decisions}) == len(report.decisions)
    for decision in report.decisions:
        assert decision.rule in RULES
        assert decision.cause


def test_every_node_that_touches_float32_is_decided() -> None:
    named = {d.node for d in chain().decisions}
    assert named == {"x", "w", "product", "tanh", "out"}


def test_a_report_in_float32_says_so() -> None:
    """And that a function in another form runs, though no node is 16-bit."""
    verdict = "rewritten in float32, predicted 1.25x faster"
    before = dataclasses.replace(
        chain(), nodes_low=0, seconds32=5e-3, seconds16=4e-3, verdict=verdict
    )
    assert before.rewritten
    outcome = TrialOutcome(True, 5e-3, 2.5e-3, 7, "ended: planted")
    after = before.after(outcome)
    assert after.verdict == f"{verdict}, measured 2.00x faster over 7 calls"
    prices = Prices(6e-3, 4e-3, 1.0, {})
    assert after.repriced(prices).verdict.startswith(f"{verdict[:-12]}1.50x faster, m")
    lost = before.after(dataclasses.replace(outcome, twin=False))
    assert not lost.rewritten


def test_json_has_every_field_and_reads_back() -> None:
    report = chain()
    read = json.loads(report.to_json())
    assert set(read) == {field.name for field in dataclasses.fields(Report)} | {
        "summary"
    }
    assert list(read)[-1] == "decisions"  # what a reader of the file sees last
    assert Report.from_json(report.to_json()) == report
    assert read["nodes_low"] == report.nodes_low
    assert read["decisions"][0]["rule"] in RULES


def test_the_text_says_what_a_person_asks_first() -> None:
    text = str(chain())
    for part in (
        "nodes        6, of them 3 in bfloat16",
        "memory       results of 1.5 KiB in float32 and 768 B in bfloat16; 3.0 KiB all",
        "casts        2",
        "loss scale",
    ):
        assert part in text
    assert "unlisted: not in the white-list" in text
    assert "(emulated)" in str(chain(emulate=True))


def test_a_trial_adds_what_was_measured_beside_what_was_predicted() -> None:
    before = dataclasses.replace(chain(), seconds32=3e-3, seconds16=2e-3)
    assert "\n  measured" not in str(before)
    after = before.after(TrialOutcome(True, 5e-3, 4e-3, 7, "ended: 16 bits are faster"))
    gains = "predicted 1.50x faster, measured 1.25x faster"
    assert after.verdict == f"rewritten, {gains} over 7 calls"
    text = str(after)
    assert "measured     5.00 ms in float32, 4.00 ms rewritten, over 7 calls" in text
    assert "trial        ended: 16 bits are faster" in text
    assert after.decisions == before.decisions
    assert (after.measured32, after.measured16, after.timed) == (5e-3, 4e-3, 7)


def test_what_an_earlier_run_measured_is_told_as_such() -> None:
    report = chain().as_measured(5e-3, 4e-3)
    assert report.verdict.endswith("measured 1.25x faster in an earlier run")
    text = str(report)
    assert (
        "measured     5.00 ms in float32, 4.00 ms rewritten, in an earlier run" in text
    )


def test_where_the_original_won_nothing_of_ours_is_in_sixteen_bits() -> None:
    given = chain()
    mine = dataclasses.replace(given.decisions[0], dtype="bfloat16", rule="already")
    given = dataclasses.replace(given, decisions=(mine, *given.decisions[1:]))
    after = given.after(TrialOutcome(False, 1e-3, 4e-3, 12, "ended: float32 is faster"))
    assert "measured 4.00x slower over 12 calls" in after.verdict
    assert after.verdict.startswith("left in float32: predicted")
    assert (after.nodes_low, after.casts) == (1, 0)
    assert (after.seconds32, after.seconds16) == (given.seconds32, given.seconds16)
    assert [d.dtype for d in after.decisions].count("bfloat16") == 1
    assert "[trial: predicted" in after.explain("product")


def test_what_lost_by_a_check_has_no_times_that_it_won_by() -> None:
    after = chain().after(TrialOutcome(True, 5e-3, 4e-3, 7, "ended: 16 bits won"))
    lost = after.lost("a check failed")
    assert lost.verdict == "left in float32: a check failed"
    assert (lost.measured32, lost.measured16, lost.timed) == (None, None, 0)
    assert (lost.nodes_low, lost.rewritten) == (0, False)


def test_a_trial_without_times_says_only_what_was_predicted() -> None:
    after = chain().after(TrialOutcome(True, None, None, 0, "ended: why"))
    assert "\n  measured" not in str(after)


def test_a_node_explains_itself() -> None:
    report = chain()
    assert report.explain("product").startswith("product (MatMul) is bfloat16: a prod")
    assert "[unlisted: Placeholder]" in report.explain("x")
    assert report.explain("prodct") == (
        "no decision was made about a node 'prodct'; did you mean product?"
    )


def test_off_says_why_and_decides_nothing() -> None:
    off = rewritten(graph_def(matmul_chain), dtype="auto", device=plain())
    assert off.report.dtype == ""
    assert off.report.nodes_low == 0
    assert off.report.decisions == ()
    assert "mixed precision is off" in off.report.verdict
    assert nodes(off.graph) == nodes(graph_def(matmul_chain))


def plain() -> object:
    from amp.graph_rewrite.cost.shipped_devices import CPU_PLAIN

    return CPU_PLAIN


def test_a_gain_under_the_least_leaves_the_whole_graph_and_says_so() -> None:
    from amp.graph_rewrite.cost.shipped_devices import A100

    proto = graph_def(large_product)
    taken = rewritten(proto, A100, assignment="cost").report
    assert taken.nodes_low
    gain = 1 - taken.seconds16 / taken.seconds32
    over = rewritten(proto, A100, assignment="cost", min_gain=gain * 1.01).report
    assert over.nodes_low == 0
    assert "under min_gain" in over.verdict
    assert {"gain"} == {d.rule for d in over.decisions if d.op == "MatMul"}
    under = rewritten(proto, A100, assignment="cost", min_gain=gain * 0.99).report
    assert under.nodes_low == taken.nodes_low


def large_product() -> None:
    import tensorflow as tf

    x = tf.compat.v1.placeholder(tf.float32, [4096, 4096], name="x")
    tf.matmul(x, x, name="out")


def test_the_text_lists_the_first_few_sizes_and_counts_the_others() -> None:
    report = dataclasses.replace(
        chain(),
        made_for={f"x{i}": [i, 4] for i in range(8)},
        sizes_assumed=("IteratorGetNext",),
    )
    assert "made for     sizes x0 [0, 4], x1 [1, 4]" in str(report)
    assert "x5 [5, 4], 2 more\n" in str(report)
    assert "assumed      the sizes of IteratorGetNext\n" in str(report)


def test_a_report_reads_back_from_its_json_as_it_was() -> None:
    worst = (GradientError("grad", 0.1, 0.05),)
    report = dataclasses.replace(
        chain(),
        accuracy=AccuracyOutcome("checked", 2, 0.1, 0.05, worst),
        plans=(RacedPlan("float32", None, 1e-3, 4, "won", 0, 0, 400),),
        made_for={"x": [2, 3]},
        sizes_assumed=("y",),
        source_text={"train.py:1": "x + y"},
    )
    assert any(one.reads for one in report.decisions)
    assert Report.from_json(report.to_json()) == report


def test_a_report_of_an_earlier_version_reads_back_without_costs() -> None:
    read = json.loads(chain().to_json())
    del read["device_source"], read["source_text"]
    known = ("node", "op", "dtype", "rule", "cause")
    read["decisions"] = [
        {name: one[name] for name in known} for one in read["decisions"]
    ]
    old = Report.from_json(json.dumps(read))
    first = chain().explain("product").partition("\n")[0]
    assert old.explain("product").startswith(first)
    assert {(one.seconds32, one.reads) for one in old.decisions} == {(0.0, ())}


def test_the_text_names_the_costliest_nodes_and_the_time_that_rules_keep() -> None:
    text = str(chain())
    assert "costliest" in text
    assert "product (MatMul) in bfloat16" in text
    (line,) = (one for one in text.splitlines() if "unlisted: " in one)
    assert line.endswith("us)")


def test_the_text_names_the_op_that_takes_most_of_what_a_rule_keeps() -> None:
    unlisted = ("float32", "unlisted", "PyFunc", 3e-6)
    one, two = (Decision(name, "PyFunc", *unlisted) for name in "ab")
    other = dataclasses.replace(one, node="c", op="FFT", seconds32=1e-6)
    text = str(dataclasses.replace(chain(), decisions=(other, one, two)))
    assert "3  unlisted: not in the white-list (7.0 us, PyFunc 6.0 us of it)" in text
    text = str(dataclasses.replace(chain(), decisions=(other,)))
    assert text.endswith("1  unlisted: not in the white-list (1.0 us)")


def test_other_prices_change_what_is_predicted_and_nothing_else() -> None:
    given = dataclasses.replace(chain(), seconds16=1.5e-3, fused_seconds=0.5e-3)
    raced = given.after(TrialOutcome(True, 5e-3, 4e-3, 7, "ended: 16 bits are faster"))
    prices = Prices(8e-3, 4e-3, 0.9, {"product": [(7e-3, 3e-3)]})
    told = raced.repriced(prices)
    assert told.verdict == (
        "rewritten, predicted 2.67x faster, measured 1.25x faster over 7 calls"
    )
    assert (told.seconds32, told.measured_share) == (8e-3, 0.9)
    # Clusters save a quarter, as before.
    assert (told.seconds16, told.fused_seconds) == pytest.approx((3e-3, 1e-3))
    found = {one.node: one for one in told.decisions}
    assert (found["product"].seconds32, found["product"].seconds16) == (7e-3, 3e-3)
    for one, before in zip(told.decisions, raced.decisions, strict=True):
        same = dataclasses.replace(
            one, seconds32=before.seconds32, seconds16=before.seconds16
        )
        assert same == before
        assert one == before or one.node == "product"


def test_other_prices_leave_the_verdict_on_float32_that_won() -> None:
    lost = chain().after(TrialOutcome(False, 1e-3, 4e-3, 12, "ended"))
    told = lost.repriced(Prices(8e-3, 4e-3, 0.9, {}))
    assert told.verdict == lost.verdict
    assert told.seconds32 == 8e-3


def test_a_function_with_several_uses_has_a_price_for_each() -> None:
    one = chain().decisions[0]
    given = dataclasses.replace(chain(), decisions=(one, one))
    told = given.repriced(Prices(1.0, 1.0, 0.0, {one.node: [(1.0, 2.0), (3.0, 4.0)]}))
    assert [(d.seconds32, d.seconds16) for d in told.decisions] == [(1, 2), (3, 4)]


@pytest.mark.parametrize("part", [0.1, 0.5, 1.0])
def test_what_clusters_save_shrinks_with_the_time_of_their_operations(
    part: float,
) -> None:
    given = dataclasses.replace(
        chain(), seconds32=4e-3, seconds16=1e-3, fused_seconds=2e-3
    )
    told = given.repriced(Prices(part * 4e-3, part * 3e-3, 1.0, {}))
    assert told.seconds16 == pytest.approx(part * 1e-3)
    again = told.repriced(Prices(4e-3, 3e-3, 1.0, {}))
    assert again.seconds16 == pytest.approx(1e-3)
