"""What a command line names is found and parsed, in each form it may have."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format

from amp.errors import GraphError
from amp.integration.files import named_files, targets


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tf.saved_model.save(tf.Module(), str(tmp_path / "model"))
    return tmp_path / "model"


def test_a_saved_model_is_found_by_directory_and_by_file(model: Path) -> None:
    saved = targets.read_model(model)
    assert targets.read_model(model / "saved_model.pb") == saved
    assert targets.read(model) == saved.meta_graphs[0].graph_def


def test_a_saved_model_in_text_is_the_same(model: Path) -> None:
    saved = targets.read_model(model)
    (model / "saved_model.pb").unlink()
    (model / "saved_model.pbtxt").write_text(text_format.MessageToString(saved))
    assert named_files.file_of_model(model) == model / "saved_model.pbtxt"
    assert targets.read_model(model) == saved


def test_tags_are_those_of_one_graph_in_any_order(model: Path) -> None:
    saved = targets.read_model(model)
    more = saved.meta_graphs.add()
    more.meta_info_def.tags.extend(["train", "gpu"])
    assert targets.meta_graph(saved, ["gpu", "train"], model) is more
    assert targets.meta_graph(saved, None, model) is saved.meta_graphs[0]
    with pytest.raises(GraphError, match="no graph has the tags 'gpu'") as caught:
        targets.meta_graph(saved, ["gpu"], model)
    assert caught.value.allowed == "serve; gpu,train"
