"""Puts every hook in place, whole or not at all; those of Keras once it is imported.

Each room has a table `HOOKS` with the hooks it defines. No policy is settled here and
no scope entered.
"""

from __future__ import annotations

import functools
import threading

import tensorflow as tf

from amp.errors import TensorFlowError
from amp.integration import (
    active,
    fallback,
    forward_mode,
    hooks,
    imports,
    wrapping,
)
from amp.integration.distributed import strategy_threads, wire
from amp.integration.functions import function_hooks, step_probes
from amp.integration.process import PROCESS
from amp.integration.sessions import check_ops, session_hooks
from amp.integration.training import (
    gradient_hooks,
    keras_weights,
    optimizer_hooks,
    replica_sums,
    scaled_losses,
    session_savers,
)
from amp.loss_scaling.process import SCALING

OLDEST = (2, 18)

DECORATORS: dict[str, wrapping.Decorate] = {
    **function_hooks.HOOKS,
    **session_hooks.HOOKS,
    **check_ops.HOOKS,
    **strategy_threads.HOOKS,
    **gradient_hooks.HOOKS,
    **forward_mode.HOOKS,
    **optimizer_hooks.HOOKS,
    **replica_sums.HOOKS,
    **scaled_losses.HOOKS,
    **session_savers.HOOKS,
}
KERAS_DECORATORS: dict[str, wrapping.Decorate] = {
    **optimizer_hooks.KERAS_HOOKS,
    **scaled_losses.KERAS_HOOKS,
    **wire.KERAS_HOOKS,
    **keras_weights.KERAS_HOOKS,
}
TF_KERAS_DECORATORS: dict[str, wrapping.Decorate] = {
    **optimizer_hooks.TF_KERAS_HOOKS,
    **scaled_losses.TF_KERAS_HOOKS,
}

_LOCK = threading.RLock()


def install() -> None:
    """Puts the hooks in place, once per process.

    Raises:
      TensorFlowError: a TensorFlow that is too old, or every name that does not fit;
        then nothing in TensorFlow was changed.
    """
    with _LOCK:
        if PROCESS.installed:
            return
        require_version(tf.__version__)
        wrapping.install(hooks.of_tensorflow(), DECORATORS)
        PROCESS.installed = True
        SCALING.ask = step_probes.ask
    for module in hooks.keras_modules():
        imports.after(module, functools.partial(install_keras, module))
    for module in hooks.keras_modules(hooks.TF_KERAS):
        imports.after(module, functools.partial(install_tf_keras, module))


def install_keras(loaded: str = "") -> None:
    """Puts the hooks of Keras in place, once it is imported and runs on TensorFlow.

    Keras is left as it was if one of them does not fit: updates are then never left
    out, and the loss scale is in no weight file.

    Args:
      loaded: the module of Keras whose code has just run.
    """
    says = "Keras runs as it was: optimizers skip no update that overflows"
    part = fallback.Part(says, active.is_strict())
    # A warning may run the program's code: it comes when the lock is free again.
    fallback.attempt(part, lambda: _install_keras(loaded), lambda: None)


def _install_keras(loaded: str) -> None:
    with _LOCK:
        if PROCESS.keras_installed or not PROCESS.installed:
            return
        if hooks.keras_is_there(loaded):
            wrapping.install(hooks.of_keras(), KERAS_DECORATORS)
            PROCESS.keras_installed = True


def install_tf_keras(loaded: str = "") -> None:
    """The same for tf_keras, the Keras before; a job may have both.

    Args:
      loaded: the module of tf_keras whose code has just run.
    """
    says = "tf_keras runs as it was: optimizers skip no update that overflows"
    part = fallback.Part(says, active.is_strict())
    fallback.attempt(part, lambda: _install_tf_keras(loaded), lambda: None)


def _install_tf_keras(loaded: str) -> None:
    with _LOCK:
        if PROCESS.tf_keras_installed or not PROCESS.installed:
            return
        if hooks.keras_is_there(loaded, hooks.TF_KERAS):
            wrapping.install(hooks.of_keras(hooks.TF_KERAS), TF_KERAS_DECORATORS)
            PROCESS.tf_keras_installed = True


def require_version(version: str) -> None:
    """Raises for a TensorFlow that is too old.

    Raises:
      TensorFlowError: naming the version found and the oldest supported.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST:
        raise TensorFlowError(
            f"TensorFlow {version} is too old",
            where="tensorflow.__version__",
            allowed="TensorFlow 2.18 or newer",
            remedy="pip install --upgrade tensorflow",
        )
