"""The hooks for gradients: `GradientTape.gradient`, `tf.gradients` and its v1 form.

For a gradient call of the user's program, they find its scaler and have
`loss_scaling.gradients` make the call with loss scaling. These calls are made as they
are, without loss scaling:

* calls made while another gradient is being built (`tf.recompute_grad`, custom
  gradients, bodies of functions, loops and branches), since that gradient is scaled;
* calls inside a vectorised loop (jacobians, `tf.vectorized_map`), where the state of a
  scaler cannot change;
* calls without a trainable variable, or with a target that is not float32 or float64.

In float16, under a rule that scales, what a call without a variable computes, and a
jacobian, stays float32 (`markers.unguarded_scope`).

If the program itself scales the loss (`scaled_losses`), every infinite value is an
error (`numeric_checks`), they depend on the scale (`loss_scaling.resting`), or the call
is part of an XLA computation, gradients are not scaled, but marked, so that the update
stays float32. No arithmetic is here. The names that are hooked are rows of
`integration.hooks`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_ops, resource_variable_ops

from amp import messages
from amp.errors import PolicyError
from amp.integration import active, fallback, wrapping
from amp.integration.distributed import replicas, workers
from amp.integration.nesting import Nesting
from amp.integration.training import (
    custom_gradients,
    gradient_sources,
    markers,
    numeric_checks,
    scaled_losses,
)
from amp.loss_scaling import eager_backward, gradients, resting, state
from amp.loss_scaling.finite_checks import anywhere
from amp.loss_scaling.outer_graphs import outward
from amp.loss_scaling.placement import ScalerSite
from amp.loss_scaling.scale import LossScale, NoLossScale
from amp.loss_scaling.scaler import Scaler

_FIXED = (
    "the loss scale stays at %g, as these replicas cannot agree on it: where gradients "
    "overflow, an update is made with zeros and not counted as skipped. If the loss "
    "stands still, set a smaller scale (loss_scale=..., AMP_LOSS_SCALE), or use "
    "bfloat16"
)
# Gradient calls that this thread is inside of: those that make others.
_CALLS = Nesting()


def _tape_gradient(original: wrapping.Function) -> wrapping.Function:
    arguments = wrapping.reader("GradientTape.gradient", original)

    def gradient(self: tf.GradientTape, *args: Any, **kwargs: Any) -> Any:
        rule = _rule()
        if rule is None and eager_backward.passing() is None:
            return original(self, *args, **kwargs)
        given = arguments(self, *args, **kwargs)
        if rule is None:
            with _begun(given.get("output_gradients")):
                return original(self, *args, **kwargs)
        sources = given.get("sources")

        def compute(seeds: Any) -> list[Any]:
            call = given.replaced("output_gradients", seeds)
            return list(tf.nest.flatten(call.call(original)))

        # A tape that wraps this one may sum what it gets over workers, and all of
        # them have to update alike: with zeros.
        wrapped = type(self).gradient is not tf.GradientTape.gradient
        how = _How(compute, self.watched_variables, anywhere, waits=not wrapped)
        seeds = given.get("output_gradients")
        values = (
            tf.nest.flatten(given.get("target")),
            tf.nest.flatten(sources),
            None if seeds is None else tf.nest.flatten(seeds),
        )
        with _CALLS.inside(), state.ready_inside():
            grads = _scaled(rule, values, how)
            if grads is None:
                return original(self, *args, **kwargs)
        return tf.nest.pack_sequence_as(sources, grads)

    return gradient


def _gradients_helper(original: wrapping.Function) -> wrapping.Function:
    arguments = wrapping.reader("gradients_util._GradientsHelper", original)

    def helper(*args: Any, **kwargs: Any) -> Any:
        given = arguments(*args, **kwargs)
        # A source graph is passed only where TensorFlow builds a backward function.
        rule = _rule() if given.get("src_graph") is None else None

        def compute(seeds: Any) -> list[Any]:
            return list(given.replaced("grad_ys", seeds).call(original))

        with _CALLS.inside(), state.ready_inside():
            if rule is not None:
                seeds = given.get("grad_ys")
                values = (
                    _list(given.get("ys")),
                    _list(given.get("xs")),
                    None if seeds is None else _list(seeds),
                )
                colocated = given.get("colocate_gradients_with_ops", False)
                how = _How(compute, tuple, _beside if colocated else anywhere)
                grads = _scaled(rule, values, how)
                if grads is not None:
                    return grads
            with _begun(given.get("grad_ys")):
                return original(*args, **kwargs)

    return helper


@dataclasses.dataclass(frozen=True, slots=True)
class _How:
    """How a gradient call is made.

    Args:
      compute: makes the call: takes incoming gradients (seeds), returns gradients.
      watched: returns variables that the sources may belong to, besides those that the
        graph knows.
      beside: see `gradients.GradientPlacement`.
      waits: whether an overflow is noted until an optimizer skips an update for it.
    """

    compute: Callable[[Any], list[Any]]
    watched: Callable[[], Any]
    beside: Callable[[tf.Tensor], contextlib.AbstractContextManager[None]]
    waits: bool = True


def _scaled(
    rule: LossScale, call: tuple[list[Any], list[Any], list[Any] | None], how: _How
) -> list[Any] | None:
    """Makes a gradient call with loss scaling.

    Args:
      rule: the active rule.
      call: the targets, the sources, and the incoming gradients or None.
      how: how the call is made.

    Returns:
      The gradients; None if the call is to be made as it is.
    """
    targets, flat, seeds = call
    if scaled_losses.scaled(targets) or _in_computation():
        rule = NoLossScale()
    elif not gradients.scalable(targets):
        return None
    elif numeric_checks.forbid(rule):
        rule = NoLossScale()
    if seeds is not None and len(seeds) != len(targets):
        return None
    if any(gradient_sources.composite(source) for source in flat):
        return None
    found = _found(rule, flat, how.watched, targets[0].device)
    placing = gradients.GradientPlacement(
        mark=markers.attribute_scope, beside=how.beside, undone=custom_gradients.undone
    )
    if found is None and _needs_scale(rule):
        with markers.unguarded_scope():
            unguarded = how.compute(seeds)
        if not gradient_sources.arguments(flat):
            return unguarded
        return [gradients.marked(grad, placing) for grad in unguarded]
    if found is None and not gradient_sources.arguments(flat):
        return None
    if found is None or isinstance(rule, NoLossScale) or resting.rests(found.scaler):
        return [gradients.marked(grad, placing) for grad in how.compute(seeds)]
    if found.scaler is None and rule.bounds is not None:
        messages.log_once(_FIXED, rule.initial)
    values = frozenset(i for i, s in enumerate(flat) if gradient_sources.overwritten(s))
    scaling = gradients.Scaling(
        found.scaler, rule.initial, how.waits, values, found.owners
    )
    return gradients.scaled(scaling, targets, seeds, how.compute, placing)


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """A call that is to be scaled; without a scaler, by a fixed factor.

    Attributes:
      scaler: of the call.
      owners: see `gradients.Scaling`.
    """

    scaler: Scaler | None
    owners: tuple[int | None, ...] = ()


def _found(
    rule: LossScale, flat: list[Any], watched: Callable[[], Any], device: str
) -> _Found | None:
    """Finds the scaler of a gradient call.

    Args:
      rule: the rule that applies to the call.
      flat: the sources.
      watched: see `_How`.
      device: the device of the first target.

    Returns:
      None if the call is to be made as it is: no source is a trainable variable, one
      is DTensor's, or finding its scaler failed (without `strict`).
    """
    part = fallback.Part(
        "gradients at {}:{} are not scaled".format(*gradient_sources.call_site()),
        active.is_strict(),
        raises=(PolicyError,),
    )

    def find() -> _Found | None:
        owners = gradient_sources.owners(flat, watched())
        variables = gradient_sources.each_once(owners)
        if not variables or any(map(_is_of_dtensor, variables)):
            return None
        if isinstance(rule, NoLossScale) or replicas.cannot_agree():
            return _Found(None)
        # Replicas agree where they update: one of them may take a gradient alone.
        place = ScalerSite(
            device,
            agreed=not replicas.several(),
            same=workers.same,
            make=resource_variable_ops.ResourceVariable,
        )
        scaler = state.find(gradient_sources.call_site(), variables, rule, place)
        place_of = {id(variable): index for index, variable in enumerate(variables)}
        return _Found(scaler, tuple(place_of.get(id(owner)) for owner in owners))

    return fallback.attempt(part, find, lambda: None)


def _in_computation() -> bool:
    """Whether nodes that are built now are those of a computation of XLA.

    `tf.xla.experimental.compile` gives out declared results alone, and not the flag
    that an update outside is to ask for. Such a graph runs in float32
    (`calls.has_computations`). A function with `jit_compile` is none: its context is of
    the class from which those of computations are derived.
    """
    whole = control_flow_ops.XLAControlFlowContext
    for graph in outward(tf.compat.v1.get_default_graph()):
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext() and type(context) is not whole:
                return True
            context = context.outer_context
    return False


def _is_of_dtensor(variable: Any) -> bool:
    """Whether DTensor holds a variable: beside it a scaler's own would end the job."""
    return isinstance(variable, tf.experimental.dtensor.DVariable)


def _begun(seeds: Any) -> contextlib.AbstractContextManager[None]:
    """The scope of a call that is not scaled itself, by the gradients that come in.

    Where there are none, what passes in the call around it does not pass here.
    """
    given = any(each is not None for each in tf.nest.flatten(seeds))
    return eager_backward.passes(eager_backward.passing() if given else None)


def _left_alone(original: wrapping.Function) -> wrapping.Function:
    def left_alone(*args: Any, **kwargs: Any) -> Any:
        with _CALLS.inside(), active.VECTORISED.inside():
            return original(*args, **kwargs)

    return left_alone


def _jacobian(original: wrapping.Function) -> wrapping.Function:
    alone = _left_alone(original)

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        if not _needs_scale(_rule()):
            return alone(*args, **kwargs)
        with markers.unguarded_scope():
            return alone(*args, **kwargs)

    return jacobian


def _needs_scale(rule: LossScale | None) -> bool:
    """Whether a gradient that is not scaled may fall below the range, under a rule."""
    scales = rule is not None and not isinstance(rule, NoLossScale)
    return scales and active.active_dtype() == "float16"


def _rule() -> LossScale | None:
    """Returns the active rule; None outside of scopes and inside a gradient call."""
    return None if _CALLS else active.active_loss_scale()


@contextlib.contextmanager
def _beside(tensor: tf.Tensor) -> Iterator[None]:
    with tf.compat.v1.get_default_graph().colocate_with(tensor.op):
        yield


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


HOOKS: dict[str, wrapping.Decorate] = {
    "GradientTape.gradient": _tape_gradient,
    "GradientTape.jacobian": _jacobian,
    "GradientTape.batch_jacobian": _jacobian,
    "gradients_util._GradientsHelper": _gradients_helper,
    "control_flow_ops.pfor": _left_alone,
}
