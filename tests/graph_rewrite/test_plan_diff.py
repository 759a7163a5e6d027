"""`plan_diff`: which nodes two plans decide differently, the most time first."""

from __future__ import annotations

import dataclasses
import json

from report_pages import large_report

from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.plan_diff import SHOWN, difference
from amp.graph_rewrite.report import Report


def report(*given: Decision, **fields: object) -> Report:
    return dataclasses.replace(large_report(2), decisions=given, **fields)  # type: ignore[arg-type]


def low(name: str, seconds: float) -> Decision:
    return Decision(name, "MatMul", "bfloat16", "compute", "product", 9e-3, seconds)


def high(name: str, seconds: float) -> Decision:
    return Decision(name, "MatMul", "float32", "range", "eps", seconds, 9e-3)


def test_nodes_of_another_type_are_listed_by_the_time_they_differ_by() -> None:
    one = report(low("a", 1e-3), low("b", 1e-3), low("same", 1e-3), seconds16=3e-3)
    two = report(high("a", 2e-3), high("b", 5e-3), low("same", 1e-3), seconds16=6e-3)
    found = difference(("one", one), ("two", two))
    assert [(c.after.node, c.seconds) for c in found.changed] == [
        ("b", 4e-3),
        ("a", 1e-3),
    ]
    text = str(found)
    assert "predicted  A 3.00 ms, B 6.00 ms: B is 2.00x slower" in text
    assert text.index("+4.00 ms  b (MatMul)") < text.index("+1.00 ms  a (MatMul)")
    assert "A  bfloat16: a product that 16-bit arithmetic speeds up [compute: " in text
    assert "B  float32: a value that the 16-bit type cannot hold [range: eps]" in text


def test_the_number_after_a_functions_name_does_not_count() -> None:
    one = report(low("__inference_body_12::mul", 1e-3))
    two = report(high("__inference_body_7::mul", 1e-3))
    found = difference(("one", one), ("two", two))
    assert len(found.changed) == 1
    assert found.only == ((), ())


def test_functions_that_differ_in_their_number_only_are_all_compared() -> None:
    names = ("body_1::mul", "body_2::mul")
    one = report(*(low(name, 1e-3) for name in names))
    two = report(*(high(name, 1e-3) for name in names))
    assert len(difference(("one", one), ("two", two)).changed) == 2


def test_nodes_of_one_plan_only_are_counted() -> None:
    found = difference(("one", report(low("a", 1.0))), ("two", report(low("b", 1.0))))
    assert found.only == (("a",), ("b",))
    assert "no node that both have differs" in str(found)
    assert "1 nodes are only in A, as a" in str(found)


def test_the_text_lists_the_first_and_the_json_all() -> None:
    names = [f"n{i}" for i in range(SHOWN + 3)]
    one = report(*(low(name, 1e-3) for name in names))
    two = report(*(high(name, 2e-3) for name in names))
    found = difference(("one", one), ("two", two))
    assert "3 more: --json lists all" in str(found)
    read = json.loads(found.to_json())
    assert len(read["changed"]) == SHOWN + 3
    assert read["changed"][0]["after"]["cause"] == "eps"
