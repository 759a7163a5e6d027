"""`AMP_ENABLE=1`: switches mixed precision on in a job that never imports this package.

Called by `_tf_amp_start`, which waited for TensorFlow, and by the `.pth` files of
earlier installations; imports no TensorFlow before the job does.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys

from amp import messages, variables
from amp.integration import fallback, imports
from amp.integration.launch import job_lines
from amp.policy import Policy


def install() -> None:
    """Arranges for `Policy.from_env()` to be in force once TensorFlow is imported.

    Where TensorFlow is imported already, that is now. A second call changes nothing.
    """
    enabled = variables.switch(os.environ)
    if enabled is None:
        value = os.environ["AMP_ENABLE"].strip().lower()
        found = f"AMP_ENABLE={value!r} is not understood (1 or 0)"
        messages.to_stderr_once(f"{found}; mixed precision is off")
    if not enabled:
        return
    complaint = variables.complaint(os.environ)
    if complaint and not _is_child():
        messages.to_stderr_once(complaint)
    imports.after("tensorflow", _enable, package="amp")


def _is_child() -> bool:
    """Whether `multiprocessing` made this process, whose parent has told all already.

    By the command line: `parent_process` knows only after the job's modules are loaded.
    """
    return "--multiprocessing-fork" in sys.orig_argv


def _enable() -> None:
    """Switches on; an error stops the job only if AMP_STRICT is set, else it warns."""
    strict = variables.switch(os.environ, "AMP_STRICT")
    part = fallback.Part("mixed precision is off", bool(strict))
    fallback.attempt(part, _enable_now, lambda: None)


@functools.cache
def _enable_now() -> None:
    """Switches on, once; after a failure it may be tried again.

    Called twice where an earlier installation waits for TensorFlow as well.
    """
    # By name, because it imports TensorFlow, which the job does first.
    api = importlib.import_module("amp.integration.api")
    api.enable_at_first_use(Policy.from_env())
    job_lines.announce()
    # Only at the end is it known that a pattern of AMP_KEEP matched nothing.
    atexit.register(api.disable)
