"""Whether this process is one of several that take a step together.

What is done, or left, because of that is not decided here.
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import context as context_lib


def is_in_one() -> bool:
    """Whether TensorFlow's runtime has other processes to run functions with."""
    context: Any = context_lib.context()
    collective = getattr(context, "_collective_ops_server_def", None)
    return collective is not None or context.get_server_def() is not None
