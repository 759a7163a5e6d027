"""Random graphs for the properties: smooth arithmetic whose error bound is tracked.

A graph is built from a list of numbers, so that hypothesis can shrink it. Every tensor
is [6, 6] and comes with bounds that hold by construction:

* `size`: no element is larger, in either graph;
* `error`: no element of the twin is further off, if every operation that may turn
  16-bit rounds each operand and its result, each to within `unit` of its size.

With u the unit roundoff (2**-8 in bfloat16 with its 8 significant bits, 2**-11 in
float16) and operands within e of the float32 ones, of size at most s, an operand as
read is within r = e + u (s + e). Then for a result of size S computed from operands as
read with error E in exact arithmetic, the result is within E + u (S + E), where

* a linear map with rows of absolute sum n (sums, products by a constant): E = n r;
* a product of matrices: |AB - A'B'| <= k (s_A r_B + r_A (s_B + r_B)), k terms;
* a function of Lipschitz constant L (tanh 1, sigmoid 1/4): E = L r;
* softmax over 6: its Jacobian has absolute row sums of at most 1/2: E = r / 2;
* moving values: E = r.

No test lives here.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from frames import version_1
from rewriting import module_of, v1

from amp.graph_rewrite.graph import ir

N = 6  # every tensor is [N, N]
SIZE = 0.25  # of what is fed: a product of products is under 1 then


@dataclasses.dataclass(frozen=True)
class Bounded:
    """A tensor, the largest magnitude in it and how far the twin's may be off."""

    tensor: tf.Tensor
    size: float
    error: float


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """The rules above for one unit roundoff."""

    unit: float

    def read(self, x: Bounded) -> float:
        return x.error + self.unit * (x.size + x.error)

    def made(self, tensor: tf.Tensor, size: float, error: float) -> Bounded:
        # The kernel may round once inside as well; float32's own errors are far below.
        return Bounded(tensor, size, error + 2 * self.unit * (size + error))

    def linear(self, tensor: tf.Tensor, x: Bounded, rows: float) -> Bounded:
        return self.made(tensor, rows * x.size, rows * self.read(x))

    def product(self, tensor: tf.Tensor, a: Bounded, b: Bounded, terms: int) -> Bounded:
        ra, rb = self.read(a), self.read(b)
        error = terms * (a.size * rb + ra * (b.size + rb))
        return self.made(tensor, terms * a.size * b.size, error)


Rule = Callable[[Arithmetic, Bounded, Bounded], Bounded]


def _matmul(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    return rules.product(tf.matmul(a.tensor, b.tensor, transpose_b=True), a, b, N)


def _conv(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    kernel = np.linspace(-0.1, 0.1, 9, dtype=np.float32).reshape(3, 3, 1, 1)
    image = tf.reshape(a.tensor, [1, N, N, 1])
    result = tf.reshape(tf.nn.conv2d(image, kernel, 1, "SAME"), [N, N])
    weights = Bounded(result, 0.1, 0.0)
    return rules.product(result, a, weights, 9)


def _add(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    error = rules.read(a) + rules.read(b)
    return rules.made(a.tensor + b.tensor, a.size + b.size, error)


def _multiply(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    return rules.product(a.tensor * b.tensor, a, b, 1)


def _tanh(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    return rules.made(tf.tanh(a.tensor), min(a.size, 1.0), rules.read(a))


def _sigmoid(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    return rules.made(tf.sigmoid(a.tensor), 1.0, rules.read(a) / 4)


def _softmax(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    return rules.made(tf.nn.softmax(a.tensor), 1.0, rules.read(a) / 2)


def _mean(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    mean = tf.reduce_mean(a.tensor, 1, keepdims=True)
    centred = rules.linear(mean, a, 1.0)
    return _add(rules, a, dataclasses.replace(centred, tensor=-mean))


def _move(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    halves = tf.split(tf.transpose(a.tensor), 2, axis=0)
    return rules.linear(tf.concat(halves[::-1], 0), a, 1.0)


def _join(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    tensor = tf.concat([a.tensor[:3], b.tensor[3:]], 0)
    size, error = max(a.size, b.size), max(rules.read(a), rules.read(b))
    return rules.made(tensor, size, error)


def _constant(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    values = np.linspace(-SIZE, SIZE, N * N, dtype=np.float32).reshape(N, N)
    return _add(rules, a, Bounded(tf.constant(values), SIZE, 0.0))


def _called(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    found: list[Bounded] = []

    def inner(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        operands = [dataclasses.replace(o, tensor=t) for o, t in ((a, x), (b, y))]
        found.append(_tanh(rules, _matmul(rules, *operands), b))
        return found[-1].tensor

    tensor = tf.function(inner)(a.tensor, b.tensor)
    return dataclasses.replace(found[-1], tensor=tensor)


def _looped(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    steps = [a]

    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.tanh(tf.matmul(x, b.tensor))

    _, tensor = tf.while_loop(lambda i, x: i < 2, body, [tf.constant(0), a.tensor])
    for _ in range(2):
        product = rules.product(a.tensor, steps[-1], b, N)
        size = min(product.size, 1.0)
        steps.append(rules.made(tensor, size, rules.read(product)))
    return steps[-1]


def _branched(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    # The predicate is no rounded value: both graphs take the same branch.
    flag = v1.get_default_graph().get_tensor_by_name("flag:0")
    tensor = tf.cond(flag, lambda: tf.matmul(a.tensor, b.tensor), lambda: a.tensor)
    product = rules.product(tensor, a, b, N)
    size, error = max(product.size, a.size), max(product.error, rules.read(a))
    return rules.made(tensor, size, error)


def _in_frames(rule: Rule) -> Rule:
    """The same with the control flow of TensorFlow 1."""

    def built(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
        with version_1():
            made = rule(rules, a, b)
        # Whoever imports a graph does not infer shapes through such a loop.
        return dataclasses.replace(made, tensor=tf.ensure_shape(made.tensor, [N, N]))

    return built


def _arrayed(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    rows = v1.TensorArray(tf.float32, N).unstack(a.tensor)

    def body(i: tf.Tensor, out: v1.TensorArray) -> tuple[tf.Tensor, v1.TensorArray]:
        return i + 1, out.write(i, tf.matmul(rows.read(i)[None], b.tensor)[0])

    begin = (tf.constant(0), v1.TensorArray(tf.float32, N))
    _, out = tf.while_loop(lambda i, _: i < N, body, begin)
    return rules.product(out.stack(), a, b, N)


def _stopped(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    return rules.linear(tf.stop_gradient(tf.multiply(a.tensor, 0.5)), a, 0.5)


def _decided(rules: Arithmetic, a: Bounded, b: Bounded) -> Bounded:
    # Both choices are the same: a twin may choose otherwise where values tie.
    scores = tf.multiply(a.tensor, 0.5)
    order = tf.math.top_k(tf.add(scores, b.tensor), N).indices
    chosen = tf.where((scores > 0.0) & (order < N), a.tensor, a.tensor)
    return rules.linear(chosen, a, 1.0)


RULES: Sequence[Rule] = (
    *(_matmul, _conv, _add, _multiply, _tanh, _sigmoid, _softmax, _mean, _move),
    *(_join, _constant, _called, _looped, _branched, _stopped, _decided),
)
# With the control flow of TensorFlow 1 too, before the last two.
VERSION_1 = tuple(map(_in_frames, (_looped, _branched, _arrayed)))
EVERY_RULE = (*RULES[:-2], *VERSION_1, *RULES[-2:])
# The size over which a result is brought back by tanh, so that float16 holds it.
LARGEST = 10.0


def build(
    program: Sequence[tuple[int, int, int]],
    unit: float,
    choice: Sequence[Rule] = EVERY_RULE,
) -> Bounded:
    """Builds the graph of a program in the default graph; its result is "end".

    Args:
      program: for each step a rule and two of the tensors there are, all by number,
        modulo how many there are.
      unit: the unit roundoff of the type.
      choice: the rules there are.
    """
    rules = Arithmetic(unit)
    v1.placeholder(tf.bool, [], name="flag")
    made = [
        Bounded(v1.placeholder(tf.float32, [N, N], name=name), SIZE, 0.0)
        for name in ("x", "y")
    ]
    made.append(_matmul(rules, *made))
    for rule, first, second in program:
        operands = made[first % len(made)], made[-1 - second % len(made)]
        result = choice[rule % len(choice)](rules, *operands)
        if result.size > LARGEST:
            result = _tanh(rules, result, result)
        made.append(result)
    return dataclasses.replace(
        made[-1], tensor=tf.identity(made[-1].tensor, name="end")
    )


def module(seed: int) -> ir.Module:
    """The graph of a program of up to 11 steps that a seed gives, as a module."""
    draw = random.Random(seed)
    program = [
        tuple(draw.randrange(1000) for _ in range(3))
        for _ in range(draw.randrange(1, 12))
    ]
    with tf.Graph().as_default() as graph:
        build(program, 2.0**-8, RULES)
    return module_of(graph.as_graph_def())
