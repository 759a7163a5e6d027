"""What a command line names is found, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp.errors import GraphError
from amp.integration.files import named_files


def test_a_saved_model_is_a_directory_or_the_file_in_it(tmp_path: Path) -> None:
    assert named_files.is_saved_model(tmp_path)
    assert not named_files.holds_model(tmp_path)
    with pytest.raises(GraphError, match="there is no such file"):
        named_files.file_of_model(tmp_path)
    for name in named_files.MODELS:
        (tmp_path / name).touch()
        assert named_files.is_saved_model(tmp_path / name)
        assert named_files.file_of_model(tmp_path / name) == tmp_path / name
    assert named_files.holds_model(tmp_path)
    assert not named_files.is_saved_model(tmp_path / "graph.pb")


@pytest.mark.parametrize("name", ["b.json", "b.html"])
def test_a_report_where_a_graph_is_wanted_says_what_reads_it(
    tmp_path: Path, name: str
) -> None:
    for one in ("a.json", "b.json", "b.html"):
        (tmp_path / one).touch()
    with pytest.raises(GraphError, match="this is a report") as caught:
        named_files.file_of_graph(tmp_path / name)
    assert f"`amp explain {tmp_path / 'b.json'}`" in str(caught.value)
    with pytest.raises(GraphError, match="this directory holds reports") as caught:
        named_files.file_of_graph(tmp_path)
    assert f"`amp explain {tmp_path / 'b.json'}`" in str(caught.value)
    (tmp_path / "saved_model.pb").touch()
    assert named_files.file_of_graph(tmp_path) == tmp_path / "saved_model.pb"


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert named_files.require(tmp_path) == tmp_path
    with pytest.raises(GraphError, match="there is no such file"):
        named_files.require(tmp_path / "graph.pb")
