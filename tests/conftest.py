"""Fixtures that every test may use; no test lives here.

TensorFlow is not imported here but by the tests: the process that only hands tests to
the others does without.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Most laws are of a CPU's kernels and times, or of products without TensorFloat-32: a
# GPU is hidden unless the user names it (CUDA_VISIBLE_DEVICES=0 make test).
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# No test plans from a profile that the machine's user has made, or another process of
# the tests.
CACHE = os.environ["AMP_CACHE_DIR"] = tempfile.mkdtemp(prefix="amp-tests-")
# Plans depend on the cost model alone, unless a test says otherwise.
os.environ["AMP_TUNE_BUDGET"] = "0"

import cpu_types
import pytest

atexit.register(shutil.rmtree, os.environ["AMP_CACHE_DIR"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the code gives now into tests/cases and tests/plans",
    )
    parser.addoption(
        "--sixteen-bit",
        choices=cpu_types.TYPES,
        default="found",
        help="take the CPU for one with or without 16-bit arithmetic, whatever it has",
    )


def pytest_configure(config: pytest.Config) -> None:
    types = config.getoption("--sixteen-bit")
    if types != "found":
        cpu_types.pretend(types)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: at the end only quick ones are shared out."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


class _Unraised(logging.Handler):
    """Notes warnings that the package logs because here they would be errors."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "amp_unraised", False):
            self.texts.append(record.getMessage())


@pytest.fixture(scope="module", autouse=True)
def settled_heap() -> None:
    """The collector no longer walks through TensorFlow and what earlier files left.

    It took a sixth of the time of tests that build graphs.
    """
    import tensorflow as tf

    _ = tf.keras.layers  # imports Keras
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_failure_of_ours() -> Iterator[None]:
    """No test passes because the package fell back, unless it expects the warning."""
    unraised = _Unraised()
    logging.getLogger("amp").addHandler(unraised)
    yield
    logging.getLogger("amp").removeHandler(unraised)
    assert not unraised.texts


# What a mistake in the package raises, and what is missing seldom does.
_MISTAKES = (AttributeError, KeyError, NameError, TypeError)


@pytest.fixture(autouse=True)
def no_mistake_of_ours(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """No mistake passes for something that is missing, of which nobody is told.

    Unless the test is marked `swallows`.
    """
    from amp.integration import fallback

    quietly, texts = fallback.attempt_quietly, []

    def attempt_quietly(ours: Callable[[], Any], otherwise: Any) -> Any:
        def noted() -> Any:
            try:
                return ours()
            except _MISTAKES as e:
                texts.append(repr(e))  # the error itself would keep what it saw
                raise

        return quietly(noted, otherwise)

    monkeypatch.setattr(fallback, "attempt_quietly", attempt_quietly)
    yield
    assert not texts or request.node.get_closest_marker("swallows")


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Every test starts from the same seed, with mixed precision off.

    And without knowing who won the races of other tests.
    """
    import tensorflow as tf

    from amp.integration import active, api
    from amp.integration.process import PROCESS
    from amp.loss_scaling.process import SCALING

    tf.keras.utils.set_random_seed(0)
    shutil.rmtree(os.path.join(CACHE, "plans"), ignore_errors=True)
    yield
    SCALING.bends.clear()  # the functions went with the test
    api.disable()
    assert active.active() is None
    PROCESS.reset()
