"""`Policy`: prints and parses, reads the environment, refuses what it cannot mean."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amp
from amp import loss_scaling
from amp.errors import PolicyError
from amp.policy import FIELDS, Policy

NAMES = st.lists(st.text(min_size=1, max_size=12), max_size=3)
SCALES = st.one_of(
    st.sampled_from(["auto", "dynamic", "none"]),
    st.floats(min_value=2.0**-100, max_value=2.0**100),
    st.just(loss_scaling.NoLossScale()),
    st.builds(loss_scaling.ConstantLossScale, st.sampled_from([1.0, 2.0**17])),
    st.builds(
        loss_scaling.DynamicLossScale,
        initial=st.sampled_from([2.0**10, 2.0**15]),
        growth_interval=st.integers(1, 10_000),
        hysteresis=st.integers(1, 5),
    ),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    allow = draw(NAMES)
    stripped = {name.strip() for name in allow}
    return Policy(
        dtype=draw(st.sampled_from(["auto", "float16", "bfloat16"])),
        emulate=draw(st.booleans()),
        loss_scale=draw(SCALES),
        allow=tuple(allow),
        deny=tuple(n for n in draw(NAMES) if n.strip() not in stripped),
        keep=tuple(draw(NAMES)),
        assignment=draw(st.sampled_from(["cost", "all"])),
        min_gain=draw(st.floats(0, 1, exclude_max=True)),
        trial=draw(st.sampled_from(["auto", True, False])),
        check=draw(st.sampled_from(["auto", True, False])),
        tune_budget=draw(st.floats(0, 1e6)),
        strict=draw(st.booleans()),
        report=draw(st.none() | st.text(min_size=1)),
    )


@given(policies())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_what_prints_parses(policy: Policy) -> None:
    assert Policy.parse(str(policy)) == policy


@given(policies())
@settings(derandomize=True, deadline=None, max_examples=30)
def test_hashable_equal_by_value_and_picklable(policy: Policy) -> None:
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert hash(again) == hash(policy)
    assert len({again, policy}) == 1


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().dtype = "float16"


def test_the_default_prints_short_and_says_auto() -> None:
    assert str(Policy()) == "Policy()"
    assert Policy().dtype == "auto"
    assert str(Policy(dtype="float16")) == "Policy(dtype='float16')"


def test_every_field_has_a_variable() -> None:
    environ = {
        "AMP_DTYPE": "float16",
        "AMP_EMULATE": "1",
        "AMP_LOSS_SCALE": "1024",
        "AMP_ALLOW": "Exp, Pow",
        "AMP_DENY": "Softmax",
        "AMP_KEEP": "*/head/*,*norm*",
        "AMP_ASSIGNMENT": "all",
        "AMP_MIN_GAIN": "0.05",
        "AMP_CHECK": "1",
        "AMP_TRIAL": "0",
        "AMP_TUNE_BUDGET": "2.5",
        "AMP_WIRE": "on",
        "AMP_STRICT": "yes",
        "AMP_REPORT": "/tmp/reports",
        "AMP_ENABLE": "1",  # not a field
    }
    policy = Policy.from_env(environ)
    assert policy == Policy(
        dtype="float16",
        emulate=True,
        loss_scale=1024,
        allow=("Exp", "Pow"),
        deny=("Softmax",),
        keep=("*/head/*", "*norm*"),
        assignment="all",
        min_gain=0.05,
        trial=False,
        check=True,
        tune_budget=2.5,
        wire=True,
        strict=True,
        report="/tmp/reports",
    )
    variables = {field.variable for field in FIELDS.values()}
    assert variables == set(environ) - {"AMP_ENABLE"}


def test_a_field_is_declared_once_and_the_docstring_tells_of_each() -> None:
    assert list(FIELDS) == [field.name for field in dataclasses.fields(Policy)]
    for field in FIELDS.values():
        assert getattr(Policy(), field.name) == field.default
        assert field.help
    told = re.findall(r"^  (\w+): ", inspect.getdoc(Policy) or "", re.MULTILINE)
    assert told == [*FIELDS, "PolicyError"]


def test_no_variables_give_the_default() -> None:
    assert Policy.from_env({}) == Policy()


def test_the_process_environment_is_read_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AMP_DTYPE", "bfloat16")
    assert Policy.from_env().dtype == "bfloat16"


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("AMP_DTYPE", "float32", "'float16', 'bfloat16'"),
        ("AMP_DTYPE", "fp16", "'float16', 'bfloat16'"),
        ("AMP_EMULATE", "maybe", "1, true, on, yes"),
        ("AMP_LOSS_SCALE", "huge", '"dynamic"'),
        ("AMP_LOSS_SCALE", "-1", "over 0"),
        ("AMP_LOSS_SCALE", "nan", "over 0"),
        ("AMP_LOSS_SCALE", "inf", "over 0"),
        ("AMP_LOSS_SCALE", "1e400", '"dynamic"'),
        ("AMP_LOSS_SCALE", "1e39", "2**126"),
        ("AMP_LOSS_SCALE", "DynamicLossScale(step=1)", "initial, growth_interval"),
        ("AMP_LOSS_SCALE", "DynamicLossScale(initial=-1)", "DynamicLossScale(initial"),
        ("AMP_LOSS_SCALE", "ConstantLossScale()", "value"),
        ("AMP_ASSIGNMENT", "greedy", "'cost', 'all'"),
        ("AMP_MIN_GAIN", "much", "a fraction"),
        ("AMP_MIN_GAIN", "1.5", "a fraction"),
        ("AMP_MIN_GAIN", "nan", "a fraction"),
        ("AMP_TRIAL", "twice", '"auto", True or 1, False or 0'),
        ("AMP_STRICT", "2", "1, true, on, yes"),
    ],
)
def test_a_malformed_variable_is_named_with_what_is_allowed(
    variable: str, value: str, allowed: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.from_env({variable: value})
    error = caught.value
    assert value.strip("-") in error.found
    assert error.where == variable
    assert allowed in error.allowed
    assert error.remedy


_RUBBISH = ("rubbish", "nan", "inf", "-inf", "-1", "1e400", "(", "None")
_TEXTS = ("allow", "deny", "keep", "report")  # any text may be meant


@pytest.mark.parametrize("value", _RUBBISH)
@pytest.mark.parametrize("name", [name for name in FIELDS if name not in _TEXTS])
def test_every_variable_refuses_rubbish_by_its_name(name: str, value: str) -> None:
    variable = FIELDS[name].variable
    with pytest.raises(PolicyError) as caught:
        Policy.from_env({variable: value})
    assert caught.value.where == variable
    assert repr(value) in caught.value.found
    assert caught.value.allowed


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_variable_is_as_one_that_is_not_set(value: str) -> None:
    empty = {field.variable: value for field in FIELDS.values()}
    assert Policy.from_env(empty) == Policy()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_type_in_place_of_a_policy_is_told_its_keyword(dtype):
    with pytest.raises(PolicyError) as caught:
        Policy.make(dtype)
    assert caught.value.remedy == f'write dtype="{dtype}"'


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"dtype": "float64"}, "'float64' is not accepted"),
        ({"dtype": 16}, "16 is not accepted"),
        ({"emulate": 2}, "2 is not accepted"),
        ({"wire": 1.0}, "1.0 is not accepted"),
        ({"strict": None}, "None is not accepted"),
        ({"loss_scale": 0}, "value is 0"),
        ({"loss_scale": True}, "loss scale True is not understood"),
        ({"loss_scale": 10**400}, "value is 1000"),
        ({"min_gain": 10**400}, "0 is not accepted"),
        ({"tune_budget": 10**400}, "0 is not accepted"),
        ({"allow": 3}, "3 is not accepted"),
        ({"keep": [1]}, r"\[1\] is not accepted"),
        ({"min_gain": 1.0}, "1.0 is not accepted"),
        ({"min_gain": True}, "True is not accepted"),
        ({"trial": 2}, "2 is not accepted"),
        ({"tune_budget": -1}, "-1 is not accepted"),
        ({"tune_budget": "soon"}, "'soon' is not accepted"),
        ({"report": 3}, "3 is not accepted"),
        ({"allow": "Exp", "deny": "Exp"}, "'Exp' is not accepted"),
    ],
)
def test_a_bad_field_is_refused(fields: dict[str, object], found: str) -> None:
    with pytest.raises(PolicyError, match=found) as caught:
        Policy(**fields)
    assert all((caught.value.where, caught.value.allowed, caught.value.remedy))


def test_an_unknown_field_names_the_fields_there_are() -> None:
    with pytest.raises(PolicyError, match="'precision' is not accepted") as caught:
        Policy.make(precision="float16")
    assert "dtype" in caught.value.allowed
    with pytest.raises(PolicyError, match="'float16' is not accepted"):
        Policy.make("float16")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "Policy", "policy()", "Policy(dtype=float16)", "Policy("]
)
def test_text_that_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        Policy.parse(text)


@pytest.mark.parametrize(
    ("text", "value"), [("auto", "auto"), ("Auto", "auto"), ("1", True), ("off", False)]
)
def test_a_trial_is_auto_on_or_off(text: str, value: object) -> None:
    assert Policy.from_env({"AMP_TRIAL": text}).trial == value
    assert Policy(trial=text).trial == value


_SWITCHES = ("emulate", "trial", "check", "wire", "strict")


@pytest.mark.parametrize("name", _SWITCHES)
@pytest.mark.parametrize("value", [1, 0, np.int64(1), np.bool_(True), np.bool_(False)])
def test_a_switch_takes_what_its_error_and_the_page_say(
    name: str, value: object
) -> None:
    switched = getattr(Policy(**{name: value}), name)
    assert switched is bool(value)


def test_keep_patterns_match_whole_names() -> None:
    policy = Policy(keep=("*/norm", "head?"))
    assert policy.keeps("block/norm")
    assert policy.keeps("head1")
    assert not policy.keeps("block/norm/mul")
    assert not policy.keeps("Head1")


def test_the_policy_is_a_public_name() -> None:
    assert amp.Policy is Policy


def test_what_a_program_leaves_open_is_what_the_variables_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keywords come before variables; a policy that is given is taken as it is."""
    monkeypatch.setenv("AMP_DTYPE", "float16")
    monkeypatch.setenv("AMP_STRICT", "1")
    assert Policy.make() == Policy.from_env()
    assert Policy.make(dtype="bfloat16") == Policy(
        dtype="bfloat16", strict=True, tune_budget=0.0
    )
    assert Policy.make(Policy()) == Policy()
    assert Policy.parse(str(Policy())) == Policy()
    monkeypatch.setenv("AMP_TRIAL", "perhaps")
    with pytest.raises(PolicyError, match="'perhaps' is not accepted") as caught:
        Policy.make(dtype="bfloat16")
    assert caught.value.where == "AMP_TRIAL"
