"""`process`: one object holds the state of the process, and one call forgets it."""

from __future__ import annotations

import ast
import dataclasses
import gc
import itertools
import pathlib
import threading

import pytest

from amp.integration.process import Living, Process

ROOT = pathlib.Path(__file__).parents[2]
KEPT = {field.name for field in dataclasses.fields(Process) if field.metadata}
# Locks, what each thread has of its own, and the one object itself.
ALLOWED = ("Lock()", "Once()", "= Nesting()", "PROCESS = Process()")


def test_a_reset_forgets_all_but_what_must_be_kept() -> None:
    process = Process()
    marks = {field.name: object() for field in dataclasses.fields(process)}
    vars(process).update(marks)
    process.reset()
    assert {name for name, mark in marks.items() if vars(process)[name] is mark} == KEPT
    forgotten = {n: v for n, v in vars(process).items() if n not in KEPT}
    fresh = vars(Process())
    assert {type(v) for v in forgotten.values()} == {type(fresh[n]) for n in forgotten}


@pytest.mark.parametrize("name", [n for n in sorted(KEPT) if n.endswith("_numbers")])
def test_no_number_is_used_twice_after_a_reset(name: str) -> None:
    process = Process()
    before = list(itertools.islice(getattr(process, name), 3))
    process.reset()
    assert next(getattr(process, name)) not in before


class Held:
    """What can be held weakly."""


def test_what_lives_may_be_gone_through_while_another_thread_adds_to_it() -> None:
    living, held, done = Living(), [Held() for _ in range(20_000)], threading.Event()
    found: list[int] = []

    def goes_through() -> None:
        while not done.is_set():
            found.append(len(list(living)))

    reader = threading.Thread(target=goes_through)
    reader.start()
    for each in held:
        living.add(each)
    done.set()
    reader.join()
    assert found == sorted(found), "the reader met no error, and lost nothing"
    assert list(living) == held


def test_what_nobody_holds_lives_no_more() -> None:
    living, kept = Living(), Held()
    living.add(kept)
    living.add(kept)
    living.add(Held())
    gc.collect()
    assert list(living) == [kept]
    assert len(living) == 1


def test_no_two_objects_share_their_state() -> None:
    one, other = Process(), Process()
    one.reports[1] = one.settled["policy"] = "state"
    one.measuring.spent = 1.0
    assert not other.reports
    assert not other.settled
    assert other.measuring.spent == 0.0


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("amp/integration/**/*.py")), ids=lambda path: path.stem
)
def test_no_module_of_the_integration_has_variables_of_its_own(
    path: pathlib.Path,
) -> None:
    """Tables may be literals; what is empty at the start is there to be filled."""
    module = ast.parse(path.read_text())
    assert not [node for node in ast.walk(module) if isinstance(node, ast.Global)]
    assert not [
        ast.unparse(node)
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and _begins_empty(node.value)
        and not ast.unparse(node).endswith(ALLOWED)
    ]


def _begins_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return not value.args and not value.keywords
    return value is not None and ast.unparse(value) in ("{}", "[]")
