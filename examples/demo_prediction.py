"""What the demo's training step would gain on GPUs that are not here, as predicted.

Called by `demo` in a process of its own. The figures are those of the package's cost
model for the vendor's data sheets: nothing is trained, run or measured here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

DEVICES = ("a100", "t4")


@dataclasses.dataclass(frozen=True)
class Job:
    """A training step to predict.

    Attributes:
      name: what it is called beside its figures.
      batch: images in a batch.
      size: pixels of an image's side.
      width: channels of the first stage of the network.
    """

    name: str
    batch: int
    size: int
    width: int


JOBS = (
    Job("this step: WRN-8-4, 64 images of 16×16", 64, 16, 64),
    Job("a GPU's load: WRN-8-32, 256 images of 32×32", 256, 32, 512),
)


def predict() -> list[dict[str, Any]]:
    """Returns the predicted seconds of a step of each job on each device."""
    rows = (row for job in JOBS for row in _predicted(job))
    return sorted(rows, key=lambda row: row["device"])  # the jobs stay in their order


def _predicted(job: Job) -> list[dict[str, Any]]:
    import tensorflow as tf

    import amp

    step, images = _step(job), [job.batch, job.size, job.size, 1]
    given = (tf.TensorSpec(images), tf.TensorSpec([job.batch], tf.int64))
    rows = []
    for device in DEVICES:
        report = amp.explain(step, *given, device=device)
        row = {"job": job.name, "device": report.device.partition(" (")[0]}
        row |= {"dtype": report.dtype, "verdict": report.verdict}
        rows.append(
            {**row, "seconds32": report.seconds32, "seconds16": report.seconds16}
        )
    return rows


def _step(job: Job) -> Any:
    """The training step as a function, which is only traced."""
    import keras
    import tensorflow as tf

    from models import resnet

    shape = (job.size, job.size, 1)
    model = resnet.resnet_cifar(8, 10, shape, width=job.width)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    optimizer.build(model.trainable_variables)
    loss_of = resnet.LOSS()

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    return step
