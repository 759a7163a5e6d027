"""`decisions`: the costliest nodes, the rules that keep most time, sums by type."""

from __future__ import annotations

from amp.graph_rewrite import decisions
from amp.graph_rewrite.decisions import Decision, Kept, costliest_op


def low(name: str, seconds: float, elements: int = 0) -> Decision:
    return Decision(name, "MatMul", "float16", "compute", "", 9.0, seconds, elements)


def kept(name: str, rule: str, seconds: float, elements: int = 0) -> Decision:
    return Decision(name, "Exp", "float32", rule, "", seconds, 9.0, elements)


def test_the_costliest_are_judged_in_the_type_that_was_decided() -> None:
    given = [kept("a", "range", 1.0), low("b", 3.0), low("c", 2.0), low("free", 0.0)]
    assert decisions.costliest(given) == [1, 2, 0]


def test_only_the_first_few_are_costly() -> None:
    given = [low(str(i), i) for i in range(1, 20)]
    assert decisions.costliest(given) == [18, 17, 16, 15, 14]


def test_rules_are_listed_by_the_time_that_they_keep_not_by_count() -> None:
    given = [kept("a", "unlisted", 1e-9), kept("b", "unlisted", 1e-9)]
    given += [kept("c", "range", 1.0), low("d", 5.0)]
    assert decisions.kept_in_float32(given) == [
        Kept("range", 1, 1.0),
        Kept("unlisted", 2, 2e-9),
    ]


def test_rules_that_keep_no_time_are_listed_by_count() -> None:
    given = [kept("a", "fed", 0.0), kept("b", "range", 0.0), kept("c", "range", 0.0)]
    assert [one.rule for one in decisions.kept_in_float32(given)] == ["range", "fed"]


def test_bytes_are_two_in_sixteen_bits_and_four_where_these_are_emulated() -> None:
    given = [low("a", 1.0, 10), kept("b", "range", 1.0, 5)]
    assert decisions.nodes_by_type(given) == {"float16": 1, "float32": 1}
    assert decisions.bytes_by_type(given, emulated=False) == {
        "float16": 20,
        "float32": 20,
    }
    assert decisions.bytes_by_type(given, emulated=True)["float16"] == 40


def test_the_chain_of_causes_goes_on_where_a_cause_names_a_node_of_the_function() -> (
    None
):
    given = [
        Decision("f::eps", "Const", "float32", "range", "eps"),
        Decision("f::add", "AddV2", "float32", "range", "eps"),
        Decision("f::list", "X", "float32", "list", "add works on the same list"),
        Decision("add", "AddV2", "float32", "range", "eps"),
        Decision("MatMul", "MatMul", "float32", "unlisted", "MatMul"),
        Decision("other", "MatMul", "float32", "deny", "MatMul"),
    ]
    assert decisions.causes(given) == [None, 0, 1, None, None, None]


def test_what_no_product_reaches_leads_to_the_nearest_product_before_it() -> None:
    given = [
        Decision("far", "MatMul", "float32", "keep", "amp.keep_float32()"),
        Decision("near", "MatMul", "float32", "kernel", "MatMul", reads=(0,)),
        Decision("mul", "Mul", "float32", "unreached", "no product", reads=(1,)),
        Decision("add", "Add", "float32", "unreached", "no product", reads=(2, 0)),
        Decision("alone", "Add", "float32", "unreached", "no product"),
        Decision("beside", "Add", "float32", "range", "beside", reads=(1,)),
    ]
    assert decisions.causes(given) == [None, None, 1, 0, None, None]
    assert decisions.chain(3, decisions.causes(given)) == [3, 0]


def test_a_chain_that_meets_itself_ends() -> None:
    assert decisions.chain(0, [1, 2, 0]) == [0, 1, 2]


def test_a_summary_adds_up_what_the_decisions_say() -> None:
    given = [low("a", 1.0, 10), kept("b", "range", 2.0, 5)]
    told = decisions.summarize(given, emulated=False)
    assert told.bytes32 == 60
    assert told.costliest == (1, 0)
    assert told.kept == (Kept("range", 1, 2.0),)
    assert (told.nodes, told.bytes) == (
        {"float16": 1, "float32": 1},
        {"float16": 20, "float32": 20},
    )


def test_the_op_that_takes_most_of_a_rules_time_is_summed_over_its_nodes() -> None:
    given = [
        Decision("a", "PyFunc", "float32", "unlisted", "PyFunc", 2.0),
        Decision("b", "FFT", "float32", "unlisted", "FFT", 3.0),
        Decision("c", "PyFunc", "float32", "unlisted", "PyFunc", 2.0),
        Decision("d", "MatMul", "float32", "cost", "", 9.0),
        Decision("e", "FFT", "float16", "unlisted", "", 9.0),
    ]
    assert costliest_op(given, "unlisted") == ("PyFunc", 4.0)
