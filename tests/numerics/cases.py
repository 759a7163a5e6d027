"""Small models with real losses, for the yardstick: one function each.

A case takes a `Model`, builds on it, and returns its loss. Its docstring says what
rounding could spoil.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from yardstick import Build, Model

CASES: dict[str, Build] = {}


def case(build: Build) -> Build:
    """Adds a case to those that are measured."""
    CASES[build.__name__] = build
    return build


def _mlp(m: Model, x: tf.Tensor, *units: int) -> tf.Tensor:
    for count in units:
        x = tf.nn.relu(m.dense(x, count))
    return x


# Regression


@case
def regression(m: Model) -> tf.Tensor:
    """Plain least squares."""
    out = m.dense(_mlp(m, m.data(32, 16), 32, 32), 4)
    return tf.reduce_mean(tf.square(out - m.data(32, 4)))


@case
def targets_300(m: Model) -> tf.Tensor:
    """bfloat16 has a spacing of 2 at the targets, which spread by 5."""
    out = m.dense(_mlp(m, m.data(32, 16), 32, 32), 1)
    return tf.reduce_mean(tf.square(out - m.data(32, 1, mean=300.0, spread=5.0)))


@case
def bias_1000(m: Model) -> tf.Tensor:
    """The bias holds the common part of the targets; the residual is 1."""
    out = m.dense(_mlp(m, m.data(32, 16), 32), 1, bias=1000.0)
    return tf.reduce_mean(tf.square(out - m.data(32, 1, mean=1000.0)))


@case
def targets_1e5(m: Model) -> tf.Tensor:
    """Targets beyond float16's largest number."""
    out = m.dense(_mlp(m, m.data(32, 16), 32), 1)
    return tf.reduce_mean(tf.square(out - m.data(32, 1, mean=1e5, spread=1e3)))


@case
def huber(m: Model) -> tf.Tensor:
    """Small residuals on targets of 50."""
    off = m.dense(_mlp(m, m.data(32, 16), 32), 2, bias=50.0) - m.data(32, 2, mean=50.0)
    size = tf.abs(off)
    return tf.reduce_mean(tf.where(size < 1.0, 0.5 * size * size, size - 0.5))


@case
def log_cosh(m: Model) -> tf.Tensor:
    """Of residuals as large as 10."""
    off = m.dense(_mlp(m, m.data(32, 16), 32), 2) - m.data(32, 2, spread=5.0)
    return tf.reduce_mean(off + tf.nn.softplus(-2.0 * off) - np.log(2.0))


@case
def quantile(m: Model) -> tf.Tensor:
    """The pinball loss of three quantiles."""
    off = m.data(32, 1, mean=20.0) - m.dense(_mlp(m, m.data(32, 16), 32), 3, bias=20.0)
    levels = tf.constant([0.1, 0.5, 0.9], m.dtype)
    return tf.reduce_mean(tf.maximum(levels * off, (levels - 1.0) * off))


@case
def poisson(m: Model) -> tf.Tensor:
    """Counts up to 1000 and the exponential of a logit."""
    logits = m.dense(_mlp(m, m.data(32, 16), 32), 1, bias=5.0)
    counts = m.given(m.draw.poisson(150.0, (32, 1)))
    return tf.reduce_mean(tf.exp(logits) - counts * logits)


@case
def gaussian_likelihood(m: Model) -> tf.Tensor:
    """A mean and a logarithm of a variance."""
    mean, log_var = tf.split(m.dense(_mlp(m, m.data(32, 16), 32), 2), 2, -1)
    off = tf.square(m.data(32, 1, mean=3.0) - mean)
    return tf.reduce_mean(0.5 * (log_var + off * tf.exp(-log_var)))


@case
def cosine_similarity(m: Model) -> tf.Tensor:
    """Of two projections of the same data."""
    x = m.data(32, 16)
    a = tf.math.l2_normalize(m.dense(_mlp(m, x, 32), 8), -1)
    b = tf.math.l2_normalize(m.dense(_mlp(m, x, 32), 8), -1)
    return tf.reduce_mean(1.0 - tf.reduce_sum(a * b, -1))


@case
def relative_error(m: Model) -> tf.Tensor:
    """A division by targets from 1e-3 to 10."""
    target = tf.exp(m.uniform(-7.0, 2.0, 32, 1))
    out = m.dense(_mlp(m, m.data(32, 16), 32), 1)
    return tf.reduce_mean(tf.abs(out - target) / (target + 0.1))


@case
def weighted_samples(m: Model) -> tf.Tensor:
    """Weights of samples from 1e-4 to 1e4."""
    weights = tf.exp(m.uniform(-9.0, 9.0, 32))
    out = m.dense(_mlp(m, m.data(32, 16), 32), 1)
    off = tf.square(out - m.data(32, 1))[:, 0]
    return tf.reduce_sum(weights * off) / tf.reduce_sum(weights)


@case
def sum_of_squares(m: Model) -> tf.Tensor:
    """A sum, not a mean, over a large batch."""
    out = m.dense(_mlp(m, m.data(4096, 8), 16), 1)
    return tf.reduce_sum(tf.square(out - m.data(4096, 1)))


# Classification


@case
def softmax(m: Model) -> tf.Tensor:
    """Ten classes."""
    logits = m.dense(_mlp(m, m.data(32, 16), 32, 32), 10)
    labels = m.integers(10, 32)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(loss)


@case
def softmax_by_hand(m: Model) -> tf.Tensor:
    """The logarithm of a softmax with a clip, as old code has it."""
    p = tf.nn.softmax(m.dense(_mlp(m, m.data(32, 16), 32), 10))
    labels = tf.one_hot(m.integers(10, 32), 10, dtype=m.dtype)
    p = tf.clip_by_value(p, 1e-7, 1.0 - 1e-7)
    return -tf.reduce_mean(tf.reduce_sum(labels * tf.math.log(p), -1))


@case
def large_vocabulary(m: Model) -> tf.Tensor:
    """A softmax over 5,000 words."""
    logits = m.dense(_mlp(m, m.data(16, 16), 32), 5000)
    labels = m.integers(5000, 16)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(loss)


@case
def label_smoothing(m: Model) -> tf.Tensor:
    """Targets of 1e-4 and 0.9."""
    logits = m.dense(_mlp(m, m.data(32, 16), 32), 100)
    labels = tf.one_hot(m.integers(100, 32), 100, 0.9, 0.1 / 99, dtype=m.dtype)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, logits))


@case
def binary(m: Model) -> tf.Tensor:
    """A sigmoid with TensorFlow's stable formula."""
    logits = m.dense(_mlp(m, m.data(32, 16), 32), 3)
    labels = tf.cast(m.integers(2, 32, 3), m.dtype)
    loss = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(loss)


@case
def focal(m: Model) -> tf.Tensor:
    """log(1 - p) of probabilities clipped at 1 - 1e-7."""
    p = tf.sigmoid(m.dense(_mlp(m, m.data(32, 16), 32), 4) * 4.0)
    y = tf.cast(m.integers(2, 32, 4), m.dtype)
    p = tf.clip_by_value(p, 1e-7, 1.0 - 1e-7)
    good = -y * (1.0 - p) ** 2 * tf.math.log(p)
    bad = -(1.0 - y) * p**2 * tf.math.log(1.0 - p)
    return tf.reduce_mean(good + bad)


@case
def hinge(m: Model) -> tf.Tensor:
    """Margins near their kink."""
    out = m.dense(_mlp(m, m.data(64, 16), 32), 1)
    y = tf.cast(m.integers(2, 64, 1), m.dtype) * 2.0 - 1.0
    return tf.reduce_mean(tf.square(tf.nn.relu(1.0 - y * out)))


@case
def kl_between_logits(m: Model) -> tf.Tensor:
    """Distillation: a teacher and a student that are almost alike."""
    x = m.data(32, 16)
    teacher = m.data(32, 10)
    student = teacher + 0.1 * m.dense(_mlp(m, x, 32), 10)
    p, log_p = tf.nn.softmax(teacher), tf.nn.log_softmax(teacher)
    return tf.reduce_mean(tf.reduce_sum(p * (log_p - tf.nn.log_softmax(student)), -1))


@case
def temperature(m: Model) -> tf.Tensor:
    """Logits divided by a temperature of 0.07."""
    z = tf.math.l2_normalize(m.dense(_mlp(m, m.data(32, 16), 32), 16), -1)
    logits = tf.matmul(z, m.weight(16, 10)) / 0.07
    labels = m.integers(10, 32)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(loss)


# Metric learning


@case
def contrastive(m: Model) -> tf.Tensor:
    """InfoNCE with a temperature of 0.1."""
    x = m.data(16, 16)
    a = tf.math.l2_normalize(m.dense(_mlp(m, x, 32), 16), -1)
    b = tf.math.l2_normalize(m.dense(_mlp(m, x + 0.1 * m.data(16, 16), 32), 16), -1)
    logits = tf.matmul(a, b, transpose_b=True) / 0.1
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(16), logits)
    return tf.reduce_mean(loss)


@case
def triplet(m: Model) -> tf.Tensor:
    """Differences of squared distances."""
    z = m.dense(_mlp(m, m.data(48, 16), 32), 16)
    a, p, n = tf.split(z, 3)
    near = tf.reduce_sum(tf.square(a - p), -1)
    far = tf.reduce_sum(tf.square(a - n), -1)
    return tf.reduce_mean(tf.nn.softplus(near - far))


@case
def distances_by_expansion(m: Model) -> tf.Tensor:
    """The square of a difference as a sum of squares less a product."""
    z = m.dense(_mlp(m, m.data(24, 16), 32), 16, bias=3.0)
    squares = tf.reduce_sum(z * z, -1)
    cross = tf.matmul(z, z, transpose_b=True)
    off = squares[:, None] + squares[None, :] - 2.0 * cross
    return tf.reduce_mean(tf.exp(-off / 100.0))


@case
def center_loss(m: Model) -> tf.Tensor:
    """Distances to centers that stand at 30."""
    z = m.dense(_mlp(m, m.data(32, 16), 32), 8, bias=30.0)
    centers = m.filled(30.0, 10, 8)
    near = tf.gather(centers, m.integers(10, 32))
    return tf.reduce_mean(tf.reduce_sum(tf.square(z - near), -1))


@case
def barlow_twins(m: Model) -> tf.Tensor:
    """The correlation of two normalized projections, against the identity."""
    x = m.data(64, 16)

    def projected(x: tf.Tensor) -> tf.Tensor:
        z = m.dense(_mlp(m, x, 32), 8)
        mean, variance = tf.nn.moments(z, 0)
        return (z - mean) * tf.math.rsqrt(variance + 1e-5)

    c = tf.matmul(projected(x), projected(x), transpose_a=True) / 64.0
    return tf.reduce_sum(tf.square(c - tf.eye(8, dtype=m.dtype)))


# Detection and segmentation


def _corners(m: Model, raw: tf.Tensor, grid: int) -> tf.Tensor:
    cells = np.stack(np.meshgrid(np.arange(grid), np.arange(grid)), -1)
    cells = m.given(cells.reshape(1, -1, 2))
    raw = tf.reshape(raw, [raw.shape[0], -1, 4])
    center = (tf.sigmoid(raw[..., :2]) + cells) * 8.0
    size = tf.exp(raw[..., 2:]) * 8.0
    return tf.concat([center - size / 2.0, center + size / 2.0], -1)


def _iou(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    low = tf.maximum(a[..., :2], b[..., :2])
    high = tf.minimum(a[..., 2:], b[..., 2:])
    both = tf.reduce_prod(tf.maximum(high - low, 0.0), -1)
    areas = [tf.reduce_prod(c[..., 2:] - c[..., :2], -1) for c in (a, b)]
    return both / (areas[0] + areas[1] - both + 1e-6)


@case
def boxes_on_a_grid(m: Model) -> tf.Tensor:
    """(offset + cell) * stride, with an IoU loss, on a grid of 20 cells."""
    boxes = _corners(m, m.conv(tf.nn.relu(m.conv(m.data(1, 20, 20, 3), 8)), 4), 20)
    shift = m.uniform(-2.0, 2.0, 1, 400, 4)
    return tf.reduce_mean(1.0 - _iou(boxes, tf.stop_gradient(boxes) + shift))


@case
def smooth_l1_on_corners(m: Model) -> tf.Tensor:
    """Corners of boxes in pixels, up to 640."""
    boxes = m.dense(_mlp(m, m.data(32, 16), 32), 4, bias=320.0)
    off = tf.abs(boxes - m.uniform(315.0, 325.0, 32, 4))
    return tf.reduce_mean(tf.where(off < 1.0, 0.5 * off * off, off - 0.5))


@case
def giou(m: Model) -> tf.Tensor:
    """Generalized IoU of boxes that nearly fit."""
    target = m.uniform(0.0, 100.0, 32, 2)
    target = tf.concat([target, target + 20.0], -1)
    boxes = target + m.dense(_mlp(m, m.data(32, 16), 32), 4)
    low = tf.minimum(boxes[:, :2], target[:, :2])
    high = tf.maximum(boxes[:, 2:], target[:, 2:])
    hull = tf.reduce_prod(high - low, -1)
    return tf.reduce_mean(1.0 - _iou(boxes, target) + 1.0 / hull)


@case
def dice(m: Model) -> tf.Tensor:
    """Sums over 4,096 pixels of a mask that is mostly empty."""
    p = tf.sigmoid(m.conv(tf.nn.relu(m.conv(m.data(2, 64, 64, 2), 4)), 1) - 3.0)
    y = m.given(m.draw.uniform(size=(2, 64, 64, 1)) < 0.05)
    both = tf.reduce_sum(p * y, [1, 2, 3])
    all_of = tf.reduce_sum(p, [1, 2, 3]) + tf.reduce_sum(y, [1, 2, 3])
    return tf.reduce_mean(1.0 - (2.0 * both + 1.0) / (all_of + 1.0))


@case
def pixels(m: Model) -> tf.Tensor:
    """A softmax for each pixel behind a down- and an upsampling."""
    x = tf.nn.relu(m.conv(m.data(2, 16, 16, 3), 8))
    y = tf.nn.max_pool2d(x, 2, 2, "SAME")
    y = tf.nn.relu(m.conv(y, 8))
    y = tf.repeat(tf.repeat(y, 2, 1), 2, 2)
    logits = m.conv(tf.concat([x, y], -1), 5, 1)
    labels = m.integers(5, 2, 16, 16)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(loss)


@case
def keypoints(m: Model) -> tf.Tensor:
    """A soft argmax over positions up to 63."""
    heat = tf.reshape(
        m.conv(tf.nn.relu(m.conv(m.data(2, 16, 16, 2), 4)), 2), [2, -1, 2]
    )
    p = tf.nn.softmax(heat * 3.0, 1)
    position = m.given(4.0 * np.indices((16, 16)).reshape(2, -1).T)
    found = tf.einsum("bnk,nd->bkd", p, position)
    return tf.reduce_mean(tf.square(found - m.uniform(0.0, 63.0, 2, 2, 2)))


# Attention and encodings


def _heads(m: Model, x: tf.Tensor, count: int) -> tf.Tensor:
    made = m.dense(x, x.shape[-1])
    made = tf.reshape(made, [*x.shape[:-1], count, -1])
    return tf.transpose(made, [0, 2, 1, 3])


def _layer_norm(m: Model, x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    width = x.shape[-1]
    scale = m.filled(1.0, width) * tf.math.rsqrt(variance + 1e-6)
    return (x - mean) * scale + m.filled(0.0, width)


def _attention(m: Model, x: tf.Tensor, mask: tf.Tensor | float = 0.0) -> tf.Tensor:
    q, k, v = (_heads(m, x, 2) for _ in range(3))
    scores = tf.matmul(q, k, transpose_b=True) / np.sqrt(q.shape[-1])
    mixed = tf.matmul(tf.nn.softmax(scores + mask), v)
    mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), x.shape)
    return m.dense(mixed, x.shape[-1])


def _words(m: Model, x: tf.Tensor, count: int = 20) -> tf.Tensor:
    labels = m.integers(count, *x.shape[:-1])
    logits = m.dense(x, count)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(loss)


@case
def transformer(m: Model) -> tf.Tensor:
    """Two blocks with the norm before each part."""
    x = tf.gather(m.weight(20, 16, spread=1.0), m.integers(20, 2, 12))
    for _ in range(2):
        x = x + _attention(m, _layer_norm(m, x))
        x = x + m.dense(tf.nn.gelu(m.dense(_layer_norm(m, x), 32)), 16)
    return _words(m, _layer_norm(m, x))


@case
def causal_mask(m: Model) -> tf.Tensor:
    """A mask of -1e9, which is no float16 number."""
    x = m.data(2, 12, 16)
    mask = (1.0 - np.tril(np.ones((12, 12)))) * -1e9
    return _words(m, x + _attention(m, x, tf.constant(mask, m.dtype)))


@case
def relative_positions(m: Model) -> tf.Tensor:
    """A bias of attention that falls with the distance, as ALiBi has it."""
    x = m.data(2, 32, 16)
    far = np.abs(np.arange(32)[:, None] - np.arange(32))
    return _words(m, x + _attention(m, x, m.given(-0.5 * far)))


@case
def sines_of_positions(m: Model) -> tf.Tensor:
    """Positions up to 2,000 times frequencies from 1 to 1e-4."""
    at = m.given(np.arange(1936, 2000)[:, None])
    rates = m.given(10000.0 ** (-np.arange(8) / 8.0))
    codes = tf.concat([tf.sin(at * rates), tf.cos(at * rates)], -1)
    x = m.dense(m.data(2, 64, 16), 16) + codes
    return _words(m, x + _attention(m, x))


@case
def rotary(m: Model) -> tf.Tensor:
    """Queries turned by angles up to 500."""
    x = m.data(2, 32, 16)
    angles = m.given(np.arange(469, 501)[:, None] * 10000.0 ** (-np.arange(4) / 4.0))
    sin, cos = tf.sin(angles), tf.cos(angles)

    def turned(x: tf.Tensor) -> tf.Tensor:
        a, b = tf.split(x, 2, -1)
        return tf.concat([a * cos - b * sin, a * sin + b * cos], -1)

    q, k = (turned(_heads(m, x, 2)) for _ in range(2))
    scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / np.sqrt(8.0))
    return _words(m, tf.reshape(tf.matmul(scores, _heads(m, x, 2)), x.shape))


@case
def learned_frequencies(m: Model) -> tf.Tensor:
    """Sines of a layer's results that are as large as 100: Fourier features."""
    x = m.dense(m.data(32, 2), 16) * 30.0
    return tf.reduce_mean(
        tf.square(m.dense(tf.concat([tf.sin(x), tf.cos(x)], -1), 1) - m.data(32, 1))
    )


@case
def linear_attention(m: Model) -> tf.Tensor:
    """Products of positive features, divided by their sum."""
    x = m.data(2, 64, 16)
    q, k = (tf.nn.elu(_heads(m, x, 2)) + 1.0 for _ in range(2))
    v = _heads(m, x, 2)
    state = tf.matmul(k, v, transpose_a=True)
    total = tf.reduce_sum(k, -2, keepdims=True)
    out = tf.matmul(q, state) / tf.reduce_sum(q * total, -1, keepdims=True)
    return _words(m, tf.reshape(out, x.shape))


# Norms


@case
def layer_norm_far_from_zero(m: Model) -> tf.Tensor:
    """A norm by hand of what has a mean of 100."""
    x = m.dense(m.data(32, 16), 16, bias=100.0)
    return tf.reduce_mean(tf.square(m.dense(_layer_norm(m, x), 4) - m.data(32, 4)))


@case
def variance_by_moments(m: Model) -> tf.Tensor:
    """E[x^2] - E[x]^2 where the mean is 10."""
    x = m.dense(m.data(32, 16), 16, bias=10.0)
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(x * x, -1, keepdims=True) - mean * mean
    x = (x - mean) * tf.math.rsqrt(variance + 1e-3)
    return tf.reduce_mean(tf.square(m.dense(x, 4) - m.data(32, 4)))


@case
def batch_norm(m: Model) -> tf.Tensor:
    """Two fused norms in a residual network."""
    x = m.conv(m.data(4, 8, 8, 3), 8)
    for _ in range(2):
        scale, offset = m.filled(1.0, 8), m.filled(0.0, 8)
        made = tf.raw_ops.FusedBatchNormV3(
            x=m.conv(x, 8),
            scale=tf.cast(scale, tf.float32),
            offset=tf.cast(offset, tf.float32),
            mean=[],
            variance=[],
        )
        x = x + tf.nn.relu(made.y)
    return _words(m, tf.reduce_mean(x, [1, 2]))


@case
def rms_norm(m: Model) -> tf.Tensor:
    """Of large values, whose squares reach 1e5."""
    x = m.dense(m.data(32, 16), 16) * 100.0
    x = x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-6)
    return tf.reduce_mean(tf.square(m.dense(x, 4) - m.data(32, 4)))


@case
def weight_norm(m: Model) -> tf.Tensor:
    """Weights divided by their norms."""
    v = m.weight(16, 32)
    w = v * tf.math.rsqrt(tf.reduce_sum(v * v, 0)) * m.filled(1.0, 32)
    x = tf.nn.relu(tf.matmul(m.data(32, 16), w))
    return tf.reduce_mean(tf.square(m.dense(x, 4) - m.data(32, 4)))


@case
def group_norm(m: Model) -> tf.Tensor:
    """Two groups of channels."""
    x = tf.reshape(m.conv(m.data(2, 8, 8, 3), 8), [2, 8, 8, 2, 4])
    mean, variance = tf.nn.moments(x, [1, 2, 4], keepdims=True)
    x = (x - mean) * tf.math.rsqrt(variance + 1e-5)
    x = tf.nn.swish(tf.reshape(x, [2, 8, 8, 8]))
    return _words(m, tf.reduce_mean(m.conv(x, 8), [1, 2]))


# Recurrent and state-space layers


@case
def lstm(m: Model) -> tf.Tensor:
    """Twenty steps, unrolled."""
    kernel, bias = m.weight(32, 64, spread=0.2), m.filled(0.0, 64)
    h, c = tf.zeros([4, 16], m.dtype), tf.zeros([4, 16], m.dtype)
    for x in tf.unstack(m.data(20, 4, 16)):
        gates = tf.matmul(tf.concat([x, h], -1), kernel) + bias
        i, f, o, g = tf.split(gates, 4, -1)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
    return _words(m, h)


@case
def gru_in_a_loop(m: Model) -> tf.Tensor:
    """A while loop with tensor lists, and its gradient."""
    kernel, candidate = m.weight(32, 32, spread=0.2), m.weight(32, 16, spread=0.2)
    xs = m.data(12, 4, 16)

    def body(i: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        both = tf.concat([xs[i], h], -1)
        r, z = tf.split(tf.sigmoid(tf.matmul(both, kernel)), 2, -1)
        new = tf.tanh(tf.matmul(tf.concat([xs[i], r * h], -1), candidate))
        return i + 1, z * h + (1.0 - z) * new

    start = (tf.constant(0), tf.zeros([4, 16], m.dtype))
    _, h = tf.while_loop(lambda i, _: i < 12, body, start, maximum_iterations=12)
    return _words(m, tf.reshape(h, [4, 16]))


@case
def slow_recurrence(m: Model) -> tf.Tensor:
    """A state that decays by 0.998 a step, for 100 steps."""
    inputs = tf.unstack(m.dense(m.data(100, 4, 8), 8) * 0.1)
    h = m.dense(m.data(4, 8), 8)
    for x in inputs:
        h = h * 0.998 + x
    return tf.reduce_mean(tf.square(m.dense(h, 4) - m.data(4, 4)))


@case
def cumulative_decay(m: Model) -> tf.Tensor:
    """A cumulative sum over 1,024 steps and the exponential of its differences."""
    rate = tf.nn.softplus(m.dense(m.data(1024, 8), 4) - 4.0)
    total = tf.cumsum(rate, 0)
    near = tf.exp(-(total[64:] - total[:-64]))
    return tf.reduce_mean(tf.square(m.dense(near, 2) - m.data(960, 2)))


@case
def state_space(m: Model) -> tf.Tensor:
    """A diagonal state-space layer, computed as a decaying sum of inputs."""
    x = m.dense(m.data(2, 64, 8), 8)
    rate = tf.nn.softplus(m.filled(-4.0, 8))
    lag = m.given(np.maximum(np.arange(64)[:, None] - np.arange(64), 0)[..., None])
    mask = m.given(np.tril(np.ones((64, 64)))[..., None])
    kernel = tf.exp(-lag * rate) * mask
    return _words(m, tf.einsum("tsd,bsd->btd", kernel, x))


@case
def gated_linear_unit(m: Model) -> tf.Tensor:
    """SwiGLU."""
    x = m.data(32, 16)
    for _ in range(2):
        x = x + m.dense(tf.nn.swish(m.dense(x, 32)) * m.dense(x, 32), 16)
    return _words(m, x)


@case
def highway_of_20(m: Model) -> tf.Tensor:
    """Twenty residual blocks."""
    x = m.dense(m.data(32, 16), 16)
    for _ in range(20):
        x = x + 0.3 * tf.nn.relu(m.dense(x, 16))
    return _words(m, x)


# Generation


@case
def diffusion(m: Model) -> tf.Tensor:
    """The noise is told from its mixture with data, at levels near 1."""
    levels = m.uniform(0.98, 0.9999, 32, 1)
    noise = m.data(32, 16)
    mixed = tf.sqrt(levels) * m.data(32, 16) + tf.sqrt(1.0 - levels) * noise
    out = m.dense(_mlp(m, tf.concat([mixed, levels], -1), 32), 16)
    return tf.reduce_mean(tf.square(out - noise) / (1.0 - levels))


@case
def velocity(m: Model) -> tf.Tensor:
    """Flow matching: a difference of data and noise."""
    at = m.uniform(0.0, 1.0, 32, 1)
    data, noise = m.data(32, 16, mean=10.0), m.data(32, 16)
    x = at * data + (1.0 - at) * noise
    out = m.dense(_mlp(m, tf.concat([x, at], -1), 32), 16)
    return tf.reduce_mean(tf.square(out - (data - noise)))


@case
def autoencoder(m: Model) -> tf.Tensor:
    """A variational one, with pixels from 0 to 255."""
    x = m.uniform(0.0, 255.0, 16, 32)
    mean, log_var = tf.split(m.dense(_mlp(m, x / 127.5 - 1.0, 32), 16), 2, -1)
    z = mean + tf.exp(0.5 * log_var) * m.data(16, 8)
    out = m.dense(_mlp(m, z, 32), 32) * 127.5 + 127.5
    kl = -0.5 * tf.reduce_mean(1.0 + log_var - mean * mean - tf.exp(log_var))
    return tf.reduce_mean(tf.square(out - x)) / 1000.0 + kl


@case
def adversarial(m: Model) -> tf.Tensor:
    """A generator and the score that a discriminator gives it."""
    fake = tf.tanh(m.dense(_mlp(m, m.data(32, 8), 32), 16))
    score = m.dense(tf.nn.leaky_relu(m.dense(fake, 32), 0.2), 1)
    return tf.reduce_mean(tf.nn.softplus(-score))


@case
def gradient_penalty(m: Model) -> tf.Tensor:
    """The norm of a gradient by the input, less 1, squared."""
    x = m.data(16, 8)
    score = m.dense(tf.nn.softplus(m.dense(x, 32)), 1)
    (slope,) = tf.gradients(score, x)
    norm = tf.sqrt(tf.reduce_sum(tf.square(slope), -1) + 1e-12)
    return tf.reduce_mean(score) + 10.0 * tf.reduce_mean(tf.square(norm - 1.0))


@case
def normalizing_flow(m: Model) -> tf.Tensor:
    """Two affine couplings and the logarithm of their determinant."""
    x = m.data(32, 8)
    total: tf.Tensor = tf.zeros([32], m.dtype)
    for _ in range(2):
        a, b = tf.split(x, 2, -1)
        log_scale, shift = tf.split(m.dense(_mlp(m, a, 16), 8), 2, -1)
        b = b * tf.exp(tf.tanh(log_scale)) + shift
        total += tf.reduce_sum(tf.tanh(log_scale), -1)
        x = tf.concat([b, a], -1)
    return tf.reduce_mean(0.5 * tf.reduce_sum(x * x, -1) - total)


@case
def vector_quantizer(m: Model) -> tf.Tensor:
    """Distances to a code book, and the straight-through estimate."""
    z = m.dense(_mlp(m, m.data(32, 16), 32), 8)
    book = m.weight(10, 8, spread=1.0)
    code = tf.gather(book, m.integers(10, 32))
    near = tf.reduce_mean(tf.square(z - tf.stop_gradient(code)))
    near += tf.reduce_mean(tf.square(tf.stop_gradient(z) - code))
    through = z + tf.stop_gradient(code - z)
    return near + tf.reduce_mean(tf.square(m.dense(through, 4) - m.data(32, 4)))


# Reinforcement learning


@case
def q_learning(m: Model) -> tf.Tensor:
    """Values near 100 and a discount of 0.99."""
    q = m.dense(_mlp(m, m.data(32, 8), 32), 4, bias=100.0)
    target = m.uniform(0.0, 1.0, 32) + 0.99 * m.data(32, mean=100.0)
    chosen = tf.reduce_sum(q * tf.one_hot(m.integers(4, 32), 4, dtype=m.dtype), -1)
    return tf.reduce_mean(tf.square(chosen - target))


@case
def proximal_policy(m: Model) -> tf.Tensor:
    """The ratio of two probabilities that are almost the same."""
    logits = m.dense(_mlp(m, m.data(32, 8), 32), 4)
    log_p = tf.nn.log_softmax(logits)
    taken = tf.one_hot(m.integers(4, 32), 4, dtype=m.dtype)
    new = tf.reduce_sum(log_p * taken, -1)
    ratio = tf.exp(new - tf.stop_gradient(new) + 0.01 * m.data(32))
    gain = m.data(32)
    clipped = tf.clip_by_value(ratio, 0.8, 1.2) * gain
    entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_p) * log_p, -1))
    return -tf.reduce_mean(tf.minimum(ratio * gain, clipped)) - 0.01 * entropy


@case
def soft_actor(m: Model) -> tf.Tensor:
    """The logarithm of 1 - tanh(x)^2 where it is almost 0."""
    mean, log_std = tf.split(m.dense(_mlp(m, m.data(32, 8), 32), 4), 2, -1)
    raw = mean * 2.0 + tf.exp(tf.clip_by_value(log_std, -5.0, 1.0)) * m.data(32, 2)
    action = tf.tanh(raw)
    log_p = -0.5 * tf.square(raw - mean) - tf.math.log(1.0 - action * action + 1e-6)
    score = m.dense(_mlp(m, action, 16), 1)
    return tf.reduce_mean(0.2 * tf.reduce_sum(log_p, -1) - score[:, 0])


# Recommendation and sequences


@case
def wide_and_deep(m: Model) -> tf.Tensor:
    """A sum of embeddings and a small network."""
    ids = m.integers(100, 32, 4)
    wide = tf.reduce_sum(tf.gather(m.weight(100, 1, spread=0.1), ids), [1, 2])
    deep = tf.reshape(tf.gather(m.weight(100, 8, spread=0.3), ids), [32, 32])
    logits = wide + m.dense(_mlp(m, deep, 32), 1)[:, 0]
    labels = tf.cast(m.integers(2, 32), m.dtype)
    loss = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(loss)


@case
def factorization_machine(m: Model) -> tf.Tensor:
    """The square of a sum less the sum of squares, and a product on top."""
    v = tf.gather(m.weight(100, 8, spread=0.5), m.integers(100, 32, 16))
    v = tf.reshape(m.dense(v, 8), [32, 16, 8])
    pairs = tf.square(tf.reduce_sum(v, 1)) - tf.reduce_sum(tf.square(v), 1)
    out = m.dense(_mlp(m, 0.5 * pairs, 16), 1)
    return tf.reduce_mean(tf.square(out - m.data(32, 1)))


@case
def survival(m: Model) -> tf.Tensor:
    """Cox's partial likelihood: a cumulative sum of exponentials."""
    risk = m.dense(_mlp(m, m.data(64, 16), 32), 1)[:, 0]
    return tf.reduce_mean(tf.math.log(tf.cumsum(tf.exp(risk), reverse=True)) - risk)


@case
def mixture_of_experts(m: Model) -> tf.Tensor:
    """Experts weighed by a softmax, and the loss that balances them."""
    x = m.data(32, 16)
    gates = tf.nn.softmax(m.dense(x, 4))
    experts = tf.stack([tf.nn.relu(m.dense(x, 16)) for _ in range(4)], 1)
    x = tf.reduce_sum(gates[..., None] * experts, 1)
    balance = tf.reduce_sum(tf.square(tf.reduce_mean(gates, 0)))
    return _words(m, x) + 0.01 * balance


@case
def graph_network(m: Model) -> tf.Tensor:
    """Sums over the neighbours of each node, 1000 for one of them."""
    x = m.dense(m.data(64, 8), 16)
    to = tf.concat([m.integers(64, 200), tf.zeros([1000], tf.int32)], 0)
    sent = tf.gather(x, m.integers(64, 1200))
    x = tf.math.unsorted_segment_sum(sent, to, 64)
    return _words(m, tf.nn.relu(m.dense(x, 16)))


@case
def physics(m: Model) -> tf.Tensor:
    """The residual of u'' + u by differences, where neighbours almost cancel."""
    at = m.given(np.linspace(0.0, 3.0, 65)[:, None])
    u = m.dense(tf.tanh(m.dense(tf.tanh(m.dense(at, 32)), 32)), 1)[:, 0]
    second = (u[2:] - 2.0 * u[1:-1] + u[:-2]) / (3.0 / 64.0) ** 2
    return tf.reduce_mean(tf.square(second + u[1:-1])) + tf.square(u[0] - 1.0)


@case
def sampled_positions(m: Model) -> tf.Tensor:
    """Positions up to 200, between which a signal is interpolated: a small fraction."""
    signal = m.data(256)
    offsets = m.dense(_mlp(m, m.data(64, 16), 32), 2)
    at = m.given(np.linspace(130.0, 200.0, 64)[:, None]) + offsets
    low = tf.floor(at)
    share, index = at - low, tf.cast(low, tf.int32)
    below, above = tf.gather(signal, index), tf.gather(signal, index + 1)
    x = below * (1.0 - share) + above * share
    return tf.reduce_mean(tf.square(m.dense(x, 4) - m.data(64, 4)))
