"""The table of families: model, data, optimizer, size, metric, and what passes.

Rows only; nothing here imports TensorFlow, so that `list` is quick. README.md says what
the figures mean and where margins come from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How large a family is trained.

    Attributes:
      steps, batch: of a run.
      rate: the highest learning rate.
      margin: difference of the metric that still counts as none.
      floor: value of the metric from which on float32 has learned.
      data: arguments of the loader of data.
      model: arguments of the model's builder.
    """

    steps: int
    batch: int
    rate: float
    margin: float
    floor: float
    data: Mapping[str, Any]
    model: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """One model family.

    Attributes:
      name: on the command line.
      title: in reports.
      task: module of `convergence.tasks`.
      model: module of `models`.
      optimizer: in words.
      metric: name of the metric.
      higher: whether more of it is better.
      worst: what a diverged run counts: the metric of a model that knows nothing.
      seeds: of a run by default.
      files: files that --data-dir may hold.
      whole, quick: sizes.
    """

    name: str
    title: str
    task: str
    model: str
    optimizer: str
    metric: str
    higher: bool
    worst: float
    seeds: int
    files: str
    whole: Size
    quick: Size


IMAGES = "cifar10.npz, fashion_mnist.npz, ImageNet TFRecords (train-…-of-…)"

RESNET = Family(
    name="resnet",
    title="ResNet (CIFAR form)",
    task="classify",
    model="resnet",
    optimizer="momentum 0.9",
    metric="accuracy",
    higher=True,
    worst=0.0,
    seeds=5,
    files=IMAGES,
    whole=Size(
        steps=2000,
        batch=64,
        rate=0.1,
        margin=0.02,
        floor=0.5,
        data={"side": 32},
        model={"depth": 20},
    ),
    quick=Size(
        steps=150,
        batch=32,
        rate=0.1,
        margin=0.03,
        floor=0.8,
        data={"side": 16},
        model={"depth": 8, "width": 8},
    ),
)

FAMILIES = {family.name: family for family in (RESNET,)}
