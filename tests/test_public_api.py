"""What is public is what the lists say; importing does nothing and costs little."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pathlib
import pkgutil
import subprocess
import sys

import pytest

import amp
from amp import errors, loss_scaling

ROOT = pathlib.Path(__file__).parents[1]
NAMES = [
    *("AmpError", "Policy", "Report", "Rewrite"),
    *(
        "compare",
        "callbacks",
        "device",
        "disable",
        "enable",
        "explain",
        "keep_float32",
        "loss_scaling",
    ),
    *("mixed_precision_scope", "reports", "resolve", "rewrite", "tune"),
    "twin",
]
SCALING = [
    *("ConstantLossScale", "DynamicLossScale", "NoLossScale", "apply_if_finite"),
    *("current", "off", "scale_loss", "scaler_for", "scalers", "unscale"),
]
RAISING = (
    *("compare", "enable", "explain", "mixed_precision_scope", "rewrite", "tune"),
    "twin",
)
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(amp.__path__, prefix="amp.")
)

IDLE = """
import logging, os, sys
import amp
assert not {"tensorflow", "keras", "scipy", "numpy", "absl"} & set(sys.modules)
assert amp.Policy(dtype="float16") and amp.loss_scaling.DynamicLossScale()
assert dir(amp) == sorted(amp.__all__)
assert "tensorflow" not in sys.modules
import tensorflow as tf
from tensorflow.python.eager import context
def state():
    return (tf.GradientTape.gradient, context.Context.call_function,
            tf.compat.v1.train.Optimizer.apply_gradients, logging.root.level,
            list(logging.root.handlers), dict(os.environ), list(sys.meta_path))
before = state()
for name in sys.argv[1:]:
    __import__(name)
for name in amp.__all__:
    getattr(amp, name)
assert state() == before
assert not context.context()._initialized, "a device was asked for"
"""


def public_functions() -> list[tuple[str, ast.FunctionDef]]:
    """The functions at the top of every module whose names have no underscore."""
    return [
        (f"{name}.{node.name}", node)
        for name in MODULES
        for node in ast.parse(inspect.getsource(importlib.import_module(name))).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


FUNCTIONS = public_functions()


def test_the_list_is_the_one_we_promise():
    assert sorted(NAMES) == amp.__all__ == dir(amp)
    assert sorted(SCALING) == loss_scaling.__all__


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_there_and_documented(name):
    value = getattr(amp, name)
    assert inspect.getdoc(value)
    if inspect.ismodule(value):
        return
    assert value.__module__.startswith("amp.")
    assert not value.__name__.startswith("_")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'amp' has no attribute 'optimise'"):
        amp.optimise  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
def test_public_signatures_are_documented(name):
    value = getattr(amp, name)
    if not callable(value) or value in (amp.AmpError, amp.Report, amp.Rewrite):
        return
    text = inspect.getdoc(value) or ""
    parameters = [p.lstrip("*") for p in inspect.signature(value).parameters]
    if len(parameters) > 1:
        _, _, args = text.partition("Args:")
        for parameter in parameters:
            assert f"{parameter}:" in args
    if name in RAISING or value is amp.Policy:
        assert "Raises:" in text
    assert all(p.annotation is not p.empty for p in _parameters(value))


def _parameters(value):
    return inspect.signature(value).parameters.values()


@pytest.mark.parametrize(
    ("name", "node"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS]
)
def test_a_function_that_raises_says_so(name, node):
    raises = [
        child
        for child in ast.walk(node)
        if isinstance(child, ast.Raise) and child.exc is not None
    ]
    if raises:
        assert "Raises" in (ast.get_docstring(node) or "")


def test_every_error_is_an_amp_error_with_four_parts():
    kinds = [k for k in vars(errors).values() if inspect.isclass(k)]
    for kind in kinds:
        assert issubclass(kind, amp.AmpError)
        error = kind("found it", where="here", allowed="this", remedy="that")
        assert str(error) == (
            "found it\n  where:   here\n  allowed: this\n  do now:  that"
        )


@pytest.mark.slow
@pytest.mark.processes
def test_importing_has_no_effect():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", IDLE, *MODULES],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
