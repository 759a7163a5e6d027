"""Where jobs save and restore: old session checkpoints, and SavedModels with gradients.

Knows the savers' private names; nothing else is changed about saving or restoring.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from amp.errors import TensorFlowError
from amp.loss_scaling import state


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
    _replace(saver, "restore", _restore)
    _replace(view, "list_children", _list_children)


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
    wrapper = functools.wraps(original)(decorate(original))
    wrapper._amp_original = original
    setattr(owner, name, wrapper)


def _list_children(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes gradients brings the scaler's variables along.

    Otherwise they belong to no object that is saved, and TensorFlow refuses to save it.
    """

    def list_children(self: Any, obj: Any) -> Any:
        inputs = getattr(obj, "captured_inputs", ())
        if isinstance(inputs, (list, tuple)) and inputs:
            states = state.current().states
            ours = {id(v.handle): v for scaler in states for v in scaler.variables}
            found = {
                f"amp_capture_{n}": ours[id(handle)]
                for n, handle in enumerate(inputs)
                if id(handle) in ours
            }
            list(original(self, obj))  # fills the cache that it answers from
            self._children_cache[obj].update(found)
        return original(self, obj)

    return list_children


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
