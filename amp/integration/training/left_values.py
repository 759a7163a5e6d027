"""`LeftValues`: the tensors that an optimizer's update leaves for the program to read.

An update that may be skipped is a branch, and what a branch computes cannot be read
outside of it. So the branch returns them, and whoever kept them is given the results:
attributes of the optimizer (a norm, a rate) and collections of a session graph (its
summaries). Called by `optimizer_hooks`; nothing is skipped and no branch built here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from amp.integration import fallback

_Place = Callable[[Any], None]  # puts a tensor where one was kept


def may_keep(optimizer: Any) -> bool:
    """Whether an optimizer may keep tensors of its update: those of Keras keep none."""
    return type(optimizer).__module__.partition(".")[0] not in ("keras", "tf_keras")


class LeftValues:
    """What one update leaves. To be made where its branch will be built.

    Args:
      optimizer: the object that updates.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._graph: Any = tf.compat.v1.get_default_graph()
        self._before = dict(getattr(optimizer, "__dict__", {}))
        self._listed = {key: len(kept) for key, kept in self._collections()}
        self._places: list[_Place] = []

    def tensors(self) -> list[tf.Tensor]:
        """The tensors. To be called in the branch, once the update is built."""
        found = [*self._attributes(), *self._entries()]
        self._places = [place for place, _ in found]
        return [tensor for _, tensor in found]

    def put(self, tensors: Sequence[tf.Tensor]) -> None:
        """Gives those who kept the tensors what the branch returned for them."""
        for place, tensor in zip(self._places, tensors, strict=True):
            fallback.attempt_quietly(functools.partial(place, tensor), None)

    def _attributes(self) -> Iterator[tuple[_Place, Any]]:
        nothing = object()
        for name, value in dict(getattr(self._optimizer, "__dict__", {})).items():
            if value is self._before.get(name, nothing):
                continue
            flat: list[Any] = fallback.attempt_quietly(
                functools.partial(_flat, value), []
            )
            for index, tensor in enumerate(flat):
                if self._is_left(tensor):
                    yield self._in_attribute(name, index), tensor

    def _in_attribute(self, name: str, index: int) -> _Place:
        def place(tensor: Any) -> None:
            value = self._optimizer.__dict__[name]
            flat = _flat(value)
            flat[index] = tensor
            packed = tf.nest.pack_sequence_as(value, flat, expand_composites=True)
            setattr(self._optimizer, name, packed)

        return place

    def _entries(self) -> Iterator[tuple[_Place, Any]]:
        for key, kept in self._collections():
            for index in range(self._listed.get(key, 0), len(kept)):
                if self._is_left(kept[index]):
                    yield self._in_collection(key, index), kept[index]

    def _in_collection(self, key: Any, index: int) -> _Place:
        def place(tensor: Any) -> None:
            self._graph.get_collection_ref(key)[index] = tensor

        return place

    def _collections(self) -> list[tuple[Any, list[Any]]]:
        """Those of a session graph; branches of functions have collections too."""
        if tf.executing_eagerly() or tf.inside_function():
            return []
        keys = self._graph.get_all_collection_keys()
        return [(key, self._graph.get_collection(key)) for key in keys]

    def _is_left(self, value: Any) -> bool:
        """Whether a value is a tensor that can be read in the branch only."""
        if not tf.is_symbolic_tensor(value) or not isinstance(value, tf.Tensor):
            return False
        if value.dtype in (tf.resource, tf.variant):
            return False
        here = value.graph is self._graph
        return not (here and self._graph.is_fetchable(value))


def _flat(value: Any) -> list[Any]:
    return list(tf.nest.flatten(value, expand_composites=True))
