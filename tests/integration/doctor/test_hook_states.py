"""Each name is patched, intact, replaced or missing; who else changed it is named."""

from __future__ import annotations

import functools
import types

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.integration import hooks, install
from amp.integration.doctor import hook_states
from amp.integration.doctor.findings import NOTE, OK, WRONG
from amp.integration.process import PROCESS

GRADIENT = hooks.row_of("GradientTape.gradient")
READ = hooks.row_of("Context.has_function")


def stranger(wraps=None):
    """A function of a library called `horovod`, which may wrap another."""
    code = "def changed(*args, **kwargs): return original(*args, **kwargs)"
    names = {"__name__": "horovod.tensorflow", "original": wraps}
    exec(code, names)
    changed = names["changed"]
    return functools.wraps(wraps)(changed) if wraps else changed


@pytest.fixture(autouse=True)
def installed():
    install.install()


def checked():
    (finding,) = hook_states.check()
    return finding


def test_as_it_is_every_hook_is_in_place_and_nobody_else_changed_a_name():
    finding = checked()
    assert finding.status == OK, finding.text
    states = {one["name"]: one["state"] for one in finding.facts["hooks"]}
    rows = [*hooks.of_tensorflow(), *hooks.of_keras()]
    if hooks.keras_is_there(library=hooks.KERAS_MULTI):
        rows += hooks.of_keras(hooks.KERAS_MULTI)
    assert states.keys() == {row.key for row in rows}
    for row in rows:
        assert states[row.key] == ("patched" if row.wrapped else "intact")


def test_a_name_that_is_missing_is_wrong(monkeypatch):
    monkeypatch.delattr(context_lib.Context, "get_config_key_value")
    finding = checked()
    assert finding.status == WRONG
    assert "Context.get_config_key_value is not there" in finding.text
    assert "supported" in finding.remedy


def test_a_tensorflow_that_is_too_old_is_wrong(monkeypatch):
    monkeypatch.setattr(PROCESS, "installed", False)
    monkeypatch.setattr(tf, "__version__", "2.9.1")
    finding = checked()
    assert finding.status == WRONG
    assert "TensorFlow 2.9.1 is too old" in finding.text


def test_a_library_that_wraps_our_hook_is_named_and_nothing_is_wrong(monkeypatch):
    monkeypatch.setattr(tf.GradientTape, "gradient", stranger(tf.GradientTape.gradient))
    state = hook_states.state(GRADIENT)
    assert (state.state, state.by, state.fault) == ("patched", "horovod.tensorflow", "")
    finding = checked()
    assert finding.status == NOTE
    assert "GradientTape.gradient (by horovod.tensorflow)" in finding.text


def test_a_library_that_takes_our_hook_away_is_wrong_and_named(monkeypatch):
    monkeypatch.setattr(
        tf.GradientTape, "gradient", lambda self, target, sources, output_gradients: 0
    )
    state = hook_states.state(GRADIENT)
    assert state.state == "replaced"
    assert state.by == __name__
    finding = checked()
    assert finding.status == WRONG
    assert f"GradientTape.gradient was replaced by {__name__}" in finding.text
    assert "import the other library before" in finding.remedy


def test_what_another_library_wrapped_before_us_is_named(monkeypatch):
    ours = PROCESS.wrapped[GRADIENT.key]
    before = hook_states.dataclasses.replace(ours, original=stranger(ours.original))
    monkeypatch.setitem(PROCESS.wrapped, GRADIENT.key, before)
    state = hook_states.state(GRADIENT)
    assert (state.state, state.by) == ("patched", "horovod.tensorflow")


def test_a_hook_that_was_never_put_in_place_is_wrong(monkeypatch):
    monkeypatch.delitem(PROCESS.wrapped, GRADIENT.key)
    state = hook_states.state(GRADIENT)
    assert state.state == "missing"
    assert state.fault == "GradientTape.gradient has no hook"


def test_a_proxy_is_told_by_its_own_type(monkeypatch):
    proxy = type("FunctionWrapper", (), {"__module__": "wrapt.wrappers"})
    proxy.__call__ = lambda self, name: None
    proxy.__globals__ = {"__name__": "tensorflow.python.eager.context"}
    monkeypatch.setattr(context_lib.Context, READ.name, proxy())
    assert hook_states._stranger(proxy(), READ) == "wrapt"


def test_keras_on_another_backend_is_left_out(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    names = {one["name"] for one in checked().facts["hooks"]}
    assert names == {row.key for row in hooks.of_tensorflow()}


def test_values_of_python_itself_are_nobodys(monkeypatch):
    assert hook_states._stranger(types.SimpleNamespace, GRADIENT) == ""
    assert hook_states._stranger(len, GRADIENT) == ""
