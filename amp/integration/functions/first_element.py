"""Looks at the first element of an iterator or dataset, which its function then takes.

A function with a loop over its batches may be called once, so its first call is to run
the twin, and that is planned for the size of a batch, which no argument tells. What
was looked at is not lost: for this call another iterator stands in, which gives that
element first and then what the user's gives. Nothing is planned here, and of which
arguments an element is looked at is decided in `normalize.element_sources`.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.graph import ir
from amp.graph_rewrite.normalize.element_sources import ElementSource
from amp.integration import fallback
from amp.integration.runtime import definitions
from amp.integration.runtime.function_call import FunctionCall

# Of tensors of these types it is not known how to give them a second time, or what
# their shapes tell.
_NOT_LOOKED_AT = frozenset({tf.variant, tf.resource})


@dataclasses.dataclass(frozen=True, slots=True)
class _Stand:
    """What is passed in the place of an iterator or dataset.

    Attributes:
      of: the iterator or dataset that the call passes.
      instead: gives what is in `held` first, and then what `of` gives.
      held: a queue for the element that was looked at, empty once it was taken.
      elements: what elements look like.
      iterator: gives the elements of `of`.
    """

    of: Any
    instead: Any
    held: Any
    elements: _Elements
    iterator: Any


class FirstElements:
    """The elements that were looked at for one function.

    Args:
      stands: what is passed in the place of what they are from.
      shapes: of the tensors of each.
    """

    def __init__(
        self, stands: Sequence[_Stand], shapes: Sequence[tuple[ir.Shape, ...]]
    ) -> None:
        self._stands, self.shapes = stands, shapes

    def concern(self, call: FunctionCall) -> bool:
        """Whether a call takes from where they are from."""
        sources = [id(each.of) for each in self._stands]
        return any(id(tensor) in sources for tensor in call.inputs)

    def given(self, call: FunctionCall) -> FunctionCall:
        """A call in which they are taken first, if it takes from where they are from.

        Args:
          call: the call that the user made.
        """
        return call.replaced([self._instead(tensor) for tensor in call.inputs])

    def _instead(self, tensor: Any) -> Any:
        found = (each.instead for each in self._stands if each.of is tensor)
        return next(found, tensor)

    @property
    def taken(self) -> bool:
        """Whether none is left to be taken."""
        return all(int(each.held.size()) == 0 for each in self._stands)

    def hand_over(self) -> None:
        """Has what the call did not take come first to whoever takes next.

        That may be eager code, or another function, so the user's iterators hold from
        now on what stood in for them.
        """
        for each in self._stands:
            if each.iterator is each.of and int(each.held.size()):
                for iterator in _iterators(each.of):
                    iterator._iterator_resource = each.instead
                    iterator._amp_held = each  # its queue goes with its last user


def _iterators(resource: Any) -> list[Any]:
    """The iterators of the program that hold a resource."""
    holders = gc.get_referrers(resource)
    # What holds it may be an object or, where that has one, its dictionary.
    dictionaries = [each for each in holders if isinstance(each, dict)]
    holders += [each for held in dictionaries for each in gc.get_referrers(held)]
    iterators = (each for each in holders if isinstance(each, tf.data.Iterator))
    found = {
        id(each): each
        for each in iterators
        if getattr(each, "_iterator_resource", None) is resource
    }
    return list(found.values())


def look(
    sources: Sequence[ElementSource], inputs: Sequence[Any], part: fallback.Part
) -> FirstElements | None:
    """Looks at the first elements that a function takes.

    What may fail by a fault of this package comes before any element is taken.

    Args:
      sources: the arguments that they are taken from.
      inputs: the tensors that the function is called with.
      part: what users are told of such a fault.

    Returns:
      They; None if nothing was looked at.

    Raises:
      OpError: the user's pipeline raised it.
    """
    nothing: list[_Stand] = []
    stands = fallback.attempt(part, lambda: _stands(sources, inputs), lambda: nothing)
    held: list[_Stand] = []
    shapes: list[tuple[ir.Shape, ...]] = []
    found = FirstElements(held, shapes)
    try:
        for stand in stands:
            first = stand.elements.maybe_next(stand.iterator)
            if tf.raw_ops.OptionalHasValue(optional=first):
                stand.held.enqueue(first)
                held.append(stand)
                value = stand.elements.value(first)
                shapes.append(tuple(definitions.dimensions(one.shape) for one in value))
    except BaseException:  # the call is not made: its batches are the next call's
        found.hand_over()
        raise
    return found if held else None


def _stands(sources: Sequence[ElementSource], inputs: Sequence[Any]) -> list[_Stand]:
    if tf.distribute.has_strategy():
        return []
    with tf.init_scope():
        made = [_stand(source, inputs[source.index]) for source in sources]
    return [each for each in made if each is not None]


def _stand(source: ElementSource, tensor: Any) -> _Stand | None:
    types = [tf.as_dtype(number) for number in source.types]
    if not _NOT_LOOKED_AT.isdisjoint(types) or not _is_here(tensor):
        return None
    elements = _Elements(types, [_partly(shape) for shape in source.shapes])
    iterator = elements.iterator(tensor) if source.dataset else tensor
    held = tf.queue.FIFOQueue(1, [tf.variant], shapes=[[]])
    all_of = elements.after(held, iterator)
    if source.dataset:
        instead = _variant(elements.once(all_of, tensor, held))
    else:
        instead = elements.iterator(_variant(all_of))
    return _Stand(tensor, instead, held, elements, iterator)


def _partly(shape: ir.Shape) -> tf.TensorShape:
    if shape is None:
        return tf.TensorShape(None)
    return tf.TensorShape([None if size < 0 else size for size in shape])


def _is_here(tensor: Any) -> bool:
    """Whether a tensor is an iterator or dataset of this process, not of a worker."""
    own = tf.DeviceSpec.from_string(context_lib.context().host_address_space())
    there = tf.DeviceSpec.from_string(tensor.device)
    here = (there.job, there.task) == (own.job, own.task)
    return here and there.device_type == "CPU"


def _variant(dataset: Any) -> Any:
    """A dataset as a tensor; none of its elements is made before it is asked for."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return tf.data.experimental.to_variant(dataset.with_options(options))


@dataclasses.dataclass(frozen=True, slots=True)
class _Elements:
    """Elements of one kind, and the iterators and datasets that give such.

    Attributes:
      types, shapes: of the tensors of an element.
    """

    types: list[tf.DType]
    shapes: list[tf.TensorShape]

    @property
    def _kind(self) -> dict[str, Any]:
        return {"output_types": self.types, "output_shapes": self.shapes}

    def iterator(self, variant: Any) -> Any:
        """A new iterator over the dataset that a tensor holds."""
        made = tf.raw_ops.AnonymousIteratorV3(**self._kind)
        tf.raw_ops.MakeIterator(dataset=variant, iterator=made)
        return made

    def maybe_next(self, iterator: Any) -> Any:
        """The next element of an iterator as an optional, empty at its end."""
        return tf.raw_ops.IteratorGetNextAsOptional(iterator=iterator, **self._kind)

    def value(self, optional: Any) -> tuple[Any, ...]:
        """The element of an optional."""
        return tuple(tf.raw_ops.OptionalGetValue(optional=optional, **self._kind))

    def after(self, held: Any, iterator: Any) -> Any:
        """A dataset of the element in a queue, and what an iterator gives after it.

        Args:
          held: the queue.
          iterator: gives the others, each when it is asked for and not before.
        """

        def element(index: Any) -> Any:
            return tf.cond(index > 0, lambda: self.maybe_next(iterator), held.dequeue)

        made = tf.data.Dataset.range(sys.maxsize).map(element)
        made = made.take_while(lambda one: tf.raw_ops.OptionalHasValue(optional=one))
        return made.map(self.value)

    def once(self, all_of: Any, variant: Any, held: Any) -> Any:
        """A dataset that is another one when it is iterated for the first time.

        Args:
          all_of: what it is then.
          variant: what it is from then on, as a tensor.
          held: a queue that is empty from then on.
        """
        spec, first = all_of.element_spec, _variant(all_of)

        def which(_: Any) -> Any:
            chosen = tf.cond(held.size() > 0, lambda: first, lambda: variant)
            return tf.data.experimental.from_variant(chosen, spec)

        return tf.data.Dataset.range(1).flat_map(which)
