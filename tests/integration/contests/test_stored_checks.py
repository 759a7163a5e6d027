"""`stored_checks`: a plan is known again in another run, and no other plan is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from rewriting import settled
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.assign.nominee import CUT, PRODUCTS, Nominee
from amp.graph_rewrite.outcomes import AccuracyOutcome, GradientError
from amp.graph_rewrite.plan import Reason
from amp.graph_rewrite.rewrite import Prepared, prepare
from amp.integration.contests import plan_store, stored_checks
from amp.integration.contests.stored_checks import StoredCheck
from amp.integration.runtime import definitions

OUTCOME = AccuracyOutcome("told", 1, 0.5, 0.25, (GradientError("g", 0.5, 0.25),))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))


def prepared(prefix: str = "", factor: float = 1.0, **fields: Any) -> Prepared:
    """The same function, traced anew, with other names of nodes."""

    @tf.function
    def fn(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, x, name=f"{prefix}first")
        y = tf.tanh(y, name=f"{prefix}tanh")
        return tf.matmul(y, factor * x, name=f"{prefix}second")

    concrete = fn.get_concrete_function(tf.ones([256, 256]))
    module = definitions.read(context_lib.context(), concrete.name.decode())
    return prepare(module, settled(**fields))


def kept_of(one: Prepared, name: str) -> Any:
    (use,) = one.priced.uses
    return {use: {name: Reason("accuracy", "off by 0.5")}}


def low(one: Prepared, plan: Nominee) -> Any:
    return one.foreseen(plan).low


def key_of(one: Prepared) -> str:
    return plan_store.fingerprint(one.given, one.settled)


def test_what_was_found_out_is_known_in_the_next_run() -> None:
    first, second = prepared(), prepared("other_")
    check = StoredCheck(OUTCOME, kept_of(first, "tanh"), CUT.name, later=1)
    stored_checks.keep(key_of(first), first, CUT, check)
    again = stored_checks.recall(key_of(second), second, low(second, CUT))
    assert again == StoredCheck(
        OUTCOME, kept_of(second, "other_tanh"), CUT.name, later=1
    )


def test_another_plan_was_not_checked() -> None:
    one = prepared()
    stored_checks.keep(key_of(one), one, CUT, StoredCheck(OUTCOME, {}, CUT.name))
    found = StoredCheck(OUTCOME, {}, CUT.name)
    assert stored_checks.recall(key_of(one), one, low(one, CUT)) == found
    assert stored_checks.recall(key_of(one), one, low(one, PRODUCTS)) is None
    # Beside a plan that rounds nothing, what was checked may race.
    assert stored_checks.recall(key_of(one), one, {}) == found


def test_other_constants_were_not_checked() -> None:
    """A step is as fast with pixels in 0 to 255 as in 0 to 1, and not as exact."""
    one, other = prepared(factor=0.5), prepared(factor=1 / 255)
    assert key_of(one) == key_of(other)
    stored_checks.keep(key_of(one), one, CUT, StoredCheck(OUTCOME, {}, CUT.name))
    assert stored_checks.recall(key_of(other), other, low(other, CUT)) is None


def test_another_policy_was_not_checked() -> None:
    one, other = prepared(), prepared(dtype="float16")
    stored_checks.keep(key_of(one), one, CUT, StoredCheck(OUTCOME, {}, CUT.name))
    assert stored_checks.recall(key_of(other), other, low(other, CUT)) is None


def test_without_a_fingerprint_nothing_is_stored_or_read() -> None:
    one = prepared()
    stored_checks.keep("", one, CUT, StoredCheck(OUTCOME, {}, CUT.name))
    assert not list(plan_store.path("any").parent.glob("*"))
    stored_checks.keep(key_of(one), one, CUT, StoredCheck(OUTCOME, {}, CUT.name))
    assert stored_checks.recall("", one, low(one, CUT)) is None


def test_a_damaged_file_is_no_check() -> None:
    one = prepared()
    stored_checks.keep(key_of(one), one, CUT, StoredCheck(OUTCOME, {}, CUT.name))
    file = plan_store.path(key_of(one))
    found = json.loads(file.read_text())
    del found["accuracy"]["kept"]
    file.write_text(json.dumps(found))
    with pytest.warns(RuntimeWarning, match="is not known"):
        assert stored_checks.recall(key_of(one), one, low(one, CUT)) is None
