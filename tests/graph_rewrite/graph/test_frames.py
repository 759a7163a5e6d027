"""Frames, loop variables and branches are read as TensorFlow's executor runs them."""

from __future__ import annotations

from collections.abc import Callable

import frames as built
import pytest
import tensorflow as tf
from rewriting import graph_def, module_of, v1

from amp.graph_rewrite.graph import frames, ir


def graph_of(build: Callable[[], object]) -> ir.Graph:
    return module_of(built.proto(build)).main


def test_a_graph_without_loops_has_no_frames() -> None:
    graph = module_of(graph_def(lambda: v1.placeholder(tf.float32, [2]))).main
    assert not frames.frames(graph)
    assert frames.loop_variables(graph) == ()


def test_a_frame_begins_with_its_enters_and_ends_with_its_exits() -> None:
    graph = graph_of(built.nested_loops)
    within = frames.frames(graph)
    inner = {name: frame for name, frame in within.items() if len(frame) == 2}
    assert {frame[0] for frame in within.values()} == {"outer/while_context"}
    assert {frame[1] for frame in inner.values()} == {"outer/inner/while_context"}
    assert within["outer/inner/product"] == inner["outer/inner/Enter"]
    for name, node in graph.nodes.items():
        depths = [len(within.get(source, ())) for source, _ in node.inputs]
        change = {"Enter": 1, "Exit": -1}.get(node.op, 0)
        assert {depth + change for depth in depths} <= {len(within.get(name, ()))}


def test_a_loop_variable_is_all_that_hands_its_value_on() -> None:
    graph = graph_of(built.state_loop)
    counter, state = frames.loop_variables(graph)
    assert counter.tested
    assert not state.tested
    ops = [graph.nodes[name].op for name in state.nodes]
    assert ops == ["Enter", "Merge", "NextIteration", "Switch", "Exit"]
    assert graph.nodes[state.back].inputs == (("loop/relu", 0),)


def raw_loop(switch: bool = True, shared: bool = False, copied: bool = False) -> None:
    """A loop built by hand.

    Args:
      switch: whether a Switch takes the value of a trip.
      shared: whether the body reads what enters the loop.
      copied: whether a copy is made before the value leaves the loop.
    """
    raw = tf.raw_ops
    x = v1.placeholder(tf.float32, [2], name="x")
    enter = raw.Enter(data=x, frame_name="frame", name="enter")
    merge, _ = raw.Merge(inputs=[enter, enter], name="merge")
    go = raw.LoopCond(input=tf.reduce_sum(merge) < 3.0)
    out, value = raw.Switch(data=merge if switch else enter, pred=go)
    back = raw.NextIteration(data=value + enter if shared else value + 1.0)
    merge.op._update_input(1, back)
    raw.Exit(data=tf.identity(out) if copied else out)


def test_a_loop_built_by_hand_is_one_too() -> None:
    (variable,) = frames.loop_variables(module_of(graph_def(raw_loop)).main)
    assert variable.merge == "merge"
    assert variable.frame == ("frame",)


def test_copies_on_the_way_out_belong_to_it_as_in_gradients() -> None:
    graph = module_of(graph_def(lambda: raw_loop(copied=True))).main
    (variable,) = frames.loop_variables(graph)
    assert [graph.nodes[n].op for n in variable.exits] == ["Identity", "Exit"]


@pytest.mark.parametrize("strange", [{"switch": False}, {"shared": True}], ids=str)
def test_what_is_not_built_as_tensorflow_builds_it_is_no_variable(
    strange: dict[str, bool],
) -> None:
    graph = module_of(graph_def(lambda: raw_loop(**strange))).main
    assert frames.frames(graph)
    assert frames.loop_variables(graph) == ()


def test_conditions_are_those_of_the_branches_up_to_their_merge() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [2], name="x")
        flag = v1.placeholder(tf.bool, [], name="flag")
        other = v1.placeholder(tf.bool, [], name="other")

        def inner() -> tf.Tensor:
            return tf.cond(other, lambda: tf.exp(x, name="deep"), lambda: x)

        y = tf.cond(flag, lambda: tf.tanh(inner(), name="yes"), lambda: tf.exp(x))
        tf.exp(y, name="after")

    graph = graph_of(build)
    branches = frames.Branches(graph)
    ((_, value),) = branches.of(("cond/yes", 0))
    assert value == 1
    assert len(branches.of(("cond/cond/deep", 0))) == 2
    assert {value for _, value in branches.of(("cond/Exp", 0))} == {0}
    assert not branches.of(("after", 0))
    assert not branches.of(("x", 0))
    sometimes = frames.not_every_run(graph)
    assert {"cond/yes", "cond/cond/deep", "cond/Exp", "cond/cond/Merge"} <= sometimes
    assert not sometimes & {"x", "after", "cond/Merge"}


def test_what_a_loop_gives_is_there_in_every_run() -> None:
    sometimes = frames.not_every_run(graph_of(built.state_loop))
    assert "loop/relu" in sometimes
    assert "last" not in sometimes


def test_what_a_switch_of_a_reference_gives_is_not_there_in_every_run() -> None:
    def build() -> None:
        v = v1.get_variable("v", [2], use_resource=False)
        flag = v1.placeholder(tf.bool, [], name="flag")
        no, yes = tf.raw_ops.RefSwitch(data=v._variable, pred=flag)
        tf.raw_ops.Merge(inputs=[tf.tanh(no, name="no"), tf.exp(yes, name="yes")])

    assert {"no", "yes"} <= frames.not_every_run(graph_of(build))


def test_what_a_loop_in_a_branch_gives_has_the_conditions_of_the_branch() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [2], name="x")
        flag = v1.placeholder(tf.bool, [], name="flag")

        def looped() -> tf.Tensor:
            begin = [tf.constant(0), x]
            body = lambda i, y: (i + 1, tf.tanh(y))  # noqa: E731
            return tf.while_loop(lambda i, _: i < 3, body, begin)[1]

        tf.cond(flag, looped, lambda: x, name="branch")

    graph = graph_of(build)
    branches = frames.Branches(graph)
    exits = [name for name, node in graph.nodes.items() if node.op == "Exit"]
    (of_data,) = [name for name in exits if "_1" in name]
    assert branches.of((of_data, 0))
