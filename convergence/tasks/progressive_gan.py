"""A progressive GAN on images; sliced Wasserstein distance to the test images.

Every stage has equally many steps. During the first half of those of a stage beyond the
first the new layers are faded in. Every step trains the discriminator, then the
generator. What is judged is a running mean of the generator's weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from convergence import metrics, task
from convergence.data import images
from convergence.families import Size
from convergence.trivial import pixels
from models import progressive_gan as gans

COMPARED = 256  # images of each side
LEARNED = 10_000  # images that the trivial model learns from, at most
# Appendix A.1: how much of a running mean a step keeps. A shorter run keeps less, so
# that its mean, too, is of the last eighth of the steps.
DECAY, MEANS = 0.999, 8


def load(size: Size, directory: Path | None) -> images.Images:
    return images.load(directory, **size.data)


def trivial(data: images.Images, size: Size) -> float:
    """The distance of images whose pixels know nothing of one another."""
    side = gans.side(len(size.model["channels"]) - 1)
    some = np.arange(min(LEARNED, len(data.train)))
    train, real = fitted(data.train.take(some)[0], side), _real(data, side)
    fake = pixels.independent(train, len(real), seed=0)
    return metrics.sliced_wasserstein(real, fake, seed=0)


def make(data: images.Images, size: Size) -> task.Task:
    sizes = dict(size.model)
    latent = sizes.setdefault("latent", 16)
    stages = len(sizes["channels"])
    gan = gans.build(**sizes, colours=data.channels)
    optimizers = _optimizers(gan, size)
    share = size.steps // stages

    def stage_of(step: int) -> int:
        return min(step // share, stages - 1)

    def batch(seed: int, step: int) -> task.Batch:
        chosen = task.rows(seed, step, batch=size.batch, count=len(data.train))
        stage, random = stage_of(step), task.noise(seed, step)
        within = (step - stage * share + 1) / max(share // 2, 1)
        alpha = np.float32(min(within, 1.0) if stage else 1.0)
        real = fitted(data.train.take(chosen)[0], gans.side(stages - 1))
        latents = random.standard_normal((2, size.batch, latent), np.float32)
        places = random.random((size.batch, 1, 1, 1), np.float32)
        return gans.for_stage(real, stage, alpha), latents, places, alpha

    def evaluate() -> float:
        real = _real(data, gans.side(stages - 1))
        shape = (len(real), latent)
        latents = task.noise(0, 0).standard_normal(shape, np.float32)
        alpha = tf.constant(1.0)
        with averaged(optimizers[1], gan.generator.trainable_variables):
            fake = gan.generator(latents, stage=stages - 1, alpha=alpha)
        return metrics.sliced_wasserstein(real, fake.numpy(), seed=0)

    return task.Task(
        gan,
        lambda stage: _parts(gan, optimizers, stage),
        batch,
        evaluate,
        stages=tuple(range(stages)),
        stage=stage_of,
    )


def _real(data: images.Images, side: int) -> np.ndarray:
    count = min(COMPARED, len(data.test))
    return fitted(data.test.take(np.arange(count))[0], side)


@contextlib.contextmanager
def averaged(
    optimizer: keras.Optimizer, variables: Sequence[keras.Variable]
) -> Iterator[None]:
    """Within, the variables hold the running means that their optimizer keeps."""
    held = [variable.numpy() for variable in variables]
    optimizer.finalize_variable_values(variables)
    yield
    for variable, value in zip(variables, held, strict=True):
        variable.assign(value)


def _optimizers(gan: Any, size: Size) -> list[keras.Optimizer]:
    """The optimizers of the discriminator and the generator, built."""
    # Karras et al., appendix A.1: no first moment, and a mean of the generator.
    options = {"beta_1": 0.0, "beta_2": 0.99, "epsilon": 1e-8}
    decay = min(DECAY, max(1 - MEANS / size.steps, 0.0))
    means = {"use_ema": True, "ema_momentum": decay}
    optimizers = [
        keras.optimizers.Adam(size.rate, **options),
        keras.optimizers.Adam(size.rate, **options, **means),
    ]
    networks = gan.discriminator, gan.generator
    for optimizer, network in zip(optimizers, networks, strict=True):
        optimizer.build(network.trainable_variables)
    return optimizers


def _parts(
    gan: Any, optimizers: list[keras.Optimizer], stage: int
) -> tuple[task.Part, ...]:
    """The two losses of a step at a stage, each with what it trains."""

    def judge(batch: task.Batch) -> tf.Tensor:
        real, latents, places, alpha = batch
        return gans.discriminator_loss(
            gan, real, (latents[0], places), stage=stage, alpha=alpha
        )

    def deceive(batch: task.Batch) -> tf.Tensor:
        _, latents, _, alpha = batch
        return gans.generator_loss(gan, latents[1], stage=stage, alpha=alpha)

    variables = gan.discriminator.trained(stage), gan.generator.trained(stage)
    return tuple(
        task.Part(loss, ((optimizer, some),))
        for loss, optimizer, some in zip(
            (judge, deceive), optimizers, variables, strict=True
        )
    )


def fitted(pixels: np.ndarray, side: int) -> np.ndarray:
    """Images of the generator's side: framed with background, then averaged down.

    Args:
      pixels: square images, [batch, height, width, colours].
      side: of the result.
    """
    times = -(-pixels.shape[1] // side)
    before = (side * times - pixels.shape[1]) // 2
    after = side * times - pixels.shape[1] - before
    frame = ((0, 0), (before, after), (before, after), (0, 0))
    framed = np.pad(pixels, frame, constant_values=-1.0)
    cells = framed.reshape(len(pixels), side, times, side, times, -1)
    return cells.mean(axis=(2, 4), dtype=np.float32)
