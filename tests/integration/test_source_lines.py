"""`source_lines`: the user's own line of each node, as TensorFlow noted it."""

from __future__ import annotations

import gc
import inspect
import weakref
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

import amp
from amp.integration import source_lines
from amp.integration.process import PROCESS

ALL = {"dtype": "bfloat16", "assignment": "all", "strict": True}
v1 = tf.compat.v1


def line_of(text: str) -> str:
    """Where in this file a text stands first."""
    lines = Path(__file__).read_text().splitlines()
    found = next(number for number, line in enumerate(lines, 1) if text in line)
    return f"{__file__}:{found}"


@tf.function
def inner(x: tf.Tensor) -> tf.Tensor:
    return tf.tanh(x, name="turned")  # the inner line


@tf.function
def outer(x: tf.Tensor) -> tf.Tensor:
    y = inner(tf.matmul(x, x, name="product"))  # the outer line
    for _ in tf.range(2):
        y = tf.matmul(y, x, name="looped")  # the line in the loop
    return y


@pytest.mark.parametrize(
    ("node", "comment"),
    [
        ("product", "# the outer line"),
        ("turned", "# the inner line"),
        ("looped", "# the line in the loop"),
    ],
)
def test_a_function_is_explained_with_its_lines_inlined_or_called(
    node: str, comment: str
) -> None:
    report = amp.explain(outer, tf.ones([4, 4]), policy=amp.Policy(**ALL))
    (found,) = {one.source for one in report.decisions if one.node.endswith(node)}
    assert found == line_of(comment)
    assert report.source_text[found].endswith(comment)
    assert f"  source   {found}  " in report.explain(node)


def test_what_keras_builds_has_the_line_that_asked_for_it() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(4)])
    model.build([None, 4])
    fn = tf.function(lambda x: model(x))  # the model's line
    report = amp.explain(fn, tf.ones([4, 4]), policy=amp.Policy(**ALL))
    (product,) = (one for one in report.decisions if one.op == "MatMul")
    assert product.source == line_of("# the model's line")


def test_reports_look_lines_up_only_when_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    find = context_lib.Context.get_graph_debug_info

    def counted(self: Any, name: str) -> Any:
        asked.append(name)
        return find(self, name)

    monkeypatch.setattr(context_lib.Context, "get_graph_debug_info", counted)
    with amp.mixed_precision_scope(**ALL):
        outer(tf.ones([4, 4]))
    assert asked == []
    (report,) = amp.reports()
    assert asked
    assert {one.source for one in report.decisions if one.node == "product"} == {
        line_of("# the outer line")
    }


def test_a_function_that_is_gone_has_its_lines_in_its_file(tmp_path: Path) -> None:
    fn = tf.function(lambda x: tf.matmul(x, x))  # the line that goes
    with amp.mixed_precision_scope(**ALL, report=str(tmp_path)):
        fn(tf.ones([4, 4]))
    del fn
    gc.collect()
    (file,) = tmp_path.glob("*.json")
    written = amp.Report.from_json(file.read_text())
    assert line_of("# the line that goes") in written.source_text
    (report,) = amp.reports()
    assert report.source_text == written.source_text


def test_a_function_that_is_gone_without_a_file_has_none() -> None:
    fn = tf.function(lambda x: tf.matmul(x, x))
    with amp.mixed_precision_scope(**ALL):
        fn(tf.ones([4, 4]))
    del fn
    gc.collect()
    (report,) = amp.reports()
    assert report.decisions
    assert report.source_text == {}


def test_a_sessions_report_has_lines_and_keeps_no_graph_alive() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [4, 4], name="x")
        y = tf.matmul(x, x, name="product")  # the session's line
        with amp.mixed_precision_scope(**ALL), v1.Session() as session:
            session.run(y, {x: [[1.0] * 4] * 4})
    (report,) = amp.reports()
    found = {one.source for one in report.decisions if one.node == "product"}
    assert found == {line_of("# the session's line")}
    assert PROCESS.report_lines
    gone = weakref.ref(graph)
    del graph, session, x, y
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ([("/home/me/train.py", 3), (tf.__file__, 5)], "/home/me/train.py:3"),
        ([("/home/me/train.py", 3), ("/home/me/net.py", 9)], "/home/me/net.py:9"),
        ([("/x/site-packages/keras/src/layer.py", 1)], ""),
        ([("/x/site-packages/tf_keras/src/layer.py", 1)], ""),
        ([(inspect.getfile(weakref), 1)], ""),
        ([("<ipython-input-3-0a1b>", 3), (tf.__file__, 5)], "<ipython-input-3-0a1b>:3"),
        (
            [("/x/site-packages/zoo/net.py", 2), (inspect.getfile(amp), 1)],
            "/x/site-packages/zoo/net.py:2",
        ),
        (
            [("/home/me/train.py", 3), ("/x/site-packages/zoo/net.py", 2)],
            "/home/me/train.py:3",
        ),
        ([("/home/me/train.py", 3), ("<string>", 74)], "/home/me/train.py:3"),
        ([("<stdin>", 1), (tf.__file__, 5)], "<stdin>:1"),
        ([], ""),
    ],
)
def test_the_innermost_line_that_is_the_users_own_counts(
    frames: list[tuple[str, int]], line: str
) -> None:
    assert source_lines.of_frames(frames) == line
