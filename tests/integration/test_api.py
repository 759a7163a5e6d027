"""Scopes, `enable` and `disable`, `keep_float32`: what is on, where and how long."""

from __future__ import annotations

import asyncio
import threading

import pytest
import tensorflow as tf

import amp
from amp.errors import PolicyError
from amp.graph_rewrite.ops import op_names
from amp.integration import active, api

ON = {"dtype": "bfloat16", "emulate": True, "assignment": "all", "strict": True}
OTHER = {**ON, "dtype": "float16"}


def test_what_is_enabled_is_on_until_it_is_disabled():
    policy = amp.enable(**ON)
    assert active.active().settled.policy.dtype == policy.dtype
    amp.disable()
    assert active.active() is None


def test_variables_reach_a_job_that_switches_on_itself(monkeypatch):
    monkeypatch.setenv("AMP_DTYPE", "float16")
    monkeypatch.setenv("AMP_EMULATE", "1")
    assert amp.enable().dtype == "float16"
    amp.disable()
    with amp.mixed_precision_scope(assignment="all") as policy:
        assert (policy.dtype, policy.emulate) == ("float16", True)


def test_scopes_nest_and_decorate():
    @amp.mixed_precision_scope(**ON)
    def inside():
        return active.active()

    with amp.mixed_precision_scope(**{**ON, "dtype": "float16"}):
        outer = active.active()
        assert inside().settled.policy.dtype == "bfloat16"
        assert active.active() is outer
    assert active.active() is None


def test_a_scope_decorates_a_coroutine_to_its_end():
    @amp.mixed_precision_scope(**ON)
    async def inside():
        await asyncio.sleep(0)
        return active.active()

    async def both():
        running = asyncio.ensure_future(inside())
        await asyncio.sleep(0)
        assert active.active() is None
        return await running, await inside(), active.active()

    first, second, after = asyncio.run(both())
    assert first.settled.policy.dtype == second.settled.policy.dtype == "bfloat16"
    assert after is None


def test_a_scope_decorates_no_generator():
    """It would hold for whoever takes the elements, until the last is taken."""

    def batches():
        yield 1

    async def later():
        yield 1

    for function in (batches, later):
        with pytest.raises(PolicyError, match=r"(?s)a generator.*with amp\.mixed"):
            amp.mixed_precision_scope(**ON)(function)


def test_float32_is_kept_inside():
    with amp.mixed_precision_scope(**ON), amp.keep_float32():
        assert active.active_twins() is None
    with amp.keep_float32():
        assert active.is_kept()
        assert active.active().settled.policy is None
        assert active.active_loss_scale() is None
    assert not active.is_kept()


def test_a_policy_that_waits_is_settled_at_first_use():
    api.enable_at_first_use(amp.Policy.make(None, **ON))
    assert active.active().settled.policy.dtype == "bfloat16"


@pytest.mark.parametrize("switch", [amp.disable, lambda: amp.enable(**OTHER)])
def test_what_is_switched_while_another_thread_settles_stays(monkeypatch, switch):
    """Settling asks the machine, which takes long; here it switches meanwhile."""
    settle, switched = api.settle, []

    def slowly(policy):
        found = settle(policy)
        if not switched:
            switched.append(True)
            thread = threading.Thread(target=switch)
            thread.start()
            thread.join()
        return found

    monkeypatch.setattr(api, "settle", slowly)
    api.enable_at_first_use(amp.Policy.make(None, **ON))
    found = active.active()
    wanted = None if switch is amp.disable else "float16"
    assert (found and found.settled.policy.dtype) == wanted
    assert active.active() is found
    amp.disable()


def test_a_policy_that_waits_may_name_ops_of_a_library_that_the_job_loads(monkeypatch):
    known = op_names.op_schema.schema
    loaded = set()

    def schema(op):
        return known("Relu" if op in loaded else op)

    monkeypatch.setattr(op_names.op_schema, "schema", schema)
    api.enable_at_first_use(amp.Policy.make(None, **ON, allow=("Gate",)))
    loaded.add("Gate")
    assert active.active().settled.policy.allow == ("Gate",)
    amp.disable()
    misspelt = {**ON, "strict": False, "allow": ("Gaet",)}
    api.enable_at_first_use(amp.Policy.make(None, **misspelt))
    with pytest.warns(RuntimeWarning, match="there is no op 'Gaet'") as caught:
        assert active.active() is None
    assert "if it is of a library, load that first" in str(caught[0].message)


def test_after_disable_a_call_is_as_without_the_package():
    amp.enable(**ON)
    amp.disable()
    x, y = tf.Variable(2.0), tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        z = tf.function(lambda: x * x)()
    zero = tf.UnconnectedGradients.ZERO
    assert tape.gradient(z, y, None, zero).numpy() == 0.0
    assert tape.gradient(z, [x], unconnected_gradients=zero)[0].numpy() == 4.0
    with pytest.raises(TypeError, match="sources"):
        tape.gradient(z)
