"""The state of scalers survives checkpoints, in every order of making and restoring."""

import gc
import pickle

import pytest
import tensorflow as tf

from amp import loss_scaling
from amp.loss_scaling import DynamicLossScale, state

RULE = DynamicLossScale(initial=8.0, hysteresis=3)
VALUES = {
    "scale": 4.0,
    "good_steps": 7,
    "bad_steps": 2,
    "overflow": [1, 0],
    "left_out": [0, 1],
    "skipped_steps": 5,
}


@pytest.fixture
def group(monkeypatch):
    """Returns a maker of a process without scalers."""

    def fresh():
        gc.collect()
        monkeypatch.setattr(state, "_PROCESS", [])
        monkeypatch.setattr(state, "_SCALERS", type(state._SCALERS)())
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
    assert scalers.states == [first, second]
    assert scalers.scale is second.scale is second.value


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
        assert len(state._SCALERS) == 1
    assert scalers.states == []
    del w
    gc.collect()
    tf.compat.v1.reset_default_graph()
    gc.collect()
    assert len(state._SCALERS) == 0


def test_settings_pickle_with_every_field_off_default():
    rule = DynamicLossScale(4.0, 3, 4.0, 0.25, 2.0, 64.0, 5)
    default = DynamicLossScale()
    for name in DynamicLossScale.__slots__:
        assert getattr(rule, name) != getattr(default, name)
    assert pickle.loads(pickle.dumps(rule)) == rule


def test_public_names():
    assert sorted(loss_scaling.__all__) == [
        "ConstantLossScale",
        "DynamicLossScale",
        "NoLossScale",
        "current",
    ]


def test_skipped_steps_are_counted_when_their_variables_are_gone():
    before = state.skipped_steps()
    variable = tf.Variable(1.0)
    scaler = state.find(("job.py", 1), [variable], DynamicLossScale())
    scaler.skipped_steps.assign(3)
    assert state.skipped_steps() == before + 3
    del scaler, variable
    gc.collect()
    assert state.skipped_steps() == before + 3
