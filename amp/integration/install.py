"""Puts every hook in place, whole or not at all; those of Keras once it is imported.

Each room has a table `HOOKS` with the hooks it defines. No policy is settled here and
no scope entered.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Mapping

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
from amp.integration.functions import function_hooks
from amp.integration.observing import step_probes
from amp.integration.process import PROCESS
from amp.integration.sessions import check_ops, session_hooks
from amp.integration.training import (
    custom_gradients,
    first_averages,
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
    **custom_gradients.HOOKS,
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
    **first_averages.KERAS_HOOKS,
}
TF_KERAS_DECORATORS: dict[str, wrapping.Decorate] = {
    **optimizer_hooks.TF_KERAS_HOOKS,
    **scaled_losses.TF_KERAS_HOOKS,
}
KERAS_MULTI_DECORATORS = optimizer_hooks.KERAS_MULTI_HOOKS


@dataclasses.dataclass(frozen=True, slots=True)
class _Library:
    """What a job may import, and which gets hooks of its own then.

    Attributes:
      decorators: by a row's key, makes its hook.
      says: what holds while the hooks are not in place.
    """

    decorators: Mapping[str, wrapping.Decorate]
    says: str


_LIBRARIES = {
    hooks.KERAS: _Library(
        KERAS_DECORATORS,
        "Keras runs as it was: optimizers skip no update that overflows",
    ),
    hooks.KERAS_MULTI: _Library(
        KERAS_MULTI_DECORATORS,
        "MultiOptimizer runs as it was: its optimizers skip updates one by one",
    ),
    hooks.TF_KERAS: _Library(
        TF_KERAS_DECORATORS,
        "tf_keras runs as it was: optimizers skip no update that overflows",
    ),
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
    for library in _LIBRARIES:
        for module in hooks.keras_modules(library):
            imports.after(module, functools.partial(install_library, library, module))


def install_library(library: str, loaded: str = "") -> None:
    """Puts the hooks of a library in place, once it is imported and runs on TensorFlow.

    It is left as it was if one of them does not fit. Without those of Keras updates are
    never left out, and the loss scale is in no weight file.

    Args:
      library: as `hooks` names it.
      loaded: the module of the library whose code has just run.
    """
    part = fallback.Part(_LIBRARIES[library].says, active.is_strict())
    # A warning may run the program's code: it comes when the lock is free again.
    fallback.attempt(part, lambda: _install_library(library, loaded), lambda: None)


def _install_library(library: str, loaded: str) -> None:
    with _LOCK:
        if library in PROCESS.libraries or not PROCESS.installed:
            return
        if hooks.keras_is_there(loaded, library):
            wrapping.install(hooks.of_keras(library), _LIBRARIES[library].decorators)
            PROCESS.libraries.add(library)


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
