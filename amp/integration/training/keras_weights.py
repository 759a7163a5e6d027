"""The hooks for weight files of Keras 3, which save and load the loss scale too.

`BackupAndRestore`, `ModelCheckpoint`, `save_weights` and `.keras` files all come here.
The state is a further entry in the file, which Keras does not look for, so a job
without this package can read the file. If the entry is damaged, the weights are loaded
without it. What is saved of a scaler is decided in `loss_scaling.backup`, not here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from amp.integration import active, fallback, wrapping
from amp.integration.training import gradient_sources
from amp.loss_scaling import backup, state

_ENTRY, _KEY = "amp_loss_scale", "scalers"


_Around = Callable[[Callable[[], Any], Any, Any], Any]


def _at_root(key: str, around: _Around) -> wrapping.Decorate:
    """Returns what makes a hook for Keras' saving or loading of one object.

    Keras calls the hooked function for the object that the user saves, and then for
    each of its parts. Only the first of these calls is changed.

    Args:
      key: of the function's row.
      around: is given the original call, the object, and the file's store.
    """

    def decorate(original: wrapping.Function) -> wrapping.Function:
        arguments = wrapping.reader(key, original)

        def state_of(*args: Any, **kwargs: Any) -> Any:
            call = functools.partial(original, *args, **kwargs)
            given = arguments(*args, **kwargs)
            store = given.get("weights_store")
            if given.get("inner_path") or store is None:
                return call()
            return around(call, given.get("saveable"), store)

        return state_of

    return decorate


def _saved(call: Callable[[], Any], model: Any, store: Any) -> Any:
    result = call()

    def add() -> None:
        numbers = state.kept(list(_variables(model)))
        if len(numbers):
            store.make(_ENTRY)[_KEY] = numbers

    part = fallback.Part("a weight file has no loss scale", active.is_strict())
    fallback.attempt(part, add, lambda: None)
    return result


def _loaded(call: Callable[[], Any], model: Any, store: Any) -> Any:
    says = "a weight file is read without its loss scale"
    part = fallback.Part(says, active.is_strict())

    def read() -> backup.Numbers | None:
        entry = store.get(_ENTRY)
        if _KEY not in set(entry.keys()):  # older Keras has no `in`
            return None
        return backup.checked(entry[_KEY], f"the file's entry {_ENTRY}/{_KEY}")

    numbers = fallback.attempt(part, read, lambda: None)
    result = call()
    if numbers is not None:
        found = numbers
        give = functools.partial(state.give_back, list(_variables(model)))
        fallback.attempt(part, lambda: give(found), lambda: None)
    return result


def _variables(model: Any) -> Iterator[tf.Variable]:
    for each in getattr(model, "trainable_variables", None) or ():
        found = gradient_sources.variable(each)
        if found is not None:
            yield found


KERAS_HOOKS: dict[str, wrapping.Decorate] = {
    "saving_lib._save_state": _at_root("saving_lib._save_state", _saved),
    "saving_lib._load_state": _at_root("saving_lib._load_state", _loaded),
}
