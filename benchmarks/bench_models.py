"""The table of cases that are timed: which model, how large, what batch and optimizer.

Rows only; nothing here imports TensorFlow, so that the driver stays small. `small` are
the sizes of `--quick`, which show that a case works and say nothing about its speed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One training step to be timed.

    Attributes:
      name: of the case, in tables and on the command line.
      module: the file of models/.
      sizes: arguments of the builder and, where it takes them, of `example_batch`.
      small: what replaces some of them under `--quick`.
      batch: examples of a step; `small` may have a "batch" too.
      optimizer: name in `OPTIMIZERS`.
      builder: function of the module.
      memory: whether its peak memory is what it is for.
    """

    name: str
    module: str
    sizes: Mapping[str, Any]
    small: Mapping[str, Any]
    batch: int
    optimizer: str
    builder: str = "build"
    memory: bool = False

    def arguments(self, quick: bool) -> tuple[int, dict[str, Any]]:
        """The batch and the sizes, whole or small."""
        sizes = {"batch": self.batch, **self.sizes, **(self.small if quick else {})}
        return sizes.pop("batch"), sizes


# By Keras name; rates are low enough for every case to stay finite in a short run.
OPTIMIZERS: dict[str, tuple[str, dict[str, float]]] = {
    "sgd": ("SGD", {"learning_rate": 1e-3}),
    "momentum": ("SGD", {"learning_rate": 1e-3, "momentum": 0.9}),
    "rmsprop": ("RMSprop", {"learning_rate": 1e-4, "momentum": 0.9}),
    "adagrad": ("Adagrad", {"learning_rate": 1e-3}),
    "adam": ("Adam", {"learning_rate": 1e-4}),
}

_IMAGES = {"input_shape": (128, 128, 3), "classes": 1000}
_SMALL_IMAGES = {"input_shape": (32, 32, 3), "classes": 10, "batch": 4}
_PTB = {"vocabulary": 10_000, "steps": 35}
_SMALL_TEXT = {"vocabulary": 500, "steps": 8, "batch": 4}
# Table 2 of the MobileNetV2 paper.
_MOBILENET = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


def _mlp(name: str, hidden: tuple[int, ...], batch: int) -> Case:
    sizes = {"features": hidden[0], "hidden": hidden}
    small = {"features": 64, "hidden": (64,) * len(hidden), "batch": 16}
    return Case(name, "mlp", sizes, small, batch, "sgd")


def _words(name: str, cell: str, units: int) -> Case:
    """Zaremba et al. (2014): two layers, 35 steps, batch 20, plain gradient descent."""
    small = {"units": 32, **_SMALL_TEXT}
    return Case(
        name, "lstm_lm", {"units": units, "cell": cell, **_PTB}, small, 20, "sgd"
    )


def _transformer(width: int, activation: str) -> Case:
    """Three blocks, 128 positions, as many heads as are 64 wide (Vaswani et al.)."""
    sizes = {"vocabulary": 8000, "steps": 128, "blocks": 3, "activation": activation}
    sizes |= {"width": width, "heads": width // 64}
    small = {"width": 64, "heads": 2, "blocks": 1, **_SMALL_TEXT}
    name = f"transformer {width} {activation}"
    return Case(name, "transformer", sizes, small, 8, "adam")


def _resnet(name: str, side: int, batch: int, memory: bool = False) -> Case:
    sizes = {"input_shape": (side, side, 3), "classes": 1000}
    small = {"width": 8, "blocks": (1, 1, 1, 1), **_SMALL_IMAGES}
    return Case(name, "resnet", sizes, small, batch, "momentum", "resnet50", memory)


def _unet(name: str, side: int, batch: int, memory: bool = False) -> Case:
    sizes = {"input_shape": (side, side, 3), "width": 32, "depth": 4}
    small = {"input_shape": (32, 32, 3), "width": 4, "depth": 2, "batch": 2}
    return Case(name, "unet", sizes, small, batch, "momentum", memory=memory)


def _application(
    name: str, network: str, side: int, batch: int, optimizer: str
) -> Case:
    sizes = {"network": network, "input_shape": (side, side, 3), "classes": 100}
    return Case(name, "applications", sizes, _SMALL_IMAGES, batch, optimizer)


CASES = {
    case.name: case
    for case in (
        _mlp("mlp", (2048,) * 4, 256),
        _mlp("small mlp", (64,) * 6, 32),
        _resnet("resnet50", 128, 16),
        Case(
            "mobilenet_v2",
            "mobilenet_v2",
            {"width": 1.0, "stages": _MOBILENET, **_IMAGES},
            {"width": 0.25, "stages": _MOBILENET[:3], **_SMALL_IMAGES},
            16,
            "rmsprop",
        ),
        _unet("unet", 128, 8),
        Case(
            "ssd",
            "ssd",
            {"input_shape": (192, 192, 3), "classes": 20, "width": 32},
            {"input_shape": (64, 64, 3), "width": 4, "batch": 2},
            8,
            "momentum",
        ),
        _words("lstm medium", "lstm", 650),
        _words("lstm large", "lstm", 1500),
        _words("gru medium", "gru", 650),
        _transformer(512, "gelu"),
        _transformer(512, "relu"),
        _transformer(1024, "gelu"),
        _transformer(1024, "relu"),
        Case(
            "wide & deep",
            "wide_deep",
            {
                "rows": 400_000,
                "width": 64,
                "fields": 26,
                "numbers": 13,
                "hidden": (1024, 512, 256),
            },
            {"rows": 4_000, "width": 8, "hidden": (32, 16), "batch": 32},
            512,
            "adagrad",
        ),
    )
}

# Weights are few beside the activations here: small images, large batches.
MEMORY_CASES = {
    case.name: case
    for case in (
        _resnet("resnet50 memory", 64, 192, memory=True),
        _unet("unet memory", 64, 64, memory=True),
    )
}
# Written by others: nothing in this project was tuned to them.
APPLICATIONS = {
    case.name: case
    for case in (
        _application("densenet121", "DenseNet121", 128, 16, "momentum"),
        _application("efficientnet_v2_b0", "EfficientNetV2B0", 128, 16, "rmsprop"),
        _application("resnet50_v2", "ResNet50V2", 128, 16, "momentum"),
        _application("vgg16", "VGG16", 96, 16, "momentum"),
        _application("convnext_tiny", "ConvNeXtTiny", 64, 8, "adam"),
    )
}
ALL = CASES | APPLICATIONS | MEMORY_CASES
