"""Libraries of custom ops are loaded, or refused with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from amp.errors import GraphError
from amp.integration.files import op_libraries


def test_libraries_are_loaded_by_their_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system would look for a bare name in its own directories."""
    monkeypatch.chdir(tmp_path)
    Path("ops.so").touch()
    loaded: list[str] = []
    monkeypatch.setattr(tf, "load_op_library", loaded.append)
    op_libraries.load([Path("ops.so"), Path("ops.so")])
    assert loaded == [str(tmp_path / "ops.so")] * 2


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="there is no such file"):
        op_libraries.load([tmp_path / "ops.so"])
    (tmp_path / "ops.so").write_bytes(b"no library")
    with pytest.raises(GraphError, match="this library cannot be loaded") as raised:
        op_libraries.load([tmp_path / "ops.so"])
    assert f"build it for TensorFlow {tf.__version__}" in str(raised.value)
