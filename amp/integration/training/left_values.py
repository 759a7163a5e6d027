"""`LeftValues`: the tensors that an optimizer's update leaves for the program to read.

An update that may be skipped is a branch, and what a branch computes cannot be read
outside of it. So the branch returns them, and whoever kept them is given the results:
attributes of the optimizer (a norm, a rate) and collections of a session graph (its
summaries). Called by `conditional_updates`; nothing is skipped and no branch is built
here.
"""

from __future__ import annotations

import functools
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
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
      optimizers: the objects that update.
    """

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = list(optimizers)
        self._graph: Any = tf.compat.v1.get_default_graph()
        self._before = {id(leaf): leaf for leaf in self._leaves()}
        self._listed = {key: len(kept) for key, kept in self._collections()}
        self._kept: list[Any] = []
        self._places: list[_Place] = []

    def tensors(self) -> list[tf.Tensor]:
        """The tensors. To be called in the branch, once the update is built."""
        made = {id(leaf): leaf for leaf in self._leaves()}
        new = [leaf for key, leaf in made.items() if key not in self._before]
        self._kept = [leaf for leaf in new if self._is_left(leaf)]
        entries = list(self._entries())
        self._places = [place for place, _ in entries]
        return [*self._kept, *(tensor for _, tensor in entries)]

    def put(self, tensors: Sequence[tf.Tensor]) -> None:
        """Gives those who kept the tensors what the branch returned for them."""
        count = len(self._kept)
        results = dict(zip(map(id, self._kept), tensors[:count], strict=True))
        for optimizer, name, value in self._attributes() if results else ():
            put = functools.partial(_put_attribute, optimizer, name, value, results)
            fallback.attempt_quietly(put, None)
        for place, tensor in zip(self._places, tensors[count:], strict=True):
            fallback.attempt_quietly(functools.partial(place, tensor), None)

    def _attributes(self) -> list[tuple[Any, str, Any]]:
        """(optimizer, name of the attribute, its value) for each."""
        return [
            (optimizer, name, value)
            for optimizer in self._optimizers
            for name, value in dict(getattr(optimizer, "__dict__", {})).items()
        ]

    def _leaves(self) -> Iterator[Any]:
        for _, _, value in self._attributes():
            leaves = functools.partial(_leaves, value)
            yield from fallback.attempt_quietly(leaves, [])

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
        """Whether a value is a tensor that can be read in the branch only.

        What is made in a graph inside of it (a branch, a loop, a function of the
        update's own) cannot be read there either, and stays what it is.
        """
        if not tf.is_symbolic_tensor(value) or not isinstance(value, tf.Tensor):
            return False
        if value.dtype in (tf.resource, tf.variant):
            return False
        if value.graph is self._graph:
            return not self._graph.is_fetchable(value)
        return value.graph is tf.compat.v1.get_default_graph()


def _put_attribute(
    optimizer: Any, name: str, value: Any, results: Mapping[int, Any]
) -> None:
    replaced = _replaced(value, results)
    if replaced is not value:
        setattr(optimizer, name, replaced)


def _leaves(value: Any) -> list[Any]:
    """What a value consists of; a container of tensors by what is in it."""
    if isinstance(value, Mapping):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, (tuple, MutableSequence)):
        return [leaf for each in value for leaf in _leaves(each)]
    return list(tf.nest.flatten(value, expand_composites=True))


def _replaced(value: Any, results: Mapping[int, Any]) -> Any:
    """Returns a value with some leaves replaced, by their identity.

    What can change changes in place, because a program may hold it elsewhere too.
    """
    if isinstance(value, MutableMapping):
        _replace_each(value, list(value.items()), results)
        return value
    if isinstance(value, MutableSequence):
        _replace_each(value, list(enumerate(value)), results)
        return value
    if isinstance(value, tuple):
        parts = [_replaced(each, results) for each in value]
        if all(a is b for a, b in zip(value, parts, strict=True)):
            return value
        kind = type(value)
        return getattr(kind, "_make", kind)(parts)  # of a named tuple
    flat = _leaves(value)
    if not any(id(leaf) in results for leaf in flat):
        return value
    new = [results.get(id(leaf), leaf) for leaf in flat]
    return tf.nest.pack_sequence_as(value, new, expand_composites=True)


def _replace_each(
    container: Any, items: list[tuple[Any, Any]], results: Mapping[int, Any]
) -> None:
    for key, old in items:
        new = _replaced(old, results)
        if new is not old:
            container[key] = new
