"""`amp rewrite`: how its arguments name tensors; what it writes is not tested here."""

from __future__ import annotations

import pytest

from amp import cli

pytestmark = pytest.mark.kernels

FORCED = ["--dtype", "bfloat16", "--emulate", "1", "--assignment", "all"]


@pytest.mark.parametrize(
    "fetches", [["--fetch", "product,y"], ["--fetch", "product", "--fetch", "y:0"]]
)
def test_tensors_are_named_one_by_one_or_with_commas(
    graph, fetches, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    command = ["rewrite", str(graph / "graph.pb"), "out.pb", *fetches, *FORCED]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.startswith("out.pb: 1 of 1 functions rewritten, ")
