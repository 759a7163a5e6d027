"""Algorithms name no ops: what they need to know of one is in its row."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

from amp.graph_rewrite.graph import op_schema

ROOT = pathlib.Path(__file__).parents[3]
# `ops` has the facts, and `graph` what TensorFlow says of calls and frames.
NAMES_OPS = ("amp/graph_rewrite/ops/", "amp/graph_rewrite/graph/")
# Small operations that are timed on purpose, one by one: which they are is the matter.
TIMED = ("amp/integration/measuring/",)
ALGORITHMS = sorted(
    path
    for room in ("amp/graph_rewrite", "amp/integration")
    for path in (ROOT / room).rglob("*.py")
    if not str(path.relative_to(ROOT)).startswith(NAMES_OPS + TIMED)
)
# Where a string is asked about: compared, or in a set that something may be in.
ASKED = (ast.Compare, ast.Set, ast.MatchValue)
TESTS = ("startswith", "endswith", "removeprefix", "frozenset", "set")


def names(tree: ast.AST) -> Iterator[str]:
    """The names of ops, or their beginnings and ends, that code asks for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            asked = node.args if called in TESTS else []
        elif isinstance(node, ast.Assign | ast.AnnAssign) and constant_of(node):
            asked = [node.value] if node.value else []
        else:
            asked = [node] if isinstance(node, ASKED) else []
        for part in (part for one in asked for part in ast.walk(one)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield from (word for word in part.value.split() if is_op(word))


def constant_of(node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether a module's table is bound: a tuple, list or dictionary of strings."""
    return isinstance(node.value, ast.Tuple | ast.List | ast.Dict)


def is_op(word: str) -> bool:
    """Whether a word names an op of TensorFlow; "A" and "B" are those of its tests."""
    return len(word) > 1 and word.isidentifier() and op_schema.schema(word) is not None


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_no_algorithm_asks_for_an_op_by_name(path: pathlib.Path) -> None:
    assert set(names(ast.parse(path.read_text()))) == set()


@pytest.mark.parametrize(
    "code",
    [
        'node.op == "Cast"',
        'node.op in ("Shape", "ShapeN")',
        'READS = frozenset({"ReadVariableOp"})',
        'READS = ("ReadVariableOp", "Other")',
        'SUMS = set("Add AddN".split())',
        'node.op.startswith(("Assign", "Scatter"))',
        'node.op.endswith("PartitionedCall")',
        'match op:\n    case "Cast":\n        pass',
        'WORK = {"Cast": "cast"}',
    ],
)
def test_asking_for_an_op_by_name_is_seen(code: str) -> None:
    assert set(names(ast.parse(code)))


def test_making_a_node_is_not_asking() -> None:
    code = 'ir.Node(name, "Cast", (), (), "", None)\nself._add(name, "NoOp")'
    assert not set(names(ast.parse(code)))


def test_the_rooms_were_found() -> None:
    found = {path.stem for path in ALGORITHMS}
    assert {"ranges", "liveness", "fuse", "policy_view", "gradient_sources"} <= found
    assert "op_table" not in found
