"""Whether this process is one of several that take a step together.

What is done, or left, because of that is not decided here.
"""

from __future__ import annotations

import sys
from typing import Any

from tensorflow.python.eager import context as context_lib

_HOROVOD = ("horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras")


def is_in_one() -> bool:
    """Whether TensorFlow's runtime, or Horovod, has other processes for a step."""
    context: Any = context_lib.context()
    collective = getattr(context, "_collective_ops_server_def", None)
    served = collective is not None or context.get_server_def() is not None
    return served or is_of_horovod()


def is_of_horovod() -> bool:
    """Whether Horovod runs several processes, of which TensorFlow knows nothing."""
    for name in _HOROVOD:
        library: Any = sys.modules.get(name)
        started = getattr(library, "is_initialized", None)
        if started is not None and started():
            return bool(library.size() > 1)
    return False
