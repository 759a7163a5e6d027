"""The recipes for contributors name files that are there, and few of them each."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/contributing.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
][1:]
MOST_EDITED, MOST_OPENED = 3, 4


def paths(cell: str) -> list[str]:
    return re.findall(r"`((?:amp|docs|tests|convergence|models)/[\w./]*)`", cell)


def test_the_seven_changes_are_there() -> None:
    assert len(ROWS) == 7


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_recipe_names_files_that_are_there(row: list[str]) -> None:
    found = paths(" ".join(row))
    assert found
    for path in found:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_recipe_takes_few_files(row: list[str]) -> None:
    _, edited, read, tests = row
    assert 1 <= len(edited.split(";")) <= MOST_EDITED
    assert len(edited.split(";")) + len(paths(read)) <= MOST_OPENED
    assert paths(tests)
