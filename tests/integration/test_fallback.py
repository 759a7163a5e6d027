"""What fails of ours warns once and changes nothing; under strict it is raised."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf

import amp
from amp.graph_rewrite.cost import device_profile
from amp.integration import api, fallback
from amp.integration.measuring import hardware, profiles
from amp.integration.process import PROCESS

ROOT = pathlib.Path(__file__).parents[2]
PART = fallback.Part("it runs as it was")


def broken():
    raise LookupError("lost")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Nothing is settled yet, and no device known."""
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(PROCESS, "settled", {})
    hardware.device.cache_clear()
    yield tmp_path
    hardware.device.cache_clear()


def test_a_failure_is_warned_of_once():
    with pytest.warns(RuntimeWarning, match="as it was: LookupError: lost") as told:
        assert fallback.attempt(PART, broken, lambda: 1) == 1
    assert fallback.attempt(PART, broken, lambda: 2) == 2
    assert len(told) == 1


def test_strict_raises():
    strict = fallback.Part("it runs as it was", strict=True)
    with pytest.raises(LookupError):
        fallback.attempt(strict, broken, lambda: 1)
    with fallback.strictly(True), pytest.raises(LookupError):
        fallback.attempt(PART, broken, lambda: 1)


def test_a_warning_shows_a_line_of_the_program():
    with pytest.warns(RuntimeWarning, match="it runs as it was") as told:
        fallback.attempt(PART, broken, lambda: 1)
    assert told[0].filename == __file__


def test_what_is_the_users_to_see_is_raised():
    part = fallback.Part("it runs as it was", raises=(LookupError,))
    with pytest.raises(LookupError):
        fallback.attempt(part, broken, lambda: 1)


def catches_all(node: ast.AST) -> bool:
    """Whether every exception ends here: it is caught, and none is raised after."""
    if isinstance(node, ast.ExceptHandler):
        caught = ast.unparse(node.type or ast.Name("Exception"))
        if isinstance(node.body[-1], ast.Raise):
            return False
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
        caught = " ".join(map(ast.unparse, node.args))
    else:
        return False
    return bool(re.search(r"\b(Base)?Exception\b", caught))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("try: f()\nexcept: pass", True),
        ("try: f()\nexcept BaseException as e: pass", True),
        ("try: f()\nexcept (OSError, Exception): pass", True),
        ("with contextlib.suppress(OSError, Exception): f()", True),
        ("try: f()\nexcept Exception: raise", False),
        ("try: f()\nexcept OSError: pass", False),
    ],
)
def test_code_that_catches_every_exception_is_seen(text, seen):
    assert any(map(catches_all, ast.walk(ast.parse(text)))) is seen


def test_nothing_else_catches_every_exception():
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("amp/**/*.py")
        if any(map(catches_all, ast.walk(ast.parse(path.read_text()))))
    }
    # The command says what it could not do, and ends with 2.
    assert found == {"amp/integration/fallback.py", "amp/cli/__init__.py"}


def test_a_device_that_cannot_be_asked_leaves_the_job_as_it_was(fresh, monkeypatch):
    def no_driver(kind):
        raise RuntimeError("no driver")

    monkeypatch.setattr(tf.config, "get_visible_devices", no_driver)
    fn = tf.function(lambda x: tf.matmul(x, x))
    api.enable_at_first_use(amp.Policy())
    with pytest.warns(RuntimeWarning, match="mixed precision is off.*no driver"):
        assert fn(tf.eye(2)).numpy().tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert not amp.reports()
    PROCESS.settled.clear()
    with pytest.raises(RuntimeError, match="no driver"):
        amp.enable(strict=True)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"schema": 1, "operations": 0}'],
    ids=["nested too deeply", "operations: 0"],
)
def test_a_damaged_profile_is_ignored(fresh, text):
    executor = device_profile.EXECUTORS[0]
    file = profiles.path(hardware.model(), tf.__version__, executor)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert hardware.device() == hardware.shipped()


JOB = """
import tensorflow as tf
from tensorflow.python.ops import gradients_util
assert not hasattr(tf.GradientTape.gradient, "_amp_original")
x = tf.Variable(2.0)
with tf.GradientTape() as tape:
    y = x * x
print(float(tape.gradient(y, x)))
"""
MISFIT = """
import importlib, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow.python.ops.gradients_util":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            module._GradientsHelper = lambda: None
        spec.loader.exec_module = exec_module
        return spec
import importlib.util
sys.meta_path.insert(0, Finder())
from amp.integration.launch import autostart
autostart.install()
"""


def test_a_misfit_under_amp_enable_leaves_the_job_running_even_under_w_error():
    done = subprocess.run(
        [sys.executable, "-W", "error:amp", "-c", f"{MISFIT}{JOB}"],
        env={**os.environ, "AMP_ENABLE": "1", "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4.0\n"
    assert "gradients_util._GradientsHelper does not take ys, xs" in done.stderr
