"""One row per private name; hooks go in together, pass all on, and come off."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.ops import gradients_util

from amp.errors import TensorFlowError
from amp.integration import hooks, install
from amp.integration.process import PROCESS

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / "amp").glob("**/*.py"))
NAMES = {row.name for row in hooks.ROWS}
TABLES = (install.DECORATORS, install.KERAS_DECORATORS, install.TF_KERAS_DECORATORS)
DECORATORS = {key: hook for table in TABLES for key, hook in table.items()}
# Python's own, of frames, named tuples and modules.
PYTHONS = {"_getframe", "_replace", "_initializing"}


@pytest.fixture
def owner(monkeypatch):
    """A class of a row of the test's own, and nothing installed."""

    class Owner:
        def greet(self, name, times=1):
            return (name,) * times

    monkeypatch.setattr(PROCESS, "wrapped", {})
    monkeypatch.setattr(hooks, "_owner", lambda row: Owner)
    return Owner


GREET = hooks.Row("m:Owner", "greet", ("self", "name"), "greeting", wrapped=True)


def loud(original):
    arguments = hooks.reader_of(GREET, original)

    def greet(*args, **kwargs):
        given = arguments(*args, **kwargs)
        return given.replaced("name", given.get("name").upper()).call(original)

    return greet


def test_keys_are_unique():
    keys = [row.key for row in hooks.ROWS]
    assert len(set(keys)) == len(keys)


def test_every_wrapped_row_has_one_hook_and_no_other_has():
    assert {row.key for row in hooks.ROWS if row.wrapped} == DECORATORS.keys()
    assert len(DECORATORS) == sum(map(len, TABLES))


def own_names() -> set[str]:
    """The private names that the package itself gives functions and attributes."""
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if ast.unparse(node.value) == "self":
                    found.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Assign):
                found.update(t.id for t in node.targets if isinstance(t, ast.Name))
    return found


def test_every_private_attribute_has_a_row():
    ours = own_names()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            name = node.attr
            private = re.match(r"_[a-z]", name) and not name.startswith("_amp_")
            if private and name not in ours | PYTHONS:
                assert name in NAMES, f"{path.name}: .{name}"


def test_every_name_of_a_private_module_has_a_row():
    classes = {row.owner.partition(":")[2] for row in hooks.ROWS}
    for path in FILES:
        tree = ast.parse(path.read_text())
        modules = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and re.match(
                r"tensorflow\.python|keras\.src", node.module or ""
            ):
                modules |= {alias.asname or alias.name for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
                assert node.attr in NAMES | classes, f"{path.name}: {node.attr}"


def test_all_misfits_are_listed_at_once_and_nothing_is_changed(monkeypatch):
    monkeypatch.setattr(PROCESS, "wrapped", {})
    before = tf.GradientTape.gradient
    monkeypatch.setattr(gradients_util, "_GradientsHelper", lambda ys: None)
    monkeypatch.delattr(context_lib.Context, "get_config_key_value")
    with pytest.raises(TensorFlowError) as error:
        hooks.install(hooks.of_tensorflow(), install.DECORATORS)
    assert "_GradientsHelper does not take xs" in error.value.where
    assert "Context.get_config_key_value is not there" in error.value.where
    assert "2.18 to 2.21" in error.value.allowed
    assert PROCESS.wrapped == {}
    assert tf.GradientTape.gradient is before


def test_a_hook_that_cannot_be_made_leaves_none_behind(owner):
    before = owner.greet
    other = hooks.Row("m:Owner", "missing", None, "nothing", wrapped=True)
    owner.missing = before
    with pytest.raises(KeyError):
        hooks.install([GREET, other], {GREET.key: loud})
    assert owner.greet is before
    assert PROCESS.wrapped == {}


@pytest.mark.parametrize("as_keyword", [False, True])
def test_every_argument_is_passed_on(owner, as_keyword):
    hooks.wrap(GREET, loud)
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
        hooks.wrap(GREET, loud)
    owner.greet = adds_an_argument(owner.greet, tells=tells)
    if not after:
        hooks.require([GREET])
        hooks.wrap(GREET, loud)
    assert owner().greet("a", 2, mark="!") == ("A", "A", "!")
    assert owner().greet(name="a", mark="!") == ("A", "!")


def test_hooks_come_off_but_where_another_library_holds_them(owner):
    before = owner.greet
    hooks.wrap(GREET, loud)
    assert owner().greet("a") == ("A",)
    hooks.unwrap()
    assert owner.greet is before
    hooks.wrap(GREET, loud)
    held = owner.greet = adds_an_argument(owner.greet, tells=True)
    hooks.unwrap()
    assert owner.greet is held
    assert GREET.key in PROCESS.wrapped  # so that it is not wrapped twice


def test_a_second_copy_of_the_package_replaces_the_hook(owner, monkeypatch):
    retired = []
    before = owner.greet
    hooks.wrap(GREET, loud)
    owner.greet._amp_retire = lambda: retired.append(True)
    monkeypatch.setattr(PROCESS, "wrapped", {})  # as the second copy has it
    hooks.wrap(GREET, loud)
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
