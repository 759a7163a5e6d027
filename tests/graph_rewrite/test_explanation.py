"""`explanation`: from a node to its root cause, and to what would change it."""

from __future__ import annotations

import dataclasses

import pytest

from amp.graph_rewrite import explanation
from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.plan import RULES


def high(node: str, rule: str, cause: str, **more: object) -> Decision:
    op = str(more.pop("op", "AddV2"))
    return Decision(node, op, "float32", rule, cause, **more)  # type: ignore[arg-type]


NORM = [
    high("f::norm/eps", "range", "norm/eps", op="Const", source="net.py:7"),
    high("f::norm/add", "range", "norm/eps"),
    high("f::list", "list", "norm/add works on the same list"),
]


def test_the_chain_goes_to_the_root_with_source_lines_and_says_what_helps() -> None:
    told = explanation.explain(NORM, "list", {"net.py:7": "x / (y + 1e-8)"})
    held = "a value that the 16-bit type cannot hold [range: norm/eps]"
    means = RULES["list"]
    first, *rest = told.splitlines()
    assert first == (
        f"f::list (AddV2) is float32: {means} [list: norm/add works on the same list]"
    )
    assert rest[:-1] == [
        f"  because  f::norm/add (AddV2) is float32: {held}",
        f"  because  f::norm/eps (Const) is float32: {held}",
        "  source   net.py:7  x / (y + 1e-8)",
    ]
    assert rest[-1].startswith("  change   of norm/eps: AMP_DTYPE=bfloat16, which ")


def test_every_rule_says_what_would_change_it() -> None:
    more = {"held", "overflow", "python", "settled"}
    assert explanation.CHANGES.keys() == RULES.keys() | more
    for text in explanation.CHANGES.values():
        assert text.format(op="Op", name="name")


def test_what_the_rule_would_say_gives_way_to_what_the_node_says() -> None:
    given = [high("x", "unlisted", "Lgamma", op="Lgamma")]
    assert "AMP_ALLOW=Lgamma" in explanation.explain(given, "x", {})
    for key, text in (
        ("held", "nothing: it holds float32"),
        ("python", "nothing, AMP_ALLOW=PyFunc neither: a Python function"),
        ("settled", "nothing, AMP_ALLOW=PyFunc neither: what it takes or gives"),
        ("kernel", "library with a 16-bit kernel for PyFunc"),
    ):
        given = [high("x", "unlisted", "PyFunc", op="PyFunc", change=key)]
        assert text in explanation.explain(given, "x", {})


def test_a_whole_name_stands_for_that_node_alone() -> None:
    given = [high("a", "fed", "a"), high("f::a", "fed", "a"), high("s/a", "fed", "a")]
    assert explanation.named(given, "a") == [0]
    assert explanation.named(given[1:], "a") == [0, 1]
    assert explanation.named(given, "f::a") == [1]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dens_1/MatMul", "model/dense_1/MatMul"),
        ("dense_1", "model/dense_1/MatMul"),
        ("DENSE_1/matmul", "model/dense_1/MatMul"),
        ("MatMull", "model/dense_1/MatMul"),
    ],
)
def test_a_misspelt_name_is_told_which_may_be_meant(name: str, meant: str) -> None:
    given = [high("model/dense_1/MatMul", "fed", ""), high("loss/Log", "fed", "")]
    assert explanation.similar(given, name)[0] == meant
    assert f"did you mean {meant}" in explanation.explain(given, name, {})


def test_a_name_that_differs_in_case_alone_is_meant_before_what_is_in_it() -> None:
    names = ("MatMul/ReadVariableOp", "MatMul_1", "net/MatMul", "MatMul")
    given = [high(name, "fed", "") for name in names]
    assert explanation.similar(given, "matmul")[:2] == ["net/MatMul", "MatMul"]


def test_nothing_is_suggested_where_nothing_is_alike() -> None:
    given = [high("model/dense_1/MatMul", "fed", "")]
    assert explanation.explain(given, "zzz", {}).endswith("a node 'zzz'")


def test_a_node_that_16_bits_slow_down_says_by_how_much() -> None:
    given = [high("x", "fed", "x")]
    slow = high("slow", "cost", "", seconds32=1e-6, seconds16=3e-6, reads=(0,))
    fast = high("fast", "cost", "", seconds32=3e-6, seconds16=1e-6, reads=(0,))
    told = explanation.explain([*given, slow, fast], "slow", {})
    assert "16 bits take 2.0 us more in the kernel itself" in told
    assert "a larger shape" in told
    told = explanation.explain([*given, slow, fast], "fast", {})
    assert "16 bits save 2.0 us, and casts would take more" in told


def test_a_product_of_few_rows_says_what_its_casts_are_of() -> None:
    weights = high("w", "variable", "", elements=4096 * 4096)
    few = high(
        *("few", "cost", ""),
        op="MatMul",
        seconds32=4e-3,
        seconds16=2e-3,
        reads=(0,),
        sizes="4x4096, 4096x4096 -> 4x4096",
    )
    many = dataclasses.replace(few, node="many", sizes="400x8, 8x8 -> 400x8")
    told = explanation.explain([weights, few, many], "few", {})
    assert (
        "casts would take more: of 16,777,216 elements that it reads; it has 4 rows"
        in (told)
    )
    assert "rows only" not in explanation.explain([weights, few, many], "many", {})


def test_a_function_that_gains_too_little_says_where_its_time_is() -> None:
    given = [
        high("product", "gain", "predicted gain 1.0%", seconds32=1e-3),
        high("update", "optimizer", "", seconds32=8e-3),
        high("eps", "range", "", seconds32=1e-3),
    ]
    told = explanation.explain(given, "product", {})
    assert (
        "of 10.00 ms in all, 8.00 ms by 'optimizer' and 1.00 ms by 'range' stay float32"
        in told
    )
    told = explanation.explain(given[:1], "product", {})
    assert "of 1.00 ms in all, little changes" in told
