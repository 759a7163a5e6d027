"""Hooks are put in place together, pass on all arguments, and come off."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types

import pytest
import tensorflow as tf

from amp.errors import TensorFlowError
from amp.integration import hooks, install, wrapping
from amp.integration.process import PROCESS


@pytest.fixture
def owner(monkeypatch):
    """A class of a row of the test's own, and nothing installed."""

    class Owner:
        def greet(self, name, times=1):
            return (name,) * times

    monkeypatch.setattr(PROCESS, "wrapped", {})
    monkeypatch.setattr(hooks, "owner_of", lambda row: Owner)
    return Owner


GREET = hooks.Row("m:Owner", "greet", ("self", "name"), "greeting", wrapped=True)


def loud(original):
    arguments = wrapping.reader_of(GREET, original)

    def greet(*args, **kwargs):
        given = arguments(*args, **kwargs)
        return given.replaced("name", given.get("name").upper()).call(original)

    return greet


def test_a_hook_that_cannot_be_made_leaves_none_behind(owner):
    before = owner.greet
    other = hooks.Row("m:Owner", "missing", None, "nothing", wrapped=True)
    owner.missing = before
    with pytest.raises(KeyError):
        wrapping.install([GREET, other], {GREET.key: loud})
    assert owner.greet is before
    assert PROCESS.wrapped == {}


@pytest.mark.parametrize("as_keyword", [False, True])
def test_every_argument_is_passed_on(owner, as_keyword):
    wrapping.wrap(GREET, loud)
    got = owner().greet(name="a", times=2) if as_keyword else owner().greet("a", 2)
    assert got == ("A", "A")


def adds_an_argument(greet, *, tells: bool):
    def wrapper(*args, mark="", **kwargs):
        return (*greet(*args, **kwargs), mark)

    return functools.wraps(greet)(wrapper) if tells else wrapper


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_other_libraries_wrap_before_or_after(owner, after, tells):
    if after:
        wrapping.wrap(GREET, loud)
    owner.greet = adds_an_argument(owner.greet, tells=tells)
    if not after:
        hooks.require([GREET])
        wrapping.wrap(GREET, loud)
    assert owner().greet("a", 2, mark="!") == ("A", "A", "!")
    assert owner().greet(name="a", mark="!") == ("A", "!")


def test_hooks_come_off_but_where_another_library_holds_them(owner):
    before = owner.greet
    wrapping.wrap(GREET, loud)
    assert owner().greet("a") == ("A",)
    wrapping.unwrap()
    assert owner.greet is before
    wrapping.wrap(GREET, loud)
    held = owner.greet = adds_an_argument(owner.greet, tells=True)
    wrapping.unwrap()
    assert owner.greet is held
    assert GREET.key in PROCESS.wrapped  # so that it is not wrapped twice


def test_a_second_copy_of_the_package_replaces_the_hook(owner, monkeypatch):
    retired = []
    before = owner.greet
    wrapping.wrap(GREET, loud)
    owner.greet._amp_retire = lambda: retired.append(True)
    monkeypatch.setattr(PROCESS, "wrapped", {})  # as the second copy has it
    wrapping.wrap(GREET, loud)
    assert owner.greet._amp_original is before
    assert retired == [True]


def test_a_gradient_takes_its_arguments_by_position():
    install.install()
    x, y = tf.Variable(2.0), tf.Variable(1.0)
    zero = tf.UnconnectedGradients.ZERO
    with tf.GradientTape(persistent=True) as tape:
        z = x * x
    assert tape.gradient(z, y, None, zero).numpy() == 0.0
    assert tape.gradient(z, x, tf.constant(3.0), zero).numpy() == 12.0
    with pytest.raises(TypeError):
        tape.gradient(z)


RENAMED = dataclasses.replace(GREET, name="salute", also=("greet",))


def test_a_hook_finds_the_name_that_this_version_has(owner):
    before = owner.greet
    wrapping.install([RENAMED], {"Owner.salute": loud})
    assert owner().greet("a", times=2) == ("A", "A")
    assert wrapping.original("Owner.salute") is before
    wrapping.unwrap()
    assert owner.greet is before
    assert not hasattr(owner, "salute")


def test_a_name_that_is_only_called_is_found_too(owner, monkeypatch):
    monkeypatch.setattr(hooks, "ROWS", (dataclasses.replace(RENAMED, wrapped=False),))
    assert hooks.attribute(owner(), "Owner.salute")("a") == ("a",)


def test_a_name_that_no_version_has_is_a_misfit(owner):
    nowhere = dataclasses.replace(GREET, name="salute", also=("hail",))
    with pytest.raises(TensorFlowError, match="Owner.salute is not there"):
        hooks.require([nowhere])
    assert hooks.current_name(RENAMED) == "greet"


def test_modules_of_the_api_have_the_hook_too(owner, monkeypatch):
    """As long as it is in place, also those that are imported later."""
    before = owner.greet
    early, late, other = (types.ModuleType(name) for name in ("early", "late", "other"))
    early.greet = other.greet = before
    monkeypatch.setitem(sys.modules, "tensorflow.early", early)
    monkeypatch.setitem(sys.modules, "tensorflow_like", other)
    wrapping.wrap(dataclasses.replace(GREET, exported=True), loud)
    assert early.greet is owner.greet is not before
    assert other.greet is before
    late.greet = owner.greet
    monkeypatch.setitem(sys.modules, "tensorflow.late", late)
    wrapping.unwrap()
    assert early.greet is late.greet is owner.greet is before
