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

from amp.errors import TensorFlowError
from amp.loss_scaling import state

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
    _replace(saver, "restore", _restore)
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
        found = {
            ours[id(handle)].name: ours[id(handle)]
            for function in _reachable(self)
            for handle in getattr(function, "captured_inputs", ())
            if id(handle) in ours
        }
        names = {re.sub(r"\W", "_", name): found[name] for name in sorted(found)}
        self._children_cache[self.root].update(names)
        return original(self)

    return traversal


def _reachable(view: Any) -> list[Any]:
    """Returns the traced functions that a SavedModel's view of its root reaches."""
    seen, waiting = {id(view.root): view.root}, [view.root]
    while waiting:
        for _, child in view.list_children(waiting.pop()):
            if id(child) not in seen:
                seen[id(child)] = child
                waiting.append(child)
    return [x for x in seen.values() if isinstance(x, _Concrete)]


def _restore(original: Callable[..., Any]) -> Callable[..., Any]:
    def restore(self: Any, sess: Any, save_path: Any) -> Any:
        absent = [] if tf.executing_eagerly() else _absent(self, sess.graph, save_path)
        if not absent:
            return original(self, sess, save_path)
        ours = {id(variable) for variable in absent}
        rest = [v for v in self._var_list if id(v) not in ours]
        with _open(sess.graph):
            partial = tf.compat.v1.train.Saver(rest, sharded=self._sharded)
        result = original(partial, sess, save_path)
        sess.run([variable.initializer for variable in absent])
        return result

    return restore


def _absent(saver: Any, graph: tf.Graph, save_path: Any) -> list[tf.Variable]:
    """Returns the scalers' variables that a saver would restore and a file lacks."""
    listed = getattr(saver, "_var_list", None)
    if not isinstance(listed, list) or save_path is None:
        return []
    with graph.as_default():
        states = state.current().states
    ours = {id(v) for scaler in states for v in scaler.variables}
    ours &= {id(v) for v in listed}
    if not ours or not tf.compat.v1.train.checkpoint_exists(save_path):
        return []
    reader = tf.train.load_checkpoint(save_path)
    return [v for v in listed if id(v) in ours and not reader.has_tensor(v.op.name)]


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
