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
from rewriting import GraphDef, module_of, settled, v1

from amp.graph_rewrite.graph import serde
from amp.graph_rewrite.ops.op_table import TABLE, Role
from amp.graph_rewrite.rewrite import rewrite

Array: TypeAlias = NDArray[Any]
Gradients: TypeAlias = list[Array]

# What is neither a product nor only moves values.
_BETWEEN = tuple(op for op, row in TABLE.items() if row.role is Role.FOLLOW)
_SCALES = range(24, -15, -1)  # binary logarithms, from a dynamic scaler's maximum on
_DRAWS = 9
_STEPS, _RATE = 30, 0.01  # of Adam, for trained weights


class Model:
    """What a case builds its model with: weights, data, and layers of them.

    Args:
      name: of the case; all its random numbers follow from it, and from `draw`.
      draw: which of several sets of random numbers.
    """

    def __init__(self, name: str, draw: int) -> None:
        self.draw = np.random.default_rng([draw, zlib.crc32(name.encode())])
        self.dtype = tf.float32
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
        return made

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
        return v1.placeholder(tf.float32, np.shape(values), name=name)

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
    weights: tuple[str, ...]
    start: tuple[Array, ...]
    feeds: dict[str, Array]


@functools.cache
def built(build: Build, draw: int = 0) -> Built:
    """Builds a case, with the gradients of its loss times the scale that is fed."""
    with tf.Graph().as_default() as graph:
        model = Model(build.__name__, draw)
        loss = build(model)
        scale = v1.placeholder(tf.float32, [], name="scale")
        grads = tf.gradients(loss, model.weights, grad_ys=scale)
        names = []
        for index, grad in enumerate(grads):
            names.append(f"grad_{index}")
            tf.identity(tf.convert_to_tensor(grad), name=names[-1])
    weights = tuple(weight.name for weight in model.weights)
    start, proto = tuple(model.start), graph.as_graph_def()
    return Built(proto, tuple(names), weights, start, model.feeds)


class Runner:
    """A graph of a case, to be run with the numbers of any draw."""

    def __init__(self, proto: GraphDef, names: Sequence[str]) -> None:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(proto, name="")
        self._session = v1.Session(graph=graph)
        self._fetches = [f"{name}:0" for name in names]

    def __call__(self, case: Built, values: Sequence[Array], scale: float) -> Gradients:
        """The gradients at some weights, divided by the loss scale."""
        feeds: dict[str, Any] = {**case.feeds, "scale:0": scale}
        feeds |= dict(zip(case.weights, values, strict=True))
        found = self._session.run(self._fetches, feeds)
        return [grad.astype(np.float64) / scale for grad in found]


@functools.cache
def exact(build: Build) -> Runner:
    """A case in float32, as draw 0 builds it."""
    case = built(build)
    return Runner(case.proto, case.grads)


@functools.cache
def weights(build: Build, draw: int, after_training: bool) -> Sequence[Array]:
    """The weights of a case, random or after some steps of Adam in float32."""
    case = built(build, draw=draw)
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
    case = built(build)
    deny = _BETWEEN if products_only else ()
    policy = settled(dtype=dtype, emulate=True, deny=deny, loss_scale="none")
    fetches = frozenset(case.grads)
    made = rewrite(module_of(case.proto), policy, fetches=fetches)
    return Runner(serde.write_graph(made.graph), case.grads)


def error(build: Build, runner: Runner, dtype: str, after_training: bool) -> float:
    """The distance of gradients from float32's, in units of the latter.

    It is the median of several draws of weights and data, because in any one draw a
    value next to a kink may fall to either side. Each draw has the largest loss scale
    at which its gradients are finite, as a dynamic scaler would find it; bfloat16 is
    not scaled. Infinite where no scale makes those of one draw finite.
    """
    found = []
    for draw in range(_DRAWS):
        case, values = built(build, draw=draw), weights(build, draw, after_training)
        scales = [2.0**k for k in _SCALES] if dtype == "float16" else [1.0]
        for scale in scales:
            grads = runner(case, values, scale)
            if all(np.isfinite(grad).all() for grad in grads):
                found.append(_distance(grads, exact(build)(case, values, 1.0)))
                break
        else:
            return float("inf")
    return float(np.median(found))


def _distance(found: Gradients, wanted: Gradients) -> float:
    off = sum(float(np.sum((f - w) ** 2)) for f, w in zip(found, wanted, strict=True))
    return float(np.sqrt(off / sum(float(np.sum(w**2)) for w in wanted)))
