"""Hooks go in as a whole: TensorFlow's at once, those of Keras when it is imported."""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
import warnings

import keras
import pytest
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.saving import saving_lib

from amp.errors import TensorFlowError
from amp.integration import hooks, install, wrapping
from amp.integration.process import PROCESS

v1 = tf.compat.v1


@pytest.fixture
def no_keras_hooks(monkeypatch):
    """As before Keras' hooks were put in place; they are back afterwards."""
    install.install()
    keys = {row.key for row in hooks.of_keras()}
    for key, hook in list(PROCESS.wrapped.items()):
        if key in keys:
            monkeypatch.setattr(hook.owner, key.rpartition(".")[2], hook.original)
    rest = {k: h for k, h in PROCESS.wrapped.items() if k not in keys}
    monkeypatch.setattr(PROCESS, "wrapped", rest)
    monkeypatch.setattr(PROCESS, "libraries", PROCESS.libraries - {hooks.KERAS})


def test_installing_twice_changes_nothing():
    install.install()
    before = tf.GradientTape.gradient, v1.train.Optimizer.apply_gradients
    wrapped = dict(PROCESS.wrapped)
    install.install()
    assert before == (tf.GradientTape.gradient, v1.train.Optimizer.apply_gradients)
    assert wrapped == PROCESS.wrapped


def test_who_inspects_a_hook_sees_the_parameters_of_what_it_wraps():
    """tf_keras asks `getfullargspec`, which follows no `__wrapped__`."""
    install.install()
    for hook in PROCESS.wrapped.values():
        try:
            there = inspect.getfullargspec(hook.original)
        except TypeError:  # made in C++
            continue
        assert inspect.getfullargspec(hook.wrapper) == there, hook.name
    assert "feed_dict" in inspect.getfullargspec(v1.Session.run).args


def test_every_wrapped_name_has_its_hook_once_keras_is_there():
    assert keras.backend.backend() == "tensorflow"
    install.install()
    rows = [*hooks.of_tensorflow(), *hooks.of_keras()]
    assert {row.key for row in rows if row.wrapped} <= PROCESS.wrapped.keys()
    assert hooks.KERAS in PROCESS.libraries


def test_every_wrapped_name_has_its_hook_once_tf_keras_is_there():
    pytest.importorskip("tf_keras")
    install.install()
    wanted = {row.key for row in hooks.ROWS if row.wrapped}
    if not hasattr(keras.optimizers, "MultiOptimizer"):  # as of Keras 3.12
        wanted -= install.KERAS_MULTI_DECORATORS.keys()
    assert wanted == PROCESS.wrapped.keys()
    assert hooks.TF_KERAS in PROCESS.libraries


def test_a_keras_with_other_names_is_left_alone_as_a_whole(no_keras_hooks, monkeypatch):
    def other(model, place):
        """Saves somewhere."""

    monkeypatch.setattr(saving_lib, "_save_state", other)
    before = BaseOptimizer.apply
    with pytest.warns(RuntimeWarning, match="_save_state does not take saveable"):
        install.install_library(hooks.KERAS)
    assert BaseOptimizer.apply is before
    assert hooks.KERAS not in PROCESS.libraries
    x = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = x * x
    assert tape.gradient(y, x).numpy() == 4.0


def test_no_thread_waits_for_the_programs_own_answer_to_a_warning(
    no_keras_hooks, monkeypatch
):
    """A handler may wait for a thread that imports a module of Keras."""
    hangs = []

    def answer(*arguments, **more):
        thread = threading.Thread(target=install.install, daemon=True)
        thread.start()
        thread.join(60)  # only a thread that hangs takes so long
        hangs.append(thread.is_alive())

    monkeypatch.setattr(saving_lib, "_save_state", lambda model, place: None)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", answer)
        install.install_library(hooks.KERAS)
    assert hangs == [False]


def test_too_old_a_tensorflow_is_refused():
    with pytest.raises(TensorFlowError, match="2.9.1 is too old"):
        install.require_version("2.9.1")


def test_a_second_copy_of_the_package_wraps_once(monkeypatch):
    install.install()
    first = tf.GradientTape.gradient
    before = dict(sys.modules)
    for name in before:
        if name.partition(".")[0] == "amp":
            monkeypatch.delitem(sys.modules, name)
    try:
        again = importlib.import_module("amp.integration.install")
        again.install()
        second = tf.GradientTape.gradient
        assert second is not first
        assert second._amp_original is first._amp_original
    finally:
        copy = importlib.import_module("amp.integration.wrapping")
        copy.unwrap()
        for name in list(sys.modules):
            if name.partition(".")[0] == "amp":
                del sys.modules[name]
        sys.modules.update(before)
        for key, hook in PROCESS.wrapped.items():
            setattr(hook.owner, key.rpartition(".")[2], hook.wrapper)
            if hook.exported:
                wrapping._rebind(hook.name, hook.original, hook.wrapper)
