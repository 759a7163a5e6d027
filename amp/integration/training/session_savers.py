"""Where jobs save and restore: old session checkpoints, and SavedModels with gradients.

Knows the savers' private names; nothing else is changed about saving or restoring.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint.checkpoint import TrackableSaver
from tensorflow.python.ops import variables
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

from amp.errors import CheckpointError, TensorFlowError
from amp.loss_scaling import state
from amp.loss_scaling.scaler import Scaler

# Set on a saver whose list is taken as it is.
_AS_LISTED = "_amp_as_listed"
_Concrete = tf.types.experimental.ConcreteFunction


def install() -> None:
    """Decorates session savers' restore and SavedModel's view of objects, once.

    Raises:
      TensorFlowError: a private name is missing.
    """
    saver = tf.compat.v1.train.Saver
    if getattr(saver.restore, "_amp_original", None) is not None:
        return
    saved_model = importlib.import_module("tensorflow.python.saved_model.save")
    view = getattr(saved_model, "_AugmentedGraphView", None)
    _check(tf.Graph, "_unsafe_unfinalize")
    _check(view, "list_children")
    _check(view, "_breadth_first_traversal")
    _check(saver, "_build")
    _check(variables, "_all_saveable_objects")
    _check(TrackableSaver, "restore")
    _replace(saver, "_build", _build)
    _replace(saver, "restore", _restore)
    _replace(TrackableSaver, "restore", _object_restore)
    _replace(view, "_breadth_first_traversal", _traversal)


def _check(owner: Any, name: str) -> None:
    if not callable(getattr(owner, name, None)):
        raise TensorFlowError(
            f"TensorFlow {tf.__version__} has no such private name",
            where=f"{getattr(owner, '__name__', 'saved_model.save')}.{name}",
            allowed="TensorFlow 2.18 to 2.21",
            remedy="install a supported version, or switch the plugin off",
        )


def _replace(owner: Any, name: str, decorate: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    wrapper: Any = functools.wraps(original)(decorate(original))
    wrapper._amp_original = original
    setattr(owner, name, wrapper)


def _traversal(original: Callable[..., Any]) -> Callable[..., Any]:
    """Functions that take gradients bring the scalers' variables along, at the root.

    Otherwise they belong to no object that is saved, and TensorFlow refuses to save it.
    """

    def traversal(self: Any) -> Any:
        states = state.current().states
        ours = {id(v.handle): v for scaler in states for v in scaler.variables}
        functions = [x for x in _reachable(self) if isinstance(x, _Concrete)]
        found = {
            ours[id(handle)].name: ours[id(handle)]
            for function in functions
            for handle in getattr(function, "captured_inputs", ())
            if id(handle) in ours
        }
        names = {re.sub(r"\W", "_", name): found[name] for name in sorted(found)}
        self._children_cache[self.root].update(names)
        return original(self)

    return traversal


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
    """A scaler's variable as a session's saver sees it.

    Saving gives it its first value where it has none yet. Restoring the scale clears
    the flags of single variables, which are not saved: a job may restore what trained
    other variables than it does.
    """

    def __init__(self, scaler: Scaler, variable: tf.Variable) -> None:
        with scaler.ready():
            value = variable.read_value()
        name = variable.op.name
        spec = SaveSpec(value, "", name, variable.dtype, variable.device)
        super().__init__(variable.handle, [spec], name)
        self.variable = variable
        # The scale speaks for all of its scaler's variables.
        with tf.init_scope():
            self.others = scaler.forget() if variable is scaler.scale else tf.no_op()
            self.begin = tf.group(variable.initializer, self.others)

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        done = self.variable.assign(restored_tensors[0], read_value=False)
        return tf.group(done, self.others)


def _build(original: Callable[..., Any]) -> Callable[..., Any]:
    """A session's saver of all variables saves the scalers' too."""

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours = [] if tf.executing_eagerly() or self.saver_def else _saved(self)
        if ours:
            listed = self._var_list
            if listed is None:
                listed = variables._all_saveable_objects()
            self._var_list = [*listed, *ours]
        return original(self, *args, **kwargs)

    return build


def _saved(saver: Any) -> list[_Saved]:
    """Returns what is to be added to what a saver saves: nothing to a choice."""
    listed = saver._var_list
    if listed is not None:
        if not isinstance(listed, (list, tuple)) or getattr(saver, _AS_LISTED, False):
            return []
        known = {id(variable) for variable in listed}
        if any(id(v) not in known for v in tf.compat.v1.global_variables()):
            return []
    states = state.current().states
    pairs = [(scaler, v) for scaler in states for v in scaler.variables]
    return [_Saved(*pair) for pair in pairs if pair[1].shape.rank == 0]


def _restore(original: Callable[..., Any]) -> Callable[..., Any]:
    def restore(self: Any, sess: Any, save_path: Any) -> Any:
        ours = _ours(self)
        if not ours or not _exists(save_path):
            return original(self, sess, save_path)
        shapes = tf.train.load_checkpoint(save_path).get_variable_to_shape_map()
        _check_shapes({o.name: o.variable.shape for o in ours}, shapes, save_path)
        absent = [o for o in ours if o.name not in shapes]
        if not absent:
            return original(self, sess, save_path)
        with _open(sess.graph):
            partial = _without(self, absent)
        result = original(partial, sess, save_path)
        sess.run([o.begin for o in absent])
        return result

    return restore


def _ours(saver: Any) -> list[_Saved]:
    listed = getattr(saver, "_var_list", None)
    if tf.executing_eagerly() or not isinstance(listed, list):
        return []
    return [item for item in listed if isinstance(item, _Saved)]


def _without(saver: Any, absent: list[_Saved]) -> Any:
    """Returns a saver like `saver` that leaves what is absent alone."""
    left = {id(item) for item in absent}
    rest = [item for item in saver._var_list if id(item) not in left]
    partial = tf.compat.v1.train.Saver(
        sharded=saver._sharded, allow_empty=True, defer_build=True
    )
    partial._var_list = rest
    setattr(partial, _AS_LISTED, True)
    partial.build()
    return partial


def _exists(path: Any) -> bool:
    """Whether it is there; TensorFlow's own question is deprecated, and says so."""
    if path is None:
        return False
    gfile, first = tf.io.gfile, f"{path}.index"
    return bool(gfile.exists(first) or gfile.exists(path) and not gfile.isdir(path))


def _check_shapes(wanted: Any, found: Any, path: Any) -> None:
    """Raises, before anything is restored, for a state of another shape.

    Raises:
      CheckpointError: naming the first such entry.
    """
    for name, shape in wanted.items():
        if name in found and not shape.is_compatible_with(found[name]):
            raise CheckpointError(
                f"loss-scale state of shape {tuple(found[name])}; nothing is restored",
                where=f"{path}, entry {name}",
                allowed=f"shape {tuple(shape)}, or no such entry",
                remedy="restore the model's variables alone (by the var_list of a "
                "Saver, or a Checkpoint without amp.loss_scaling.current()); the loss "
                "scale then starts anew",
            )


def _object_restore(original: Callable[..., Any]) -> Callable[..., Any]:
    """Checks the shapes of scalers that are made already; `Scalers.add` the others."""

    def restore(self: Any, save_path: Any, *args: Any, **kwargs: Any) -> Any:
        group = state.current()
        if group.states and _exists(save_path):
            shapes = tf.train.load_checkpoint(save_path).get_variable_to_shape_map()
            wanted = _entries(group, shapes)
            reached = _reachable(self._graph_view) if wanted else []
            if any(item is group for item in reached):
                _check_shapes(wanted, shapes, save_path)
        return original(self, save_path, *args, **kwargs)

    return restore


def _entries(group: state.Scalers, names: Any) -> dict[str, tf.TensorShape]:
    """Returns the shapes of the scalers' variables by the names of their entries."""
    wanted = {}
    for number, scaler in group.numbered():
        for variable in scaler.variables:
            field = re.sub(r".*/|:.*", "", variable.name)
            end = f"/scaler_{number}/{field}/.ATTRIBUTES/VARIABLE_VALUE"
            meant = [name for name in names if f"/{name}".endswith(end)]
            wanted.update(dict.fromkeys(meant, variable.shape))
    return wanted


@contextlib.contextmanager
def _open(graph: Any) -> Iterator[None]:
    """Allows building in a graph that may be finalized, as monitored sessions do."""
    finalized = graph.finalized
    graph._unsafe_unfinalize()
    try:
        with graph.as_default():
            yield
    finally:
        if finalized:
            graph.finalize()
