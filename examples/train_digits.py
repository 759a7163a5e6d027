"""Trains a wide ResNet on scikit-learn's handwritten digits: a plain Keras job.

Nothing here knows of mixed precision and nothing may: this is the job that
`AMP_ENABLE=1` changes from outside. `examples/demo.py` runs it twice and compares.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import resource
import statistics
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn import datasets, model_selection

# The models lie beside this directory and are not installed.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from models import resnet

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def load_digits(seed: int) -> Split:
    """Returns train and test images [n, 16, 16, 1] in -1…1, train and test labels [n].

    The 1797 digits of 8×8 pixels are enlarged twice; a fifth is kept for testing.
    """
    images, labels = datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 8.0 - 1.0
    images = np.repeat(np.repeat(images, 2, axis=1), 2, axis=2)
    return model_selection.train_test_split(
        images, labels, test_size=0.2, random_state=seed, stratify=labels
    )


class Turns(keras.callbacks.Callback):
    """Takes turns with a run in another process, step by step.

    So both meet the same machine, whatever else it does. From the begin of a step to
    that of the next only one of the two computes.

    Args:
      take: descriptor of a pipe: a byte in it gives the turn; at its end there is
        nobody to wait for.
      give: of the pipe to the other run.
    """

    def __init__(self, take: int, give: int) -> None:
        super().__init__()
        self.take, self.give = take, give
        self.mine = False

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        if self.mine:
            with contextlib.suppress(BrokenPipeError):  # the other has ended
                os.write(self.give, b".")
        os.read(self.take, 1)
        self.mine = True

    def on_train_end(self, logs: dict | None = None) -> None:
        os.close(self.give)


class StepTimer(keras.callbacks.Callback):
    """Times training steps."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self.begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        float((logs or {})["loss"])  # Waits for a device that computes on its own.
        self.seconds.append(time.perf_counter() - self.begin)

    def median_ms(self) -> float:
        """The median step in milliseconds, of the second half of the training."""
        return 1e3 * statistics.median(self.seconds[len(self.seconds) // 2 :])


def compile_model(steps: int, learning_rate: float) -> keras.Model:
    """Returns a WRN-8-4 with momentum SGD, warmed up and decayed by a cosine.

    Eight weighted layers, four times as wide as the ResNets for CIFAR: Zagoruyko and
    Komodakis, "Wide Residual Networks" (2016).
    """
    model = resnet.resnet_cifar(8, classes=10, input_shape=(16, 16, 1), width=64)
    schedule = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=learning_rate / 10,
        decay_steps=steps - steps // 10,
        warmup_target=learning_rate,
        warmup_steps=steps // 10,
    )
    model.compile(
        optimizer=keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def peak_mib() -> float:
    """The most memory held so far: of the GPU if there is one, else of the process."""
    if tf.config.list_physical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def write_json(path: pathlib.Path, value: object) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)


def train(args: argparse.Namespace) -> dict[str, object]:
    """Trains, and returns the curves and the measurements."""
    keras.utils.set_random_seed(args.seed)
    x_train, x_test, y_train, y_test = load_digits(args.seed)
    batches = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    batches = batches.shuffle(len(x_train), seed=args.seed)
    batches = batches.batch(args.batch_size, drop_remainder=True).prefetch(2)
    tests = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(args.batch_size)

    model = compile_model(args.epochs * len(batches), args.learning_rate)
    timer, before = StepTimer(), peak_mib()
    turns = [Turns(*args.turns)] if args.turns else []
    history = model.fit(
        batches,
        validation_data=tests,
        epochs=args.epochs,
        shuffle=False,  # The data set shuffles itself.
        callbacks=[*turns, timer],
        verbose=1 if sys.stdout.isatty() else 2,
    ).history
    curves = ("loss", "accuracy", "val_loss", "val_accuracy")
    return {
        **{name: [float(value) for value in history[name]] for name in curves},
        "step_ms": timer.median_ms(),
        "steps_ms": [1e3 * seconds for seconds in timer.seconds],
        "peak_mib": peak_mib(),
        "before_mib": before,
        "epochs": args.epochs,
        "seed": args.seed,
        "batch_size": args.batch_size,
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument(
        "--turns",
        type=int,
        nargs=2,
        metavar="DESCRIPTOR",
        help="pipes to take turns by, step by step: to read from, to write to",
    )
    parser.add_argument("--history", type=pathlib.Path, help="JSON file to write")
    args = parser.parse_args()
    result = train(args)
    if args.history:
        write_json(args.history, result)
    print(
        f"test accuracy {result['val_accuracy'][-1]:.4f}, "
        f"{result['step_ms']:.1f} ms per step, peak {result['peak_mib']:.0f} MiB"
    )


if __name__ == "__main__":
    main()
