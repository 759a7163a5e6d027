"""The state of scalers survives checkpoints, in every order of making and restoring."""

import collections
import contextlib
import dataclasses
import gc
import pickle
import subprocess
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.util import object_identity

from amp import loss_scaling
from amp.loss_scaling import (
    ConstantLossScale,
    DynamicLossScale,
    placement,
    scaler,
    stalls,
    state,
    traced_updates,
)
from amp.loss_scaling.process import SCALING

RULE = DynamicLossScale(initial=8.0, hysteresis=3)
VALUES = {
    "scale": 4.0,
    "good_steps": 7,
    "bad_steps": 2,
    "skipped_steps": 5,
}
FLAGS = ("overflow", "left_out")


@pytest.fixture
def group():
    """Returns a maker of a process without scalers."""

    def fresh():
        gc.collect()
        SCALING.reset()
        return loss_scaling.current()

    return fresh


def scaler_of(variables, line=1):
    return state.find(("here.py", line), variables, RULE)


def values(scaler):
    return {name: getattr(scaler, name).numpy().tolist() for name in VALUES}


def set_off_default(scaler):
    for name, value in VALUES.items():
        default = getattr(scaler, name).numpy().tolist()
        assert default != value
        getattr(scaler, name).assign(value)


def saved(group, tmp_path, sources):
    scalers = group()
    set_off_default(scaler_of(sources))
    checkpoint = tf.train.Checkpoint(loss_scale=scalers)
    return checkpoint.save(str(tmp_path / "state"))


@pytest.fixture
def sources():
    return [tf.Variable(1.0), tf.Variable(2.0)]


def test_every_field_is_restored(group, tmp_path, sources):
    path = saved(group, tmp_path, sources)
    scalers = group()
    scaler = scaler_of(sources)
    assert values(scaler) != VALUES
    status = tf.train.Checkpoint(loss_scale=scalers).restore(path)
    status.assert_consumed()
    assert values(scaler) == VALUES


def test_a_save_in_the_background_holds_the_values_of_its_step(
    group, tmp_path, sources, caplog
):
    scalers, options = group(), tf.train.CheckpointOptions()
    options.experimental_enable_async_checkpoint = True
    scaler = scaler_of(sources)
    checkpoint = tf.train.Checkpoint(loss_scale=scalers)
    saved_as = checkpoint.save(str(tmp_path / "state"), options)
    set_off_default(scaler)
    saved_later = checkpoint.save(str(tmp_path / "state"), options)
    checkpoint.sync()
    assert not [record for record in caplog.records if "skipped due" in record.message]
    scaler.reset()
    again = tf.train.Checkpoint(loss_scale=scalers)
    again.restore(saved_later).assert_consumed()
    assert values(scaler) == VALUES
    again.restore(saved_as).assert_consumed()
    assert values(scaler)["scale"] == RULE.initial


def test_a_copy_for_the_background_stays_until_the_next(group, sources):
    group()
    scaler, copies = scaler_of(sources), object_identity.ObjectIdentityDictionary()
    entries = scaler._trackable_children()
    # TensorFlow calls it once outside of a function, and in one for each save.
    copy = tf.function(
        lambda: [e._copy_trackable_to_cpu(copies) for e in entries.values()] and None
    )
    copy.python_function()

    def kept():
        read = {n: copies[e]._serialize_to_tensors() for n, e in entries.items()}
        return {name: each["VARIABLE_VALUE"].numpy() for name, each in read.items()}

    before = values(scaler)
    set_off_default(scaler)
    assert kept() == before
    copy()
    assert kept() == VALUES


def earlier(tmp_path, scale=4.0, flags=3):
    """What the first version saved: every variable, counts and flags as int32."""
    module, scaler = tf.Module(), tf.Module()
    module.scaler_0, scaler.scale = scaler, tf.Variable(scale)
    scaler.good_steps, scaler.bad_steps = tf.Variable(7), tf.Variable(2)
    scaler.skipped_steps = tf.Variable(5, dtype=tf.int64)
    scaler.overflow = tf.Variable(tf.ones([flags], tf.int32))
    scaler.left_out = tf.Variable(tf.ones([flags], tf.int32))
    return tf.train.Checkpoint(loss_scale=module).save(str(tmp_path / "earlier"))


@pytest.mark.parametrize("made", ["before", "after"])
def test_a_checkpoint_with_flags_of_other_variables_restores(
    group, tmp_path, sources, made
):
    path, scalers = earlier(tmp_path), group()
    checkpoint = tf.train.Checkpoint(loss_scale=scalers)
    if made == "before":
        scaler_of(sources).overflow.assign([1, 1])
        status = checkpoint.restore(path)
    else:
        status = checkpoint.restore(path)
        scaler_of(sources)
    status.assert_consumed()
    assert values(scaler_of(sources)) == VALUES
    for name in FLAGS:
        assert getattr(scaler_of(sources), name).numpy().tolist() == [0, 0]


def test_flags_of_single_variables_are_not_saved(group, tmp_path, sources):
    names = [
        name for name, _ in tf.train.list_variables(saved(group, tmp_path, sources))
    ]
    assert not [name for name in names if any(flag in name for flag in FLAGS)]
    assert sum("/scaler_0/" in name for name in names) == len(VALUES)


def test_files_hold_the_dtypes_that_they_always_had(group, tmp_path, sources):
    reader = tf.train.load_checkpoint(saved(group, tmp_path, sources))
    place = "loss_scale/scaler_0/{}/.ATTRIBUTES/VARIABLE_VALUE"
    dtypes = reader.get_variable_to_dtype_map()
    found = {name: dtypes[place.format(name)] for name in VALUES}
    assert found == {
        "scale": tf.float32,
        "good_steps": tf.int32,
        "bad_steps": tf.int32,
        "skipped_steps": tf.int64,
    }


@pytest.mark.parametrize(
    ("stored", "restored"),
    [
        (2.0**60, RULE.maximum),
        (2.0**-60, RULE.minimum),
        (np.nan, RULE.initial),
        (np.inf, RULE.initial),
        ([4.0, 4.0], RULE.initial),
    ],
)
def test_a_restored_scale_fits_the_rule(group, tmp_path, sources, stored, restored):
    path, scalers = earlier(tmp_path, stored), group()
    scaler = scaler_of(sources)
    tf.train.Checkpoint(loss_scale=scalers).restore(path).assert_consumed()
    assert values(scaler) == {**VALUES, "scale": restored}


def test_a_restored_scale_begins_a_tally_anew(group, sources):
    group()
    scaler = scaler_of(sources)
    scaler.tally.assign([5, 3, 0])
    scaler.restore("scale", tf.constant(4.0))
    assert scaler.tally.numpy().tolist() == [0, 0, 0]


def test_a_rule_that_does_not_move_keeps_its_scale(group, tmp_path, sources):
    path, scalers = earlier(tmp_path), group()
    scaler = state.find(("here.py", 1), sources, ConstantLossScale(64.0))
    tf.train.Checkpoint(loss_scale=scalers).restore(path).assert_consumed()
    assert (scaler.scale.numpy(), scaler.skipped_steps.numpy()) == (64.0, 5)


def test_no_variable_is_one_that_tensorflow_keeps_on_the_host(group, sources):
    group()
    dtypes = {v.dtype for v in scaler_of(sources).variables}
    assert dtypes == {tf.float32, tf.int64}


_DEVICES = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
from amp.loss_scaling import DynamicLossScale, state
with tf.device("CPU:1"):
    v = tf.Variable(1.0)
with tf.device("CPU:0"):
    find = lambda: state.find(("here.py", 1), [v], DynamicLossScale())
    tf.function(lambda: find().factor()).get_concrete_function()
for scaler in (find(), state.find(("here.py", 2), [v], DynamicLossScale())):
    print(sorted({(w.device, w.value().device) for w in scaler.variables}))
"""


def test_a_scaler_stands_on_the_device_of_what_it_serves():
    done = subprocess.run(
        [sys.executable, "-c", _DEVICES], capture_output=True, text=True, timeout=300
    )
    device = "/job:localhost/replica:0/task:0/device:CPU:1"
    assert done.stdout.split("\n")[:2] == [str([(device, device)])] * 2, done.stderr


@pytest.mark.parametrize("traced", [False, True])
def test_a_scaler_made_after_restoring_is_restored(group, tmp_path, sources, traced):
    path = saved(group, tmp_path, sources)
    checkpoint = tf.train.Checkpoint(loss_scale=group())
    status = checkpoint.restore(path)
    if traced:
        tf.function(lambda: scaler_of(sources).factor()).get_concrete_function()
    scaler = scaler_of(sources)
    assert values(scaler) == VALUES
    status.assert_consumed()


def test_checkpoints_with_and_without_the_state_mix(group, tmp_path, sources):
    plain = tf.train.Checkpoint(model=sources[0]).save(str(tmp_path / "plain"))
    scalers = group()
    scaler = scaler_of(sources)
    both = tf.train.Checkpoint(model=sources[0], loss_scale=scalers)
    both.restore(plain)
    assert scaler.scale.numpy() == RULE.initial
    full = both.save(str(tmp_path / "full"))
    sources[0].assign(9.0)
    tf.train.Checkpoint(model=sources[0]).restore(full).expect_partial()
    assert sources[0].numpy() == 1.0


def test_numbers_are_reused_when_a_model_goes(group, sources):
    scalers = group()
    for _ in range(3):
        passing = tf.Variable(1.0)
        scaler = scaler_of([passing])
        assert scaler.scale.name == "amp_loss_scale_0/scale:0"
        assert scalers.states == [scaler]
        del passing, scaler
        assert scalers.states == []
    first = scaler_of(sources)
    second = scaler_of(sources, line=2)
    assert scalers.scalers == [first, second]
    assert scalers.states == scalers.scalers  # the older name
    assert scalers.scale is second.scale is second.value


def by_hand(variables):
    return loss_scaling.scaler_for(variables, RULE)


def test_a_scaler_by_hand_stays_while_one_of_its_variables_does(group):
    scalers = group()
    body, head = tf.Variable(1.0), tf.Variable(2.0)
    first = by_hand([body, head])
    other = scaler_of([body])
    del head
    gc.collect()
    assert scalers.scalers == [first, other]
    assert state.serving([body]) == [(first, [0]), (other, [0])]
    heads = [tf.Variable(2.0) for _ in range(9)]  # one may have its identity
    later = [by_hand([body, each]) for each in heads]
    for each, of in zip(later, heads, strict=True):
        assert each.positions([body, of]) == [0, 1]
    del each, of
    later.clear()
    heads.clear()
    gc.collect()
    assert len(scalers.scalers) == len(SCALING.scalers) == 11
    del body
    gc.collect()
    assert scalers.scalers == []
    assert len(SCALING.scalers) == 0


def test_a_scaler_that_no_call_finds_any_more_goes(group):
    scalers = group()
    body, head = tf.Variable(1.0), tf.Variable(2.0)
    scaler_of([body, head])
    del head
    gc.collect()
    assert scalers.scalers == []


def test_the_same_call_finds_the_same_scaler(group, sources):
    group()
    assert scaler_of(sources) is scaler_of(sources)
    assert scaler_of(sources, line=2) is not scaler_of(sources)
    assert scaler_of(sources[:1]) is not scaler_of(sources)
    other = state.find(("here.py", 1), sources, DynamicLossScale())
    assert other is not scaler_of(sources)


def test_scalers_are_found_by_their_variables(group, sources):
    group()
    scaler = scaler_of(sources)
    assert state.serving(sources[1:]) == [(scaler, [1])]
    assert state.serving([tf.Variable(1.0)]) == []


def test_the_scale_is_a_number_with_and_without_scalers(group, sources):
    scalers = group()
    assert float(scalers.scale.numpy()) == 1.0
    scaler_of(sources)
    assert float(scalers.scale) == 8.0
    assert loss_scaling.current() is scalers


def test_a_graph_has_its_own_scalers_and_takes_them_along(group):
    scalers = group()
    with tf.Graph().as_default():
        w = tf.Variable(1.0)
        scaler_of([w])
        assert len(loss_scaling.current().states) == 1
        assert len(SCALING.scalers) == 1
    assert scalers.states == []
    del w
    gc.collect()
    tf.compat.v1.reset_default_graph()
    gc.collect()
    assert len(SCALING.scalers) == 0


def test_settings_pickle_with_every_field_off_default():
    rule = DynamicLossScale(4.0, 3, 4.0, 0.25, 2.0, 64.0, 5, "nan")
    default = DynamicLossScale()
    for name in DynamicLossScale.__slots__:
        assert getattr(rule, name) != getattr(default, name)
    assert pickle.loads(pickle.dumps(rule)) == rule


def test_skipped_steps_are_counted_when_their_variables_are_gone():
    before = state.skipped_steps()
    variable = tf.Variable(1.0)
    scaler = state.find(("job.py", 1), [variable], DynamicLossScale())
    scaler.skipped_steps.assign(3)
    assert state.skipped_steps() == before + 3
    del scaler, variable
    gc.collect()
    assert state.skipped_steps() == before + 3


def test_another_thread_may_let_the_last_scaler_go_first(group, monkeypatch):
    class Gone(collections.deque):
        def __bool__(self):
            return True

    scalers = group()
    monkeypatch.setattr(SCALING, "gone", Gone())
    assert scalers.scalers == []


def test_a_scaler_goes_though_its_device_cannot_be_read(group, monkeypatch):
    scalers = group()
    variable = tf.Variable(1.0)
    state.find(("job.py", 1), [variable], DynamicLossScale())

    def copies(scaler, field):
        raise tf.errors.InternalError(None, None, "the device is gone")

    monkeypatch.setattr(scaler.Scaler, "copies", copies)
    del variable
    gc.collect()
    assert scalers.scalers == []
    assert state.skipped_steps() == 0
    assert scalers.next_number() == 0


@pytest.mark.parametrize("failing", ["watch", "made"])
def test_a_scaler_goes_with_its_variables_though_making_it_ended_in_an_error(
    group, monkeypatch, failing
):
    scalers = group()
    variable = tf.Variable(1.0)
    place = {"watch": stalls, "made": traced_updates}[failing]
    monkeypatch.setattr(place, failing, lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        state.find(("job.py", 1), [variable], DynamicLossScale())
    del variable
    gc.collect()
    assert scalers.scalers == []


def test_a_scaler_that_is_gone_leaves_no_variable():
    left = []
    for _ in range(3):
        variable = tf.Variable(1.0)
        scaler = state.find(("job.py", 1), [variable], DynamicLossScale())
        left += [weakref.ref(v) for v in scaler.variables]
        del scaler, variable
        gc.collect()
        state.skipped_steps()
        gc.collect()
    assert [reference() for reference in left if reference() is not None] == []


@dataclasses.dataclass(frozen=True)
class AddsOne:
    """A rule that no other code names: the scale grows by 1 at every finite call."""

    initial: float = 4.0
    bounds: tuple[float, float] = (1.0, 6.0)
    on_overflow: str = "zeros"

    def step(self, before, finite, where):
        grown = where(
            before.scale + 1.0 > 6.0, before.scale * 0 + 6.0, before.scale + 1
        )
        return before._replace(scale=where(finite, grown, before.scale * 0 + 1.0))


def test_any_rule_moves_its_scale_and_bounds_what_is_restored(group, sources):
    group()
    scaler = state.find(("here.py", 1), sources, AddsOne())
    scales = []
    for finite in (True, True, True, False, True):
        scaler.step(tf.constant(finite))
        scales.append(float(scaler.factor()))
    assert scales == [5.0, 6.0, 6.0, 1.0, 2.0]
    scaler.restore("scale", tf.constant(64.0))
    assert float(scaler.factor()) == 6.0


@pytest.mark.parametrize(
    "call",
    [
        lambda variables: scaler_of(variables, line=2),
        state.serving,
        state.kept,
        lambda variables: state.skipped_steps(),
    ],
    ids=["find", "serving", "kept", "skipped_steps"],
)
def test_no_thread_waits_while_another_waits_for_workers(
    group, sources, call, monkeypatch
):
    """A worker that has more to prepare may take minutes."""
    several = types.SimpleNamespace(scope=contextlib.nullcontext)
    monkeypatch.setattr(placement, "replicas", lambda: several)
    group()
    others, hangs = [tf.Variable(3.0)], []

    def same(rule):
        thread = threading.Thread(target=call, args=(others,), daemon=True)
        thread.start()
        thread.join(60)  # only a thread that hangs takes so long
        hangs.append(thread.is_alive())

    place = placement.ScalerSite(same=same)
    state.find(("here.py", 1), sources, RULE, place)
    assert hangs == [False]


def test_scalers_that_are_made_at_once_have_numbers_of_their_own(
    group, sources, monkeypatch
):
    scalers, others, made = group(), [tf.Variable(3.0)], []

    def make(*arguments):
        monkeypatch.undo()
        made.append(scaler_of(others, line=2))
        return scaler.Scaler(*arguments)

    monkeypatch.setattr(state, "Scaler", make)
    made.append(scaler_of(sources))
    assert [scalers.scaler_1, scalers.scaler_0] == made


def test_a_scaler_that_cannot_be_made_leaves_its_number(group, sources, monkeypatch):
    scalers = group()
    monkeypatch.setattr(state, "Scaler", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scaler_of(sources)
    monkeypatch.undo()
    made = scaler_of(sources)
    assert scalers.scalers == [scalers.scaler_0] == [made]


@pytest.mark.parametrize("seconds", [0.0, 0.1])
@pytest.mark.parametrize("control_flow", ["v1", "v2"])
def test_trips_of_a_loop_that_run_at_once_do_not_undo_an_overflow(
    control_flow, seconds
):
    """Trips without one that end with it, or later, keep what it made of the scale."""

    def late(finite):
        time.sleep(seconds * bool(finite))
        return finite

    def trip(finite):
        finite = tf.ensure_shape(tf.numpy_function(late, [finite], tf.bool), [])
        with tf.control_dependencies([found.step(finite)]):
            return tf.identity(finite)

    if control_flow == "v1":
        tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            weight = tf.compat.v1.get_variable("w", initializer=1.0)
            rule = DynamicLossScale(initial=2.0**8)
            found = state.find(("here.py", 1), [weight], rule)
            trips = tf.map_fn(trip, tf.constant([True, False, *[True] * 6]))
            session.run(tf.compat.v1.global_variables_initializer())
            seen = []
            for _ in range(5):
                session.run(trips)
                seen.append(session.run(found.value))
    finally:
        tf.compat.v1.enable_control_flow_v2()
    assert seen == [128.0, 64.0, 32.0, 16.0, 8.0]
