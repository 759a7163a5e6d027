"""The options of a call whose graph TensorFlow's graph optimizers leave as written.

For functions that run only a few times, which optimizing would slow down, or whose
nodes are to be measured each by itself. What is called is decided elsewhere.
"""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib


def options() -> tuple[Any, ...]:
    """The attributes for `execute.execute`.

    They go with the call, so that no setting of the process or the thread changes, and
    such a call goes past `Context.call_function`, so that what is called gets no twin.
    """
    attrs = context_lib.context().function_call_options.as_attrs()
    config = tf.compat.v1.ConfigProto.FromString(attrs["config_proto"])
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    attrs["config_proto"] = config.SerializeToString(deterministic=True)
    return tuple(itertools.chain(*attrs.items()))
