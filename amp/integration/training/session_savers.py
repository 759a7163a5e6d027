"""The hooks for checkpoints of sessions, and for SavedModels of training functions.

Session checkpoints contain the loss scale too, and those without it can be restored. A
SavedModel of functions that take gradients contains the scalers' variables. Nothing
else is changed about saving or restoring.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import variables
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

from amp.integration import active, fallback, wrapping
from amp.loss_scaling import entries, group
from amp.loss_scaling.scaler import Scaler

# Set on a saver that is to save what its list has, and no loss scale.
_AS_LISTED = "_amp_as_listed"
# Set on a saver: by what checkpoints lacked, the savers of the rest.
_PARTIAL = "_amp_partial"
_Concrete = tf.types.experimental.ConcreteFunction


def _traversal(original: wrapping.Function) -> wrapping.Function:
    """Makes the hook that adds scalers' variables to the objects of a SavedModel.

    Those that saved functions use become children of the root object. Otherwise they
    would belong to no object that is saved, and TensorFlow would refuse to save.
    """

    def traversal(self: Any, *args: Any, **kwargs: Any) -> Any:
        if group.current().scalers:
            part = fallback.Part("a SavedModel is saved as it was", active.is_strict())
            names = fallback.attempt(part, lambda: _captured(self), dict)
            self._children_cache[self.root].update(names)
        return original(self, *args, **kwargs)

    return traversal


def _captured(view: Any) -> dict[str, tf.Variable]:
    """The scalers' variables that functions in an object graph use, by name."""
    states = group.current().scalers
    ours = {id(v.handle): v for scaler in states for v in scaler.variables}
    functions = [x for x in _reachable(view) if isinstance(x, _Concrete)]
    found = {
        ours[id(handle)].name: ours[id(handle)]
        for function in functions
        for handle in getattr(function, "captured_inputs", ())
        if id(handle) in ours
    }
    return {re.sub(r"\W", "_", name): found[name] for name in sorted(found)}


def _reachable(view: Any) -> list[Any]:
    """Returns the objects that a view of an object graph reaches from its root."""
    seen, waiting = {id(view.root): view.root}, [view.root]
    while waiting:
        for _, child in view.list_children(waiting.pop()):
            if id(child) not in seen:
                seen[id(child)] = child
                waiting.append(child)
    return list(seen.values())


class _Saved(SaveableObject):  # type: ignore[misc]
    """A scaler's variable in the form that a session's saver takes.

    When it is saved before it has a value, it gets its first value.
    """

    def __init__(self, scaler: Scaler, field: str) -> None:
        variable = getattr(scaler, field)
        with scaler.ready():
            value = entries.to_file(field, variable.read_value())
        name = variable.op.name
        spec = SaveSpec(value, "", name, value.dtype, variable.device)
        super().__init__(variable.handle, [spec], name)
        self.scaler, self.field, self.dtype = scaler, field, value.dtype
        with tf.init_scope():
            others = scaler.forget() if field == "scale" else tf.no_op()
            self.begin = tf.group(variable.initializer, others)

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        return self.scaler.restore(self.field, restored_tensors[0])


def _build(original: wrapping.Function) -> wrapping.Function:
    """Makes the hook by which a saver of all variables saves the scalers' too."""
    part = fallback.Part("a session's checkpoints come without the loss scale")

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours: list[_Saved] = []
        if not tf.executing_eagerly() and not self.saver_def:
            strict = dataclasses.replace(part, strict=active.is_strict())
            ours = fallback.attempt(strict, lambda: _saved(self), list)
        if ours:
            listed = self._var_list
            if listed is None:
                listed = variables._all_saveable_objects()
            self._var_list = [*listed, *ours]
        return original(self, *args, **kwargs)

    return build


def _saved(saver: Any) -> list[_Saved]:
    """Returns the scalers' variables that a saver is to save besides its own.

    It is empty if the user has chosen which variables are saved.
    """
    listed = saver._var_list
    if listed is not None:
        if not isinstance(listed, (list, tuple)) or getattr(saver, _AS_LISTED, False):
            return []
        known = {id(variable) for variable in listed}
        if any(id(v) not in known for v in tf.compat.v1.global_variables()):
            return []
    states = group.current().scalers
    return [_Saved(scaler, field) for scaler in states for field in entries.SAVED]


def _restore(original: wrapping.Function) -> wrapping.Function:
    arguments = wrapping.reader("Saver.restore", original)

    def restore(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = arguments(self, *args, **kwargs)
        sess, save_path = given.get("sess"), given.get("save_path")
        ours = _ours(self)
        if not ours or not _exists(save_path):
            return original(self, *args, **kwargs)
        absent = _absent(ours, save_path)
        if not absent:
            return original(self, *args, **kwargs)
        partial = _partial(self, absent, sess.graph)
        result = given.replaced("self", partial).call(original)
        sess.run([o.begin for o in absent])
        return result

    return restore


def _ours(saver: Any) -> list[_Saved]:
    listed = getattr(saver, "_var_list", None)
    if tf.executing_eagerly() or not isinstance(listed, list):
        return []
    return [item for item in listed if isinstance(item, _Saved)]


def _partial(saver: Any, absent: list[_Saved], graph: Any) -> Any:
    """As `_without`, made once for each set of what is absent: it adds nodes."""
    made = saver.__dict__.setdefault(_PARTIAL, {})
    key = frozenset(map(id, absent))  # the saver's list keeps them
    if key not in made:
        with _open(graph):
            made[key] = _without(saver, absent)
    return made[key]


def _without(saver: Any, absent: list[_Saved]) -> Any:
    """Returns a saver like `saver` that does not restore what is absent."""
    left = {id(item) for item in absent}
    rest = [item for item in saver._var_list if id(item) not in left]
    partial = tf.compat.v1.train.Saver(
        reshape=saver._reshape,
        sharded=saver._sharded,
        allow_empty=True,
        defer_build=True,
    )
    partial._var_list = rest
    setattr(partial, _AS_LISTED, True)
    partial.build()
    return partial


def _exists(path: Any) -> bool:
    """Whether a checkpoint exists. TensorFlow's function for this warns when called."""
    if path is None:
        return False
    gfile, first = tf.io.gfile, f"{path}.index"
    return bool(gfile.exists(first) or gfile.exists(path) and not gfile.isdir(path))


def _absent(ours: list[_Saved], path: Any) -> list[_Saved]:
    """Returns the variables that a checkpoint lacks or has in a wrong type or shape."""
    reader = tf.train.load_checkpoint(path)
    shapes, dtypes = reader.get_variable_to_shape_map(), None
    absent = []
    for item in ours:
        if item.name in shapes:
            dtypes = dtypes or reader.get_variable_to_dtype_map()
            if shapes[item.name] == [] and dtypes[item.name] == item.dtype:
                continue
            found = f"{dtypes[item.name].name}, shape {tuple(shapes[item.name])}"
            entries.skipped(f"{path}: {item.name}", found)
        absent.append(item)
    return absent


@contextlib.contextmanager
def _open(graph: Any) -> Iterator[None]:
    """A scope in which nodes can be added to a graph that may be finalized."""
    finalized = graph.finalized
    graph._unsafe_unfinalize()
    try:
        with graph.as_default():
            yield
    finally:
        if finalized:
            graph.finalize()


HOOKS: dict[str, wrapping.Decorate] = {
    "Saver._build": _build,
    "Saver.restore": _restore,
    "_AugmentedGraphView._breadth_first_traversal": _traversal,
}
