"""Users read, set and reset a scale, and take its state to another process."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from amp import loss_scaling
from amp.errors import CheckpointError, LossScaleError
from amp.loss_scaling import ConstantLossScale, DynamicLossScale, state
from amp.loss_scaling.process import SCALING

v1 = tf.compat.v1
RULE = DynamicLossScale(initial=8.0, growth_interval=3, hysteresis=2, maximum=64.0)
STATE = {"scale": 4.0, "good_steps": 2, "bad_steps": 1, "skipped_steps": 5}
FIRST = {"scale": 8.0, "good_steps": 0, "bad_steps": 0, "skipped_steps": 0}


@pytest.fixture(autouse=True)
def _process():
    gc.collect()
    SCALING.reset()
    yield
    SCALING.reset()


@pytest.fixture
def kernel():
    return tf.Variable(1.0, name="kernel")


def made(variable, line=7, rule=RULE):
    return state.find(("train.py", line), [variable], rule)


@contextlib.contextmanager
def session_scaler():
    """A scaler of a session graph that is finalized, and a session."""
    with tf.Graph().as_default() as graph:
        scaler = made(v1.get_variable("kernel", []))
        step = scaler.step(v1.placeholder_with_default(True, [], name="finite"))
        graph.finalize()
        with v1.Session() as session:
            yield scaler, session, step


def test_the_state_is_python_numbers_that_json_keeps(kernel):
    scaler = made(kernel)
    scaler.load_state_dict(STATE)
    found = scaler.state_dict()
    assert found == STATE == json.loads(json.dumps(found))
    assert [type(value) for value in found.values()] == [float, int, int, int]


def test_a_scale_that_is_set_counts_anew_and_keeps_the_skipped(kernel):
    scaler = made(kernel)
    scaler.load_state_dict(STATE)
    scaler.stalled.assign(9)
    scaler.set_scale(32)
    assert scaler.state_dict() == {**FIRST, "scale": 32.0, "skipped_steps": 5}
    assert int(scaler.stalled) == 0
    scaler.reset()
    assert scaler.state_dict() == {**FIRST, "skipped_steps": 5}


@pytest.mark.parametrize(
    "scale", [2.0**-15, 65.0, np.nan, 10**400, 0, -8, "8", None, True]
)
def test_a_scale_that_the_rule_never_has_is_refused(kernel, scale):
    scaler = made(kernel)
    with pytest.raises(LossScaleError, match="6.10352e-05 to 64") as error:
        scaler.set_scale(scale)
    assert "'kernel'" in error.value.found
    assert scaler.state_dict() == FIRST


def test_a_constant_scale_cannot_be_set_but_takes_counts(kernel):
    scaler = made(kernel, rule=ConstantLossScale(128.0))
    with pytest.raises(LossScaleError, match="128, as the rule says"):
        scaler.set_scale(64.0)
    scaler.load_state_dict(STATE)
    assert scaler.state_dict() == {**FIRST, "scale": 128.0, "skipped_steps": 5}


def test_a_loaded_scale_is_kept_in_the_bounds_of_the_rule(kernel):
    scaler = made(kernel)
    scaler.load_state_dict({**STATE, "scale": 2.0**20})
    assert scaler.state_dict() == {**STATE, "scale": 64.0}


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"scale": 4.0},
        {**STATE, "scale": True},
        {**STATE, "good_steps": 10**400},
        {**STATE, "more": 1},
        {**STATE, "scale": 0.0},
        {**STATE, "scale": np.inf},
        {**STATE, "good_steps": -1},
        {**STATE, "good_steps": 0.5},
        {**STATE, "scale": "4"},
        {**STATE, "scale": None},
        {**STATE, "scale": [4.0]},
        [4.0, 2, 1, 5],
    ],
)
def test_a_damaged_state_is_an_error_and_sets_nothing(kernel, damaged):
    scaler = made(kernel)
    with pytest.raises(CheckpointError, match="cannot be read"):
        scaler.load_state_dict(damaged)
    with pytest.raises(CheckpointError, match="'kernel'"):
        loss_scaling.current().load_state_dict({"kernel": damaged, "other": STATE})
    assert scaler.state_dict() == FIRST
    assert loss_scaling.current().state_dict() == {"kernel": FIRST}


def test_in_a_traced_function_nothing_is_read_or_set(kernel):
    scaler = made(kernel)
    for call in (scaler.reset, scaler.state_dict, lambda: scaler.set_scale(16.0)):
        with pytest.raises(LossScaleError, match="while a graph is built"):
            tf.function(call, autograph=False)()
    assert scaler.state_dict() == FIRST


def test_a_session_is_read_and_set_in_a_finalized_graph():
    with session_scaler() as (scaler, session, step):
        scaler.set_scale(16.0, session=session)
        assert session.run(scaler.value) == 16.0
        session.run(step)
        with session.as_default():
            assert scaler.state_dict() == {**FIRST, "scale": 16.0, "good_steps": 1}
            scaler.load_state_dict({**STATE, "scale": 2.0**20})
            assert scaler.state_dict() == {**STATE, "scale": 64.0}
            scaler.reset()
            assert scaler.state_dict() == {**FIRST, "skipped_steps": 5}


def test_without_a_session_there_is_an_error():
    with tf.Graph().as_default():
        scaler = made(v1.get_variable("kernel", []))
    for call in (scaler.reset, scaler.state_dict, lambda: scaler.set_scale(16.0)):
        with pytest.raises(LossScaleError, match="but no session"):
            call()


def test_states_go_by_name_and_wait_for_scalers_to_come(kernel):
    bias = tf.Variable(1.0, name="bias")
    states = {"bias": STATE, "kernel": {**STATE, "scale": 2.0}}
    loss_scaling.current().load_state_dict(states)
    assert loss_scaling.current().state_dict() == states
    first, second = made(kernel), made(bias)  # in another order
    assert first.state_dict() == states["kernel"]
    assert second.state_dict() == states["bias"]
    assert loss_scaling.current().state_dict() == states
    assert made(kernel, line=8).state_dict() == FIRST  # "kernel #2" had no state


def test_a_scaler_that_starts_afresh_while_states_wait_is_told_of(kernel, caplog):
    loss_scaling.current().load_state_dict({"bias": STATE})
    made(kernel)
    assert "'kernel' starts afresh" in caplog.text
    assert "'bias'" in caplog.text
    caplog.clear()


@pytest.mark.parametrize("states", [None, [STATE], {1: STATE}])
def test_states_that_are_none_are_refused(states):
    with pytest.raises(CheckpointError, match="as the states of scalers"):
        loss_scaling.current().load_state_dict(states)


def test_in_a_session_graph_every_state_has_its_scaler():
    with session_scaler() as (scaler, session, _):
        scalers = loss_scaling.current()
        scalers.load_state_dict({"kernel": STATE}, session)
        assert scalers.state_dict(session) == {"kernel": STATE}
        with pytest.raises(CheckpointError, match="does not have: bias"):
            scalers.load_state_dict({"bias": STATE}, session)
        assert scaler.name == "kernel"


PATH = """
import json, sys
import tensorflow as tf
import amp
rule = amp.loss_scaling.DynamicLossScale(initial=3.0, growth_interval=2, factor=1.7)
first, second = tf.Variable(tf.ones([2]), name="a"), tf.Variable(tf.ones([2]), name="b")
def step_of(variable):
    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable) * factor
        return tape.gradient(loss, variable)
    return step
one, two = step_of(first), step_of(second)
states, begin, end = json.loads(sys.argv[1])
if states:
    amp.loss_scaling.current().load_state_dict(states)
path = []
with amp.mixed_precision_scope(dtype="float16", emulate=True, loss_scale=rule):
    for i in range(begin, end):
        one(tf.constant(float("inf") if i % 5 == 2 else 1.0))
        two(tf.constant(float("inf") if i % 7 == 3 else 1.0))
        path.append(amp.loss_scaling.current().state_dict())
print(json.dumps(path))
"""


def path(*job):
    command = [sys.executable, "-c", PATH, json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.processes
def test_another_process_goes_on_with_the_same_path_bit_for_bit():
    whole = path(None, 0, 16)
    assert len({each["a"]["scale"] for each in whole}) > 3
    assert whole[8]["a"] != whole[8]["b"]
    assert path(whole[7], 8, 16) == whole[8:]
