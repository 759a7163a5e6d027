"""How far gradients in mixed precision are from those in float32, on small models.

The yardstick is the model with its products alone in 16 bits: their operands and
results are rounded, all else is float32. No model lives here, and no bound.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from rewriting import GraphDef, low, module_of, settled, v1
from tensorflow.core.protobuf import config_pb2

from amp.graph_rewrite.cost.resolution import Resolution
from amp.graph_rewrite.graph import serde
from amp.graph_rewrite.ops.op_table import TABLE, Role
from amp.graph_rewrite.rewrite import Rewrite, rewrite
from amp.integration.measuring import hardware

Array: TypeAlias = NDArray[Any]
Gradients: TypeAlias = list[Array]

# What is neither a product nor only moves values.
_BETWEEN = tuple(op for op, row in TABLE.items() if row.role is Role.FOLLOW)
_SCALES = range(24, -15, -1)  # binary logarithms, from a dynamic scaler's maximum on
_DRAWS = 9
_STEPS, _RATE = 30, 0.01  # of Adam, for trained weights
_NUMBERS = {"float16": tf.float16, "bfloat16": tf.bfloat16, "float32": tf.float32}


class Model:
    """What a case builds its model with: weights, data, and layers of them.

    Args:
      name: of the case; all its random numbers follow from it, and from `draw`.
      draw: which of several sets of random numbers.
      dtype: of every tensor.
    """

    def __init__(self, name: str, draw: int, dtype: str = "float32") -> None:
        self.draw = np.random.default_rng([draw, zlib.crc32(name.encode())])
        self.dtype = _NUMBERS[dtype]
        self.weights: list[tf.Tensor] = []
        self.start: list[Array] = []
        self.feeds: dict[str, Array] = {}

    def weight(self, *shape: int, spread: float | None = None) -> tf.Tensor:
        """A weight to differentiate by, normal, by default with He's spread."""
        fan = int(np.prod(shape[:-1])) if len(shape) > 1 else shape[-1]
        spread = np.sqrt(2.0 / fan) if spread is None else spread
        values = (self.draw.normal(size=shape) * spread).astype(np.float32)
        made = v1.placeholder(tf.float32, shape, name=f"weight_{len(self.weights)}")
        self.weights.append(made)
        self.start.append(values)
        return self._cast(made)

    def filled(self, value: float, *shape: int) -> tf.Tensor:
        """A weight that starts at one value."""
        made = self.weight(*shape)
        self.start[-1] = np.full(shape, value, np.float32)
        return made

    def data(self, *shape: int, mean: float = 0.0, spread: float = 1.0) -> tf.Tensor:
        """Normal numbers that are fed."""
        return self.given(mean + spread * self.draw.normal(size=shape))

    def uniform(self, low: float, high: float, *shape: int) -> tf.Tensor:
        """Uniform numbers that are fed."""
        return self.given(self.draw.uniform(low, high, shape))

    def given(self, values: Array) -> tf.Tensor:
        """Numbers that are fed."""
        name = f"data_{len(self.feeds)}"
        self.feeds[f"{name}:0"] = np.asarray(values, np.float32)
        return self._cast(v1.placeholder(tf.float32, np.shape(values), name=name))

    def _cast(self, fed: tf.Tensor) -> tf.Tensor:
        """What is fed, which is float32, in the type of the model."""
        return fed if self.dtype == tf.float32 else tf.cast(fed, self.dtype)

    def integers(self, high: int, *shape: int) -> tf.Tensor:
        return tf.constant(self.draw.integers(0, high, shape), tf.int32)

    def dense(self, x: tf.Tensor, units: int, bias: float = 0.0) -> tf.Tensor:
        """A layer with a bias, over the last axis."""
        width = x.shape[-1]
        rows = tf.reshape(x, [-1, width])
        made = tf.nn.bias_add(
            tf.matmul(rows, self.weight(width, units)), self.filled(bias, units)
        )
        return tf.reshape(made, [*x.shape[:-1], units])

    def conv(self, x: tf.Tensor, channels: int, size: int = 3) -> tf.Tensor:
        """A convolution with stride 1 and a bias."""
        kernel = self.weight(size, size, x.shape[-1], channels)
        made = tf.nn.conv2d(x, kernel, 1, "SAME")
        return tf.nn.bias_add(made, self.filled(0.0, channels))


Build: TypeAlias = Callable[[Model], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Built:
    """A graph with the gradients of a case, of the names in `grads`."""

    proto: GraphDef
    grads: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What a case is run with: its weights by name, and what is fed besides."""

    weights: tuple[str, ...]
    start: tuple[Array, ...]
    feeds: dict[str, Array]


@functools.cache
def built(build: Build, dtype: str = "float32") -> Built:
    """Builds a case, with the gradients of its loss times the scale that is fed."""
    with tf.Graph().as_default() as graph:
        model = Model(build.__name__, 0, dtype)
        loss = tf.cast(build(model), tf.float32)
        scale = v1.placeholder(tf.float32, [], name="scale")
        grads = tf.gradients(loss, model.weights, grad_ys=scale)
        names = []
        for index, grad in enumerate(grads):
            names.append(f"grad_{index}")
            tf.identity(tf.convert_to_tensor(grad), name=names[-1])
    return Built(graph.as_graph_def(), tuple(names))


@functools.cache
def drawn(build: Build, draw: int) -> Numbers:
    """The numbers of one draw."""
    with tf.Graph().as_default():
        model = Model(build.__name__, draw)
        build(model)
    names = tuple(weight.name for weight in model.weights)
    return Numbers(names, tuple(model.start), model.feeds)


class Runner:
    """A graph of a case, to be run with the numbers of any draw."""

    def __init__(self, proto: GraphDef, names: Sequence[str]) -> None:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(proto, name="")
        self._session = v1.Session(graph=graph)
        self._fetches = [f"{name}:0" for name in names]
        # `Session.run` itself takes longer than these small graphs.
        self._run: Callable[..., list[Array]] | None = None

    def __call__(
        self, numbers: Numbers, values: Sequence[Array], scale: float
    ) -> Gradients:
        """The gradients at some weights, divided by the loss scale."""
        feeds: dict[str, Any] = {**numbers.feeds, "scale:0": scale}
        feeds |= dict(zip(numbers.weights, values, strict=True))
        if self._run is None:
            options = config_pb2.CallableOptions(feed=[*feeds], fetch=self._fetches)
            self._run = self._session._make_callable_from_options(options)
        found = self._run(*(np.asarray(value, np.float32) for value in feeds.values()))
        return [grad.astype(np.float64) / scale for grad in found]


@functools.cache
def exact(build: Build) -> Runner:
    """A case in float32."""
    case = built(build)
    return Runner(case.proto, case.grads)


@functools.cache
def wanted(build: Build, draw: int, after_training: bool) -> Gradients:
    """The gradients of a draw in float32."""
    values = weights(build, draw, after_training)
    return exact(build)(drawn(build, draw), values, 1.0)


@functools.cache
def weights(build: Build, draw: int, after_training: bool) -> Sequence[Array]:
    """The weights of a case, random or after some steps of Adam in float32."""
    case = drawn(build, draw)
    if not after_training:
        return case.start
    values = [value.astype(np.float64) for value in case.start]
    first = [np.zeros_like(value) for value in values]
    second = [np.zeros_like(value) for value in values]
    for step in range(1, _STEPS + 1):
        for i, grad in enumerate(exact(build)(case, values, 1.0)):
            first[i] = 0.9 * first[i] + 0.1 * grad
            second[i] = 0.999 * second[i] + 0.001 * grad**2
            mean, square = first[i] / (1 - 0.9**step), second[i] / (1 - 0.999**step)
            values[i] = values[i] - _RATE * mean / (np.sqrt(square) + 1e-8)
    return [value.astype(np.float32) for value in values]


@functools.cache
def twin(build: Build, dtype: str, products_only: bool) -> Runner:
    """A case rewritten, with all that may be 16-bit, or with its products alone."""
    case, deny = built(build), _BETWEEN if products_only else ()
    policy = settled(dtype=dtype, emulate=True, deny=deny, loss_scale="none")
    return _runner(_rewritten(case, policy), case)


def on_this_machine(build: Build, dtype: str) -> tuple[Runner, Runner]:
    """A case rewritten for the kernels of this CPU, and what it is to be compared with.

    That is the same plan emulated. The emulation has float32 kernels, which do not keep
    long sums float32 (rule `count`): it is told to. But on a CPU without arithmetic in
    bfloat16 TensorFlow's products cut digits off instead of rounding, an error of twice
    the size and of one sign, which adds up: there it is the products alone, native.
    """
    device, case = hardware.shipped(), built(build)
    plain = settled(device, dtype=dtype, loss_scale="none")
    native = _rewritten(case, plain)
    if dtype == "bfloat16" and dtype not in device.native:
        told = settled(device, dtype=dtype, loss_scale="none", deny=_BETWEEN)
        return _runner(native, case), _runner(_rewritten(case, told), case)
    keep = tuple(d.node for d in native.report.decisions if d.rule == "count")
    told = settled(device, dtype=dtype, loss_scale="none", emulate=True, keep=keep)
    emulated = _rewritten(case, told)
    assert low(emulated.report) == low(native.report)
    return _runner(native, case), _runner(emulated, case)


def _rewritten(case: Built, how: Resolution) -> Rewrite:
    return rewrite(module_of(case.proto), how, fetches=frozenset(case.grads))


def whole_model(build: Build, dtype: str) -> Runner:
    """A case that is built in a 16-bit type, so that every kernel is of that type."""
    case = built(build, dtype)
    return Runner(case.proto, case.grads)


def _runner(made: Rewrite, case: Built) -> Runner:
    return Runner(serde.write_graph(made.graph), case.grads)


def error(build: Build, runner: Runner, dtype: str, after_training: bool) -> float:
    """The distance of gradients from float32's, in units of the latter.

    It is the median of several draws of weights and data, because in any one draw a
    value next to a kink may fall to either side.
    """
    found = (off(build, runner, dtype, i, after_training) for i in range(_DRAWS))
    return float(np.median(list(found)))


def quotient(
    build: Build, runners: tuple[Runner, Runner], dtype: str, after_training: bool
) -> float:
    """How many times as far one runner's gradients are off as another's, draw by draw.

    The median of the draws' quotients. Where errors differ tenfold between draws, after
    training for example, it tells more than the quotient of their medians.
    """
    one, other = (
        [off(build, runner, dtype, i, after_training) for i in range(_DRAWS)]
        for runner in runners
    )
    return float(np.median(np.divide(one, other)))


def off(
    build: Build, runner: Runner, dtype: str, draw: int, after_training: bool = False
) -> float:
    """The error in one draw.

    Each draw has the largest loss scale at which its gradients are finite, as a dynamic
    scaler would find it; bfloat16 is not scaled. Infinite where no scale makes them
    finite.
    """
    numbers, values = drawn(build, draw), weights(build, draw, after_training)
    scales = [2.0**k for k in _SCALES] if dtype == "float16" else [1.0]
    for scale in scales:
        grads = runner(numbers, values, scale)
        if all(np.isfinite(grad).all() for grad in grads):
            return _distance(grads, wanted(build, draw, after_training))
    return float("inf")


def _distance(found: Gradients, wanted: Gradients) -> float:
    off = sum(float(np.sum((f - w) ** 2)) for f, w in zip(found, wanted, strict=True))
    return float(np.sqrt(off / sum(float(np.sum(w**2)) for w in wanted)))
