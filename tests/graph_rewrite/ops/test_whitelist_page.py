"""docs/whitelist.md is what the op table says, and has every op of it."""

from __future__ import annotations

import importlib.util
import pathlib
from types import ModuleType

import pytest

from amp.graph_rewrite.ops.op_table import TABLE

DOCS = pathlib.Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("whitelist", DOCS / "whitelist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(program: ModuleType) -> None:
    """If it is not: python docs/whitelist.py."""
    assert program.PAGE.read_text() == program.page()


def test_every_op_of_the_white_list_is_on_the_page_once(program: ModuleType) -> None:
    text = program.page()
    for op, row in TABLE.items():
        assert text.count(f"`{op}`") == 1, op
        assert row.why in text


def test_what_is_not_on_the_white_list_is_not_on_the_page(program: ModuleType) -> None:
    assert "`Cast`" not in program.page()
