"""Where Keras 3 writes and reads weights: the loss scale goes along.

`BackupAndRestore`, `ModelCheckpoint`, `save_weights` and `.keras` files all come here.
Knows Keras' private names; what is kept of a scaler is not decided here.

The entry stands beside those that Keras looks for, so a job without the plugin reads
the file as ever.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from amp.errors import TensorFlowError
from amp.integration.launch import imports
from amp.integration.training import gradient_sources
from amp.loss_scaling import backup, state

_SAVING = "keras.src.saving.saving_lib"
_ENTRY, _KEY = "amp_loss_scale", "scalers"


def install() -> None:
    """Decorates Keras' saving and loading, once it is imported, once."""
    imports.after(_SAVING, _install)


def _install() -> None:
    saving = vars(sys.modules[_SAVING])
    for name, decorated in (("_save_state", _saved), ("_load_state", _loaded)):
        original: Any = saving.get(name)
        if getattr(original, "_amp_original", None) is not None:
            continue
        try:
            _check(original, name)
        except TensorFlowError as e:  # raised, it would be a failure to import Keras
            logging.warning("amp: weight files come without the loss scale: %s", e)
            return
        saving[name] = _at_root(original, decorated)


def _check(original: Any, name: str) -> None:
    wanted = {"saveable", "weights_store", "inner_path"}
    if not callable(original) or not wanted <= {
        *inspect.signature(original).parameters
    }:
        raise TensorFlowError(
            f"Keras has no {name}({', '.join(sorted(wanted))})",
            where=f"{_SAVING}.{name}",
            allowed="Keras 3 to 3.15",
            remedy="install a supported version, or a newer version of this package",
        )


_Around = Callable[[Callable[[], Any], Any, Any], Any]


def _at_root(original: Callable[..., Any], around: _Around) -> Callable[..., Any]:
    """Decorates the call for a whole object; `original` calls itself for its parts."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def state_of(*args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, *args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        store = given["weights_store"]
        if given["inner_path"] or store is None:
            return call()
        return around(call, given["saveable"], store)

    state_of._amp_original = original  # type: ignore[attr-defined]
    return state_of


def _saved(call: Callable[[], Any], model: Any, store: Any) -> Any:
    result = call()
    numbers = state.kept(list(_variables(model)))
    if len(numbers):
        store.make(_ENTRY)[_KEY] = numbers
    return result


def _loaded(call: Callable[[], Any], model: Any, store: Any) -> Any:
    entry = store.get(_ENTRY)
    numbers = None
    if _KEY in set(entry.keys()):  # older Keras has no `in`
        numbers = backup.checked(entry[_KEY], f"the file's entry {_ENTRY}/{_KEY}")
    result = call()
    if numbers is not None:
        state.give_back(list(_variables(model)), numbers)
    return result


def _variables(model: Any) -> Iterator[tf.Variable]:
    for each in getattr(model, "trainable_variables", None) or ():
        found = gradient_sources.variable(each)
        if found is not None:
            yield found
