"""What the adapter adds to a function call, in microseconds.

A program anyone can run: `python -m benchmarks.call_overhead`. A function call takes
hundreds of microseconds and varies by more than the adapter adds, so the hooks are
timed alone, around a stand-in that returns at once, with mixed precision off and on.
"""

from __future__ import annotations

import os
import statistics
import timeit
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tensorflow.python.eager import context as context_lib
from tensorflow.python.eager.polymorphic_function import function_context

import amp
from amp.integration.functions import function_hooks

CALLS, ROUNDS = 100_000, 9


def instant(*args: Any) -> Any:
    """Stands in for TensorFlow's part of a call."""
    return args[0] if len(args) == 1 else None


def microseconds(call: Any, *args: Any) -> float:
    """Median time of one call."""
    rounds = timeit.repeat(lambda: call(*args), number=CALLS, repeat=ROUNDS)
    return statistics.median(rounds) / CALLS * 1e6


def main() -> None:
    policy = amp.Policy(dtype="bfloat16", assignment="all")
    weights = tf.Variable(tf.ones([64, 64]))
    fn = tf.function(lambda x: tf.matmul(x, weights))
    x = tf.ones([32, 64])
    with amp.mixed_precision_scope(policy):
        fn(x)
    name = fn.get_concrete_function(x).name
    context, key = context_lib.context(), function_context.make_function_context()
    call = function_hooks.HOOKS["Context.call_function"](instant)
    make_key = function_hooks.HOOKS["function_context.make_function_context"]
    trace_key = make_key(lambda scope: key)
    bare = microseconds(instant, context, name, [], 1) + microseconds(instant, None)
    for label, on in (("off", False), ("on", True)):
        if on:
            amp.enable(policy)
        whole = microseconds(call, context, name, [], 1) + microseconds(trace_key, None)
        print(f"mixed precision {label}: {whole - bare:.2f} us a call")


if __name__ == "__main__":
    main()
