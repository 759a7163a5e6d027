"""One row per private name, and all that do not fit are found before any is hooked."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.ops import gradients_util

from amp.errors import TensorFlowError
from amp.integration import hooks, install, wrapping
from amp.integration.process import PROCESS

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / "amp").glob("**/*.py"))
NAMES = {row.name for row in hooks.ROWS}
TABLES = (
    install.DECORATORS,
    install.KERAS_DECORATORS,
    install.KERAS_MULTI_DECORATORS,
    install.TF_KERAS_DECORATORS,
)
DECORATORS = {key: hook for table in TABLES for key, hook in table.items()}
# Python's own, of frames, named tuples and modules.
PYTHONS = {"_getframe", "_replace", "_asdict", "_initializing"}
PYTHONS |= {"_args_from_interpreter_flags"}


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


def overridden(kind: type) -> set[str]:
    """The private names that a class of ours overrides in a class of TensorFlow."""
    theirs = [base for base in kind.__mro__ if base.__module__.startswith("tensorflow")]
    return {
        name
        for name in vars(kind)
        if re.match(r"_[a-z]", name) and any(name in vars(base) for base in theirs)
    }


def test_every_private_name_that_is_overridden_has_a_row():
    found = set()
    for path in FILES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                found |= overridden(kind)
    assert "_trackable_children" in found  # of the loss scale
    assert found <= NAMES


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
        wrapping.install(hooks.of_tensorflow(), install.DECORATORS)
    assert "_GradientsHelper does not take xs" in error.value.where
    assert "Context.get_config_key_value is not there" in error.value.where
    assert "2.18 to 2.21" in error.value.allowed
    assert PROCESS.wrapped == {}
    assert tf.GradientTape.gradient is before
