"""Progressive GAN: its parts by hand, growth without a jump, losses that train it."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import progressive_gan as module

IMAGES, LATENTS = module.example_batch(8, seed=0)
PLACES = np.random.default_rng(1).uniform(size=(8, 1, 1, 1)).astype(np.float32)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_has_its_side_and_a_score_an_image(stage: int) -> None:
    gan = module.build(channels=(8, 6, 4))
    images = gan.generator(LATENTS, stage=stage, alpha=tf.constant(1.0))
    assert images.shape == (8, 4 * 2**stage, 4 * 2**stage, 1)
    assert gan.discriminator(images, stage=stage, alpha=tf.constant(1.0)).shape == (
        8,
        1,
    )


def test_a_new_stage_begins_as_the_old_one() -> None:
    """Figure 2: at alpha 0 neither network has changed but for the side."""
    gan, one = module.build(), tf.constant(1.0)
    for stage in (1, 2):
        old = gan.generator(LATENTS, stage=stage - 1, alpha=one)
        new = gan.generator(LATENTS, stage=stage, alpha=tf.constant(0.0))
        np.testing.assert_array_equal(new, module.doubled(old))
        scores = gan.discriminator(new, stage=stage, alpha=tf.constant(0.0))
        np.testing.assert_allclose(
            scores,
            gan.discriminator(old, stage=stage - 1, alpha=one),
            rtol=1e-5,
            atol=1e-6,
        )
        assert np.abs(gan.generator(LATENTS, stage=stage, alpha=one) - new).max() > 1e-3


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_trains_the_variables_that_it_names(stage: int) -> None:
    gan, alpha = module.build(), tf.constant(0.5)
    with tf.GradientTape(persistent=True) as tape:
        down = module.generator_loss(gan, LATENTS, stage=stage, alpha=alpha)
        real = module.for_stage(IMAGES, stage, alpha)
        up = module.discriminator_loss(
            gan, real, (LATENTS, PLACES), stage=stage, alpha=alpha
        )
    for network, loss in ((gan.generator, down), (gan.discriminator, up)):
        every = network.trainable_variables
        pairs = zip(tape.gradient(loss, every), every, strict=True)
        moved = {v.path for g, v in pairs if g is not None}
        trained = {v.path for v in network.trained(stage)}
        # A score's bias moves no slope and both means alike, but for the drift.
        assert moved == trained
    assert len(gan.generator.trained(2)) == len(gan.generator.trainable_variables) - 2


def test_weights_start_at_one_and_act_by_he() -> None:
    """Section 4.1: N(0, 1) at rest, a deviation of sqrt(2 / inputs) in use."""
    layer = module.Equalized((64, 512), 3, name="conv")
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 64)).astype(np.float32)
    y = layer(x).numpy()[:, 1:-1, 1:-1]
    # 294,912 weights and 73,728 results: deviations within 1 %.
    assert np.std(layer.weight) == pytest.approx(1, rel=0.01)
    assert np.std(y) == pytest.approx(np.sqrt(2), rel=0.01 + 0.02)


def test_pixels_are_normalised_to_a_mean_square_of_one() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    wanted = np.array([[3.0, 4.0], [0.0, 0.0]]) / np.sqrt(12.5)
    np.testing.assert_allclose(module.pixel_norm(x), wanted, rtol=1e-6)


def test_deviation_of_a_group_is_a_channel() -> None:
    x = np.zeros((8, 2, 2, 3), np.float32)
    x[::4] = 8.0  # two groups of four, images 0, 2, 4, 6 and 1, 3, 5, 7
    found = module.with_deviation(x).numpy()
    np.testing.assert_array_equal(found[..., :3], x)
    groups = x.reshape(4, 2, 2, 2, 3)
    wanted = np.sqrt(groups.var(0) + 1e-8).mean((1, 2, 3))
    for image in range(8):
        np.testing.assert_allclose(found[image, ..., 3], wanted[image % 2], rtol=1e-6)
    assert wanted[0] == pytest.approx(4) or wanted[0] == pytest.approx(np.sqrt(12))


def test_a_linear_score_is_penalised_by_hand() -> None:
    """With the mean score's slope known, so is the penalty: 10 (|slope| - 1)^2."""
    gan = module.build(channels=(4,))

    class Linear(tf.Module):
        def __call__(self, images, stage, alpha):
            return 0.5 * tf.reduce_sum(images, (1, 2, 3))[:, None]

    plain = type("Plain", (), {"generator": gan.generator, "discriminator": Linear()})
    real = module.for_stage(IMAGES, 0, tf.constant(1.0))
    fake = gan.generator(LATENTS, stage=0, alpha=tf.constant(1.0)).numpy()
    loss = module.discriminator_loss(
        plain, real, (LATENTS, PLACES), stage=0, alpha=tf.constant(1.0)
    )
    scores = [0.5 * x.sum((1, 2, 3)) for x in (fake, real.numpy())]
    slope = 0.5 * np.sqrt(16)
    wanted = scores[0].mean() - scores[1].mean() + 10 * (slope - 1) ** 2
    wanted += 0.001 * (scores[1] ** 2).mean()
    assert float(loss) == pytest.approx(wanted, rel=1e-5)


def test_real_images_are_halved_and_faded() -> None:
    found = module.for_stage(IMAGES, 1, tf.constant(0.25)).numpy()
    small = IMAGES.reshape(8, 8, 2, 8, 2, 1).mean((2, 4))
    blurred = small.reshape(8, 4, 2, 4, 2, 1).mean((2, 4)).repeat(2, 1).repeat(2, 2)
    np.testing.assert_allclose(found, 0.25 * small + 0.75 * blurred, atol=1e-6)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_discriminator_learns_to_tell_and_the_generator_to_please() -> None:
    gan, alpha = module.build(channels=(8, 8)), tf.constant(0.5)
    real = module.for_stage(IMAGES, 1, alpha)

    def losses() -> tuple[tf.Tensor, tf.Tensor]:
        noise = (LATENTS, PLACES)
        return (
            module.discriminator_loss(gan, real, noise, stage=1, alpha=alpha),
            module.generator_loss(gan, LATENTS, stage=1, alpha=alpha),
        )

    for index, network in enumerate((gan.discriminator, gan.generator)):
        variables = network.trained(1)
        optimizer = keras.optimizers.Adam(2e-3, beta_1=0.0, beta_2=0.99)

        def step(which: int, some: list, by: keras.Optimizer) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = losses()[which]
            by.apply(tape.gradient(loss, some), some)
            return loss

        run = tf.function(functools.partial(step, index, variables, optimizer))
        values = [float(run()) for _ in range(20)]
        assert np.isfinite(values).all()
        assert values[-1] < values[0]
