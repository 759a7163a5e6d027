"""Progressive GAN: generator and discriminator that grow, stage by stage.

Karras, Aila, Laine and Lehtinen, "Progressive Growing of GANs for Improved Quality,
Stability, and Variation" (2017): growth with fade-in (section 2), minibatch standard
deviation (3), equalized learning rate (4.1), pixel normalisation (4.2), and the loss of
Gulrajani et al. (2017), WGAN-GP, with its gradient penalty (appendix A.1). No training
loop and no random numbers: noise is passed in.

At stage s images have 4 * 2^s pixels a side. A stage is a Python int, so that each has
a graph of its own; alpha is a tensor, from 0 (the stage before) to 1 (this stage).
"""

from __future__ import annotations

import functools
import itertools
import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers

TINY = 1e-8  # of section 4.2's and the authors' code's square roots
PENALTY, DRIFT = 10.0, 0.001  # appendix A.1
GROUP = 4  # images over which the authors' code takes deviations


@keras.saving.register_keras_serializable("models")
class Equalized(layers.Layer):
    """A convolution, or a product, whose weights start at N(0, 1).

    Section 4.1: they are scaled at each use by He's constant, so that all of them learn
    at one speed.
    """

    def __init__(
        self,
        sizes: tuple[int, int],
        kernel: int | None,
        *,
        gain: float = math.sqrt(2.0),
        padding: str = "SAME",
        name: str,
    ) -> None:
        super().__init__(name=name)
        sides = () if kernel is None else (kernel, kernel)
        normal = keras.initializers.RandomNormal(stddev=1.0)
        self.weight = self.add_weight((*sides, *sizes), normal, name="weight")
        self.bias = self.add_weight(sizes[1:], "zeros", name="bias")
        self.scale = gain / math.sqrt(math.prod(sides) * sizes[0])
        self.kernel, self.padding = kernel, padding
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        weight = self.weight * self.scale
        if self.kernel is None:
            return tf.matmul(x, weight) + self.bias
        return tf.nn.conv2d(x, weight, 1, self.padding) + self.bias


@keras.saving.register_keras_serializable("models")
class Generator(keras.Model):
    """Latents [batch, latent] to images [batch, side, side, colours] of a stage."""

    def __init__(self, channels: tuple[int, ...], latent: int, colours: int) -> None:
        super().__init__(name="generator")
        # The authors' code gives the first layer a quarter of the usual gain.
        sizes, gain = (latent, 16 * channels[0]), math.sqrt(2.0) / 4
        self.first = Equalized(sizes, None, gain=gain, name="first")
        # The first layer takes the place of the first stage's first convolution.
        self.blocks = [[Equalized((channels[0],) * 2, 3, name="stage0_b")]]
        for stage, (below, count) in enumerate(itertools.pairwise(channels), 1):
            self.blocks.append(
                [
                    Equalized((below, count), 3, name=f"stage{stage}_a"),
                    Equalized((count, count), 3, name=f"stage{stage}_b"),
                ]
            )
        self.colours = [
            Equalized((count, colours), 1, gain=1.0, name=f"colours{stage}")
            for stage, count in enumerate(channels)
        ]

    def call(self, latents: tf.Tensor, *, stage: int, alpha: tf.Tensor) -> tf.Tensor:
        """Images; those of the stage before show through as far as alpha is below 1."""
        x = self.first(pixel_norm(latents))
        x = tf.reshape(x, [-1, 4, 4, x.shape[-1] // 16])
        x = before = pixel_norm(tf.nn.leaky_relu(x))
        for index, block in enumerate(self.blocks[: stage + 1]):
            before = x
            x = doubled(x) if index else x
            for conv in block:
                x = pixel_norm(tf.nn.leaky_relu(conv(x)))
        images = self.colours[stage](x)
        if stage == 0:
            return images
        return mixed(doubled(self.colours[stage - 1](before)), images, alpha)

    def trained(self, stage: int) -> list[keras.Variable]:
        """The variables that images of a stage depend on."""
        parts = [self.first, *sum(self.blocks[: stage + 1], [])]
        parts += self.colours[max(stage - 1, 0) : stage + 1]
        return [v for part in parts for v in part.trainable_variables]


@keras.saving.register_keras_serializable("models")
class Discriminator(keras.Model):
    """Images of a stage to scores [batch, 1]: high for real ones."""

    def __init__(self, channels: tuple[int, ...], colours: int) -> None:
        super().__init__(name="discriminator")
        first = channels[0]
        self.colours = [
            Equalized((colours, count), 1, name=f"colours{stage}")
            for stage, count in enumerate(channels)
        ]
        self.blocks = [
            [
                Equalized((count, count), 3, name=f"stage{stage}_a"),
                Equalized((count, below), 3, name=f"stage{stage}_b"),
            ]
            for stage, (below, count) in enumerate(itertools.pairwise(channels), 1)
        ]
        self.last = [
            Equalized((first + 1, first), 3, name="last_a"),
            Equalized((first, first), 4, padding="VALID", name="last_b"),
        ]
        self.score = Equalized((first, 1), None, gain=1.0, name="score")

    def call(self, images: tf.Tensor, *, stage: int, alpha: tf.Tensor) -> tf.Tensor:
        """Scores; see `Generator.call`."""
        x = tf.nn.leaky_relu(self.colours[stage](images))
        for index in range(stage, 0, -1):
            for conv in self.blocks[index - 1]:
                x = tf.nn.leaky_relu(conv(x))
            x = halved(x)
            if index == stage:
                old = tf.nn.leaky_relu(self.colours[stage - 1](halved(images)))
                x = mixed(old, x, alpha)
        x = with_deviation(x)
        for conv in self.last:
            x = tf.nn.leaky_relu(conv(x))
        return self.score(x[:, 0, 0])

    def trained(self, stage: int) -> list[keras.Variable]:
        """The variables that scores of a stage depend on."""
        parts = [*sum(self.blocks[:stage], []), *self.last, self.score]
        parts += self.colours[max(stage - 1, 0) : stage + 1]
        return [v for part in parts for v in part.trainable_variables]


@keras.saving.register_keras_serializable("models")
class ProgressiveGAN(keras.Model):
    """The two networks; called, it scores what it generates."""

    def __init__(self, generator: Generator, discriminator: Discriminator) -> None:
        super().__init__(name="progressive_gan")
        self.generator, self.discriminator = generator, discriminator

    def call(self, latents: tf.Tensor, *, stage: int, alpha: tf.Tensor) -> tf.Tensor:
        how = {"stage": stage, "alpha": alpha}
        return self.discriminator(self.generator(latents, **how), **how)


def build(
    *, channels: tuple[int, ...] = (16, 16, 8), latent: int = 16, colours: int = 1
) -> ProgressiveGAN:
    """Returns the networks of all stages, with all their variables.

    The paper's, for images of 1024 pixels, are `channels=(512, 512, 512, 512, 256, 128,
    64, 32, 16), latent=512, colours=3`.

    Args:
      channels: of each stage, the first of which has 4 pixels a side.
      latent: length of a latent.
      colours: channels of an image.
    """
    generator = Generator(channels, latent, colours)
    gan = ProgressiveGAN(generator, Discriminator(channels, colours))
    gan(tf.zeros([1, latent]), stage=0, alpha=tf.constant(1.0))
    return gan


def example_batch(
    batch: int, seed: int, *, stage: int = 2, latent: int = 16, colours: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images of a stage, gradients of grey from -1 to 1, and latents."""
    random = np.random.default_rng(seed)
    slopes = random.uniform(-1, 1, (batch, 1, 1, 2, colours))
    places = np.linspace(-0.5, 0.5, side(stage))
    images = (
        slopes[..., 0, :] * places[:, None, None] + slopes[..., 1, :] * places[:, None]
    )
    latents = random.standard_normal((batch, latent), dtype=np.float32)
    return images.astype(np.float32), latents


def generator_loss(
    gan: ProgressiveGAN, latents: tf.Tensor, *, stage: int, alpha: tf.Tensor
) -> tf.Tensor:
    """What the generator lowers, a scalar: its images' mean score, negated."""
    return -tf.reduce_mean(gan(latents, stage=stage, alpha=alpha))


def discriminator_loss(
    gan: ProgressiveGAN,
    images: tf.Tensor,
    noise: tuple[tf.Tensor, tf.Tensor],
    *,
    stage: int,
    alpha: tf.Tensor,
) -> tf.Tensor:
    """What the discriminator lowers, a scalar (appendix A.1).

    Args:
      gan: what `build` returned.
      images: real ones at the side of the stage, faded (see `faded`).
      noise: latents [batch, latent], and places [batch, 1, 1, 1] between 0 (generated)
        and 1 (real) at which the gradient is penalised.
      stage: from 0.
      alpha: of the stage, from 0 to 1.
    """
    latents, places = noise
    score = functools.partial(gan.discriminator, stage=stage, alpha=alpha)
    fake = tf.stop_gradient(gan.generator(latents, stage=stage, alpha=alpha))
    between = mixed(fake, images, places)
    with tf.GradientTape() as tape:
        tape.watch(between)
        total = tf.reduce_sum(score(between))
    slope = tape.gradient(total, between)
    length = tf.sqrt(tf.reduce_sum(tf.square(slope), (1, 2, 3)) + TINY)
    real = score(images)
    return (
        tf.reduce_mean(score(fake) - real)
        + PENALTY * tf.reduce_mean(tf.square(length - 1.0))
        + DRIFT * tf.reduce_mean(tf.square(real))
    )


def side(stage: int) -> int:
    """Pixels of a side of a stage's images."""
    return 4 << stage


def for_stage(images: tf.Tensor, stage: int, alpha: tf.Tensor) -> tf.Tensor:
    """Real images as a stage wants them: smaller, and as blurred as it is new."""
    while images.shape[1] > side(stage):
        images = halved(images)
    return images if stage == 0 else mixed(doubled(halved(images)), images, alpha)


def pixel_norm(x: tf.Tensor) -> tf.Tensor:
    """Each pixel's features at a mean square of 1 (section 4.2)."""
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + TINY)


def with_deviation(x: tf.Tensor) -> tf.Tensor:
    """Adds a channel: the mean deviation of features in a group of images (section 3).

    A batch that groups do not divide is one group.
    """
    batch, height, width, _ = x.shape
    size = GROUP if batch % GROUP == 0 else batch
    groups = tf.reshape(x, [size, -1, *x.shape[1:]])
    spread = tf.square(groups - tf.reduce_mean(groups, 0))
    spread = tf.sqrt(tf.reduce_mean(spread, 0) + TINY)
    spread = tf.reduce_mean(spread, [1, 2, 3], keepdims=True)
    return tf.concat([x, tf.tile(spread, [size, height, width, 1])], -1)


def doubled(images: tf.Tensor) -> tf.Tensor:
    """Images of twice the side, each pixel repeated."""
    return tf.repeat(tf.repeat(images, 2, 1), 2, 2)


def halved(images: tf.Tensor) -> tf.Tensor:
    """Images of half the side, each pixel the mean of four."""
    return tf.nn.avg_pool2d(images, 2, 2, "VALID")


def mixed(old: tf.Tensor, new: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """The old at alpha 0, the new at alpha 1, both exactly."""
    return old * (1.0 - alpha) + new * alpha
