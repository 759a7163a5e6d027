"""Where gradients are taken: `GradientTape.gradient`, `tf.gradients` and its v1 form.

Knows TensorFlow's private names and which calls are the user's own; no arithmetic.

Left alone: calls made while another gradient is being built (`tf.recompute_grad`,
custom gradients, bodies of functions, loops, branches: the outer call scales for all),
calls inside a vectorised loop (jacobians, `tf.vectorized_map`: state cannot be stepped
there), and calls without a trainable variable or with a target that is not float32.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from amp.errors import CheckpointError, PolicyError, TensorFlowError
from amp.integration.distributed import replicas, workers
from amp.integration.training import (
    gradient_sources,
    markers,
    optimizer_hooks,
    session_savers,
)
from amp.loss_scaling import gradients, state
from amp.loss_scaling.scale import LossScale, NoLossScale
from amp.loss_scaling.scaler import Scaler, ScalerSite

SUPPORTED = "TensorFlow 2.18 to 2.21"
_UTIL = "tensorflow.python.ops.gradients_util"
_PFOR = "tensorflow.python.ops.parallel_for.control_flow_ops"
_HELPER_ARGUMENTS = (
    "ys",
    "xs",
    "grad_ys",
    "colocate_gradients_with_ops",
    "src_graph",
)


class _Depth(threading.local):
    """How many gradient constructions this thread is inside of."""

    value = 0


_DEPTH = _Depth()


def install() -> None:
    """Decorates TensorFlow's gradient functions, once per process.

    Raises:
      TensorFlowError: a private name is missing or has other parameters.
    """
    if getattr(tf.GradientTape.gradient, "_amp_original", None) is not None:
        return
    util, pfor = _module(_UTIL), _module(_PFOR)
    helper = _checked(util, "_GradientsHelper", _HELPER_ARGUMENTS)
    loop = _checked(pfor, "pfor", ("loop_fn",))
    _checked(tf.Graph, "_attr_scope", ("attr_map",))
    tape = tf.GradientTape
    session_savers.install()
    _checked(tape, "gradient", ("target", "sources", "output_gradients"))
    util._GradientsHelper = _wrapped(helper, _gradients_helper(helper))
    pfor.pfor = _wrapped(loop, _undecorated(loop))
    for name in ("jacobian", "batch_jacobian"):
        original = getattr(tape, name)
        setattr(tape, name, _wrapped(original, _undecorated(original)))
    tape.gradient = _wrapped(tape.gradient, _tape_gradient(tape.gradient))


def _tape_gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(
        self: tf.GradientTape,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        **kwargs: Any,
    ) -> Any:
        rule = _rule()
        if rule is None:
            return original(self, target, sources, output_gradients, **kwargs)

        def compute(seeds: Any) -> list[Any]:
            grads = original(self, target, sources, seeds, **kwargs)
            return list(tf.nest.flatten(grads))

        targets, flat = tf.nest.flatten(target), tf.nest.flatten(sources)
        seeds = None if output_gradients is None else tf.nest.flatten(output_gradients)
        watched = self.watched_variables
        # A tape that wraps this one may sum what it gets over workers, and all of
        # them have to update alike: with zeros.
        wrapped = type(self).gradient is not tf.GradientTape.gradient
        how = _How(compute, watched, _anywhere, waits=not wrapped)
        with _inside():
            grads = _scaled(rule, (targets, flat, seeds), how)
            if grads is None:
                return original(self, target, sources, output_gradients, **kwargs)
        return tf.nest.pack_sequence_as(sources, grads)

    return gradient


def _gradients_helper(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def helper(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        # A source graph is passed only where TensorFlow builds a backward function.
        rule = _rule() if given["src_graph"] is None else None

        def compute(seeds: Any) -> list[Any]:
            return list(original(**{**given, "grad_ys": seeds}))

        with _inside():
            if rule is not None:
                seeds = None if given["grad_ys"] is None else _list(given["grad_ys"])
                values = (_list(given["ys"]), _list(given["xs"]), seeds)
                colocated = given["colocate_gradients_with_ops"]
                how = _How(compute, tuple, _beside if colocated else _anywhere)
                grads = _scaled(rule, values, how)
                if grads is not None:
                    return grads
            return original(*args, **kwargs)

    return helper


@dataclasses.dataclass(frozen=True, slots=True)
class _How:
    """How a gradient call is made.

    Args:
      compute: seeds to gradients.
      watched: variables that may be meant, besides those that the graph knows.
      beside: as of `gradients.GradientPlacement`.
      waits: whether an overflow waits for an optimizer to answer it.
    """

    compute: Callable[[Any], list[Any]]
    watched: Callable[[], Any]
    beside: Callable[[tf.Tensor], contextlib.AbstractContextManager[None]]
    waits: bool = True


def _scaled(
    rule: LossScale, call: tuple[list[Any], list[Any], list[Any] | None], how: _How
) -> list[Any] | None:
    """Returns the call's gradients with loss scaling, None if it is left alone."""
    targets, flat, seeds = call
    optimizer_hooks.install_keras()
    fits = seeds is None or len(seeds) == len(targets)
    if not fits or not gradients.scalable(targets):
        return None
    if any(gradient_sources.composite(source) for source in flat):
        return None
    found = _found(rule, flat, how.watched, targets[0].device)
    placing = gradients.GradientPlacement(
        mark=markers.attribute_scope, beside=how.beside
    )
    if found is None and not gradient_sources.arguments(flat):
        return None
    if found is None or isinstance(rule, NoLossScale):
        return [gradients.marked(grad, placing) for grad in how.compute(seeds)]
    scaling = gradients.Scaling(found.scaler, rule.initial, how.waits, found.agree)
    return gradients.scaled(scaling, targets, seeds, how.compute, placing)


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """That a call is to be scaled, by which scaler if any, and who is to agree."""

    scaler: Scaler | None
    agree: Callable[[tf.Tensor], tf.Tensor] = tf.identity


def _found(
    rule: LossScale, flat: list[Any], watched: Callable[[], Any], device: str
) -> _Found | None:
    """Returns what scales a call, or None; an error of ours leaves the call alone."""
    try:
        variables = gradient_sources.trainable(flat, watched())
        if not variables:
            return None
        if isinstance(rule, NoLossScale) or replicas.cannot_agree():
            return _Found(None)
        place = ScalerSite(device, replicas.can_meet(), workers.same)
        scaler = state.find(gradient_sources.call_site(), variables, rule, place)
        return _Found(scaler, replicas.agree if scaler.agreed else tf.identity)
    except (CheckpointError, PolicyError):
        raise
    except Exception as e:
        if _strict():
            raise
        message = "amp: gradients at %s:%d are not scaled: %s: %s"
        logging.log_first_n(
            logging.WARNING,
            message,
            1,
            *gradient_sources.call_site(),
            type(e).__name__,
            e,
        )
        return None


def _strict() -> bool:
    from amp.integration import activation

    now = activation.active()
    policy = None if now is None else now.settled.policy
    return policy is not None and policy.strict


def _undecorated(original: Callable[..., Any]) -> Callable[..., Any]:
    def undecorated(*args: Any, **kwargs: Any) -> Any:
        with _inside():
            return original(*args, **kwargs)

    return undecorated


def _rule() -> LossScale | None:
    """Returns the active rule, or None where gradients are to be left alone."""
    if _DEPTH.value:
        return None
    from amp.integration import activation

    return activation.active_loss_scale()


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    _DEPTH.value += 1
    try:
        yield
    finally:
        _DEPTH.value -= 1


@contextlib.contextmanager
def _beside(tensor: tf.Tensor) -> Iterator[None]:
    with tf.compat.v1.get_default_graph().colocate_with(tensor.op):
        yield


def _anywhere(tensor: tf.Tensor) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _wrapped(original: Callable[..., Any], new: Callable[..., Any]) -> Any:
    # AutoGraph converts what it calls outside TensorFlow, and would convert this too.
    wrapper = tf.autograph.experimental.do_not_convert(functools.wraps(original)(new))
    wrapper._amp_original = original
    return wrapper


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise _missing(name, "module not found") from e


def _checked(owner: Any, name: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
    found = getattr(owner, name, None)
    where = f"{owner.__name__}.{name}"
    if found is None:
        raise _missing(where, "name not found")
    missing = set(arguments) - set(inspect.signature(found).parameters)
    if missing:
        raise _missing(where, f"parameters not found: {', '.join(sorted(missing))}")
    return found  # type: ignore[no-any-return]


def _missing(where: str, found: str) -> TensorFlowError:
    return TensorFlowError(
        f"TensorFlow {tf.__version__}: {found}",
        where=where,
        allowed=SUPPORTED,
        remedy="install a supported TensorFlow, or use loss_scale='none' without hooks",
    )
