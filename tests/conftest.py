"""Fixtures that every test may use; no test lives here."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# No test plans from a profile that the machine's user has made.
os.environ["AMP_CACHE_DIR"] = tempfile.mkdtemp(prefix="amp-tests-")
# Plans depend on the cost model alone, unless a test says otherwise.
os.environ["AMP_TUNE_BUDGET"] = "0"

import pytest
import tensorflow as tf

from amp.integration import activation, reports

atexit.register(shutil.rmtree, os.environ["AMP_CACHE_DIR"], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the code gives now into the golden files of tests/cases",
    )


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Every test starts from the same seed, with mixed precision off."""
    tf.keras.utils.set_random_seed(0)
    yield
    activation.disable()
    assert activation.active() is None
    reports.clear()
