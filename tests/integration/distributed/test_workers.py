"""What workers in step tell each other; between real ones, see test_replicas.py."""

from __future__ import annotations

import types

import pytest
import tensorflow as tf

from amp.errors import PolicyError
from amp.integration.distributed import workers
from amp.integration.process import PROCESS

OTHER = ("worker", 1)


class Service:
    """A coordination service: `slow` questions time out before one is answered."""

    def __init__(self, told, slow=0):
        self.said, self.told, self.slow, self.asked = {}, told, slow, []

    def set_config_key_value(self, key, value):
        if key in self.said:
            raise tf.errors.AlreadyExistsError(None, None, key)
        self.said[key] = value

    def delete_config_key_value(self, key):
        self.said.pop(key, None)

    def get_config_key_value(self, key, timeout_in_ms):
        self.asked.append(timeout_in_ms)
        if len(self.asked) <= self.slow:
            raise tf.errors.DeadlineExceededError(None, None, key)
        return self.told or self.said[key.replace("worker/1", "worker/0")]


@pytest.fixture
def between(monkeypatch):
    """Has two workers meet in a service; returns it."""

    def install(service):
        monkeypatch.setattr(workers, "_tasks", lambda: (("worker", 0), [OTHER]))
        lib = types.SimpleNamespace(context=lambda: service)
        monkeypatch.setattr(workers, "context_lib", lib)
        return service

    return install


def test_workers_that_say_the_same_go_on(between):
    service = between(Service(told=None))
    workers.same("rule")
    workers.same("rule")
    assert len(service.said) == 2  # one for each scaler


def test_a_worker_that_came_back_says_it_again(between, monkeypatch):
    service = between(Service(told=None))
    for _ in range(2):
        monkeypatch.setattr(PROCESS, "agreement_numbers", iter([0]))
        workers.same("rule")
    assert len(service.said) == 1


@pytest.mark.parametrize("told", ["tf-amp 9.9, rule", "another rule"])
def test_another_version_or_rule_is_an_error(between, told):
    between(Service(told))
    with pytest.raises(PolicyError, match=told):
        workers.same("rule")


def test_a_slow_worker_is_waited_for_and_the_log_says_why_it_may_be(between, caplog):
    service = between(Service(told=None, slow=2))
    workers.same("rule")
    assert len(service.asked) == 3
    assert len(caplog.messages) == 2
    for said in caplog.messages:
        assert said.startswith(
            "amp: waiting for worker 1, which has not got here after"
        )
        for cause in ("without this package", "another policy", "or compiles", "ended"):
            assert cause in said


def test_a_silent_worker_is_an_error_once_patience_ends(between, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 0.001)
    between(Service(told=None, slow=10**9))
    with pytest.raises(PolicyError, match="no loss scale"):
        workers.same("rule")


def test_without_several_workers_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(workers, "context_lib", None)
    workers.same("rule")
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        workers.same("rule")
