"""Functions of files: what is loaded, with which inputs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from amp.errors import GraphError
from amp.integration.comparing import saved_functions


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    place = tmp_path_factory.mktemp("functions")
    module = tf.Module()
    module.weights = tf.Variable(2.0 * tf.ones([3, 3]))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.float32, "x"),
            tf.TensorSpec([None, None], tf.int32, "ids"),
        ]
    )
    def serve(x, ids):
        return {"y": tf.matmul(x, module.weights) + tf.cast(ids[0, 0], tf.float32)}

    module.serve = serve
    tf.saved_model.save(module, str(place / "model"), signatures={"only": serve})
    tf.saved_model.save(module, str(place / "bare"), signatures={})
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 3], name="x")
        tf.matmul(x, tf.ones([3, 3]), name="y")
    tf.io.write_graph(graph, str(place), "graph.pb", as_text=False)
    with tf.Graph().as_default() as graph:
        tf.compat.v1.get_variable("w", [3, 3], use_resource=True).read_value()
    tf.io.write_graph(graph, str(place), "variable.pb", as_text=False)
    return place


def test_a_signature_is_called_by_name_with_its_values(saved):
    found = saved_functions.load(saved / "model", None, None)
    values, note = saved_functions.made_up(found)
    assert values["x"].shape == [8, 3]
    assert values["ids"].shape == [8, 32]
    assert set(np.unique(values["ids"])) <= {0, 1}
    assert "made up" in note
    again, _ = saved_functions.made_up(found)
    assert np.array_equal(values["x"], again["x"])
    result = found.function(**values)["y"]
    wanted = (
        2.0 * values["x"].numpy().sum(1, keepdims=True) + values["ids"][0, 0].numpy()
    )
    np.testing.assert_allclose(result, np.broadcast_to(wanted, [8, 3]), rtol=1e-5)


def test_of_a_graph_placeholders_are_fed_and_ends_fetched(saved):
    found = saved_functions.load(saved / "graph.pb", None, None)
    assert list(found.specs) == ["x"]
    (result,) = tf.nest.flatten(found.function(tf.ones([2, 3])))
    assert result.numpy().tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize("tags", [["serve"], ["serve", "gpu"], []])
def test_of_several_graphs_the_one_that_serves_is_loaded(tmp_path, tags):
    v1 = tf.compat.v1
    builder = v1.saved_model.Builder(str(tmp_path / "model"))
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [2, 3], name="x")
        w = v1.get_variable("w", [3, 3], initializer=v1.ones_initializer())
        predict = v1.saved_model.predict_signature_def
        signatures = {"serving_default": predict({"x": x}, {"y": tf.matmul(x, w)})}
        session.run(v1.global_variables_initializer())
        builder.add_meta_graph_and_variables(session, tags, signatures)
        builder.add_meta_graph(["train"], signatures)
        builder.save()
    found = saved_functions.load(tmp_path / "model", None, None)
    assert found.function(x=tf.ones([2, 3]))["y"].numpy().tolist() == [[3.0] * 3] * 2


@pytest.mark.parametrize(
    ("name", "signature", "found"),
    [
        ("model", "other", "there is no signature 'other'"),
        ("bare", None, "it has no signatures"),
        ("graph.pb", "only", "--signature was given"),
        ("variable.pb", None, "'w' has no value"),
        ("nowhere", None, "there is no such file"),
    ],
)
def test_what_cannot_be_run_is_refused(saved, name, signature, found):
    with pytest.raises(GraphError, match=found):
        saved_functions.load(saved / name, signature, None)


def test_inputs_come_from_a_file_by_name_in_their_types(saved, tmp_path):
    function = saved_functions.load(saved / "model", None, None)
    file = tmp_path / "inputs.npz"
    np.savez(file, x=np.ones([4, 3]), ids=np.zeros([1, 1], np.int64))
    found = saved_functions.inputs_from(file, function)
    assert {name: value.dtype for name, value in found.items()} == {
        "x": tf.float32,
        "ids": tf.int32,
    }
    np.savez(file, x=np.ones([4, 3]))
    with pytest.raises(GraphError, match="there is no input 'ids'"):
        saved_functions.inputs_from(file, function)
    file.write_text("nothing")
    with pytest.raises(GraphError, match="this is no .npz file"):
        saved_functions.inputs_from(file, function)


def test_a_single_input_may_have_any_name(saved, tmp_path):
    function = saved_functions.load(saved / "graph.pb", None, None)
    np.savez(tmp_path / "inputs.npz", np.ones([2, 3]))
    found = saved_functions.inputs_from(tmp_path / "inputs.npz", function)
    assert list(found) == ["x"]
