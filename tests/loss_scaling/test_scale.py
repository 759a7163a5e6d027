"""The rules of loss scaling: settings, and one step against a reading of the law."""

import math
import pickle

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

import amp
from amp import loss_scaling
from amp.errors import PolicyError
from amp.loss_scaling import ConstantLossScale, DynamicLossScale, NoLossScale
from amp.loss_scaling.scale import LARGEST, RULES, ScaleState
from amp.loss_scaling.scale_text import ALLOWED, parse

POWERS = st.integers(-8, 24).map(lambda e: 2.0**e)


@st.composite
def settings(draw):
    low, initial, high = sorted(draw(st.tuples(POWERS, POWERS, POWERS)))
    return DynamicLossScale(
        initial=initial,
        growth_interval=draw(st.integers(1, 4)),
        factor=draw(st.sampled_from((1.5, 2.0, 4.0))),
        backoff=draw(st.sampled_from((0.25, 0.5, 0.75))),
        minimum=low,
        maximum=high,
        hysteresis=draw(st.integers(1, 3)),
    )


def reference(rule, scale, good, bad, finite):
    """The law of DynamicLossScale as branches."""
    if finite:
        good, bad = good + 1, 0
        if good == rule.growth_interval:
            scale, good = min(scale * rule.factor, rule.maximum), 0
    else:
        good, bad = 0, bad + 1
        if bad == rule.hysteresis:
            scale, bad = max(scale * rule.backoff, rule.minimum), 0
    return scale, good, bad


def choose(condition, yes, no):
    return yes if condition else no


def zero(kind, rule):
    if kind is None:
        return ScaleState(rule.initial, 0, 0)
    return ScaleState(
        kind(rule.initial, np.float32), kind(0, np.int32), kind(0, np.int32)
    )


@hypothesis.given(settings(), st.lists(st.booleans(), max_size=30))
@hypothesis.settings(deadline=None)
def test_dynamic_step_follows_its_law(rule, history):
    state = zero(None, rule)
    expected = tuple(state)
    for finite in history:
        state = rule.step(state, finite, choose)
        expected = reference(rule, *expected, finite)
        assert tuple(state) == expected
        assert rule.bounds[0] <= state.scale <= rule.bounds[1]


@hypothesis.given(settings(), st.lists(st.booleans(), max_size=8))
@hypothesis.settings(deadline=None, max_examples=25)
def test_python_numpy_and_tensorflow_agree(rule, history):
    plain, array, tensor = (
        zero(None, rule),
        zero(np.array, rule),
        zero(tf.constant, rule),
    )
    for finite in history:
        plain = rule.step(plain, finite, choose)
        array = rule.step(array, np.array(finite), np.where)
        tensor = rule.step(tensor, tf.constant(finite), tf.where)
        # Each factor is exact in float32 for these few steps, so nothing rounds.
        assert [float(x) for x in plain] == [float(x) for x in array]
        assert [float(x) for x in array] == [float(x) for x in tensor]
        assert [x.dtype for x in tensor] == [tf.float32, tf.int32, tf.int32]


def test_growth_never_leaves_float32():
    rule = DynamicLossScale(
        initial=LARGEST, maximum=LARGEST, growth_interval=1, factor=4
    )
    state = zero(tf.constant, rule)
    state = rule.step(state, tf.constant(True), tf.where)
    assert state.scale.numpy() == LARGEST
    assert math.isfinite(1 / state.scale.numpy())


def test_every_rule_is_public_and_named_in_errors():
    for name, rule in RULES.items():
        assert getattr(loss_scaling, name) is rule
        assert f"{name}(" in ALLOWED
    assert '"dynamic", "none", a positive number' in ALLOWED
    assert "NoLossScale(), ConstantLossScale(value), DynamicLossScale(...)" in ALLOWED


@pytest.mark.parametrize("rule", [NoLossScale(), ConstantLossScale(1024)])
def test_fixed_rules_never_move(rule):
    state = ScaleState(rule.initial, 3, 4)
    assert rule.step(state, False, choose) is state
    assert rule.bounds is None


def test_counts_may_be_written_as_floats():
    rule = DynamicLossScale(growth_interval=2.0, hysteresis=1.0)
    assert rule == DynamicLossScale(growth_interval=2)
    state = rule.step(zero(tf.constant, rule), tf.constant(True), tf.where)
    assert state.good_steps.numpy() == 1


@pytest.mark.parametrize(
    "rule",
    [
        NoLossScale(),
        ConstantLossScale(3.0),
        DynamicLossScale(8.0, 3, 4, 0.25, 2, 16, 2),
    ],
)
def test_settings_pickle_print_and_parse(rule):
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert parse(repr(rule), where="test") == rule
    assert hash(parse(repr(rule), where="test")) == hash(rule)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("auto", "auto"),
        ("", "auto"),
        ("dynamic", DynamicLossScale()),
        ("none", NoLossScale()),
        ("1024", ConstantLossScale(1024.0)),
        (2**17, ConstantLossScale(2.0**17)),
        (" DynamicLossScale(initial=4) ", DynamicLossScale(initial=4)),
    ],
)
def test_parse(text, rule):
    assert parse(text, where="test") == rule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConstantLossScale(0), r"value is 0\n.*ConstantLossScale\(value"),
        (
            lambda: ConstantLossScale(math.inf),
            "value is inf(.|\n)*a finite number",
        ),
        (lambda: ConstantLossScale(2.0**127), r"value is 1.7.*(.|\n)*2\*\*126"),
        (lambda: ConstantLossScale(True), "value is True"),
        (lambda: DynamicLossScale(initial=10**400), "initial is 1000"),
        (lambda: DynamicLossScale(growth_interval=10**400), "growth_interval is 1000"),
        (lambda: DynamicLossScale(maximum=1e39), r"maximum is 1e\+39(.|\n)*float32"),
        (lambda: DynamicLossScale(factor=1), "factor is 1(.|\n)*a number over 1"),
        (lambda: DynamicLossScale(backoff=1), "backoff is 1(.|\n)*between 0 and 1"),
        (
            lambda: DynamicLossScale(growth_interval=1.5),
            "growth_interval is 1.5",
        ),
        (lambda: DynamicLossScale(hysteresis=0), "hysteresis is 0"),
        (
            lambda: DynamicLossScale(initial=1, minimum=2),
            "<= initial <=",
        ),
        (
            lambda: DynamicLossScale(initial=8, maximum=4),
            "<= initial <=",
        ),
        (lambda: parse("fast", where="AMP_LOSS_SCALE"), "'fast'(.|\n)*AMP_LOSS_SCALE"),
        (lambda: parse("-4", where="here"), "value is -4.0(.|\n)*do now:"),
        (lambda: parse("Dynamic(", where="here"), "is not understood"),
        (lambda: parse(True, where="here"), "loss scale True"),
    ],
)
def test_bad_settings_say_what_and_where(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


@pytest.mark.parametrize("kind", [int, np.float64, np.float32, np.int64])
@pytest.mark.parametrize(
    ("rule", "numbers"),
    [
        (ConstantLossScale, {"value": 64}),
        (DynamicLossScale, {"initial": 64, "factor": 4, "maximum": 128}),
        (DynamicLossScale, {"initial": 64, "growth_interval": 3, "hysteresis": 2}),
    ],
)
def test_a_number_of_whatever_kind_prints_as_the_same_rule(rule, numbers, kind):
    plain = rule(**{name: float(number) for name, number in numbers.items()})
    given = rule(
        **{name: kind(number) for name, number in numbers.items()},
        on_overflow=np.str_("zeros"),
    )
    assert (given, repr(given)) == (plain, repr(plain))
    assert parse(repr(given), where="here") == given
    policy = amp.Policy(loss_scale=given)
    assert amp.Policy.parse(str(policy)) == policy
    assert parse(kind(64), where="here") == ConstantLossScale(64.0)
    nan = rule(kind(64), on_overflow=np.str_("nan"))
    assert repr(nan) == repr(rule(64.0, on_overflow="nan"))
