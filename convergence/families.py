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
      floor: value of the metric from which on float32 has learned; of a language model
        one that the frequencies of words alone do not reach.
      data: arguments of the loader of data.
      model: arguments of the model's builder.
      margin: as the family's, where that is not meant for such data; else None.
      needs_scaling: whether float16 without loss scaling must come out worse, as the
        paper found.
    """

    steps: int
    batch: int
    rate: float
    floor: float
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    margin: float | None = None
    needs_scaling: bool = False


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
      trivial: the model that float32 must beat, in words; the task computes it.
      margin: the largest difference of the metric that may count as none.
      seeds: of a run by default.
      files: files that --data-dir may hold.
      full, quick, real: sizes; the last is the quick one on real data.
      falls: whether the loss of a model that learns falls. Where two networks play
        against each other it says who leads, and is not judged.
    """

    name: str
    title: str
    task: str
    model: str
    optimizer: str
    metric: str
    higher: bool
    worst: float
    trivial: str
    margin: float
    seeds: int
    files: str
    full: Size
    quick: Size
    real: Size
    falls: bool = True

    def size(self, *, quick: bool, real: bool) -> Size:
        """The size of a run; `real`: not on the embedded data."""
        if not quick:
            return self.full
        return self.real if real else self.quick


IMAGES = "cifar10.npz, fashion_mnist.npz, ImageNet TFRecords (train-…-of-…)"

RESNET = Family(
    name="resnet",
    title="ResNet-20 (CIFAR form)",
    task="classify",
    model="resnet",
    optimizer="momentum 0.9",
    metric="accuracy",
    higher=True,
    worst=0.0,
    trivial="ridge regression on pixels",
    margin=0.02,
    seeds=3,
    files=IMAGES,
    full=Size(
        steps=5000,
        batch=64,
        rate=0.1,
        floor=0.5,
        data={"side": 32},
        model={"depth": 20, "moved": 4},
    ),
    quick=Size(
        steps=160,
        batch=64,
        rate=0.025,
        floor=0.9,
        data={"side": 16},
        model={"depth": 8, "width": 8},
    ),
    real=Size(
        steps=800,
        batch=32,
        rate=0.1,
        floor=0.4,
        data={"side": 16},
        model={"depth": 8, "width": 16},
    ),
)

RESNET50 = Family(
    name="resnet50",
    title="ResNet-50 v1.5",
    task="classify",
    model="resnet",
    optimizer="momentum 0.9",
    metric="accuracy",
    higher=True,
    worst=0.0,
    margin=0.02,
    trivial="ridge regression on pixels",
    seeds=3,
    files=IMAGES,
    full=Size(
        steps=6000,
        batch=128,
        rate=0.1,
        floor=0.5,
        data={"side": 32},
        model={"width": 64, "blocks": (3, 4, 6, 3), "moved": 4},
    ),
    quick=Size(
        steps=120,
        batch=64,
        rate=0.02,
        floor=0.9,
        data={"side": 32},
        model={"width": 12, "blocks": (1, 1, 1, 1), "smoothing": 0.1},
    ),
    real=Size(
        steps=700,
        batch=32,
        rate=0.05,
        floor=0.4,
        data={"side": 32},
        model={"width": 16, "blocks": (1, 1, 1, 1)},
    ),
)

WIDE_DEEP = Family(
    name="wide_deep",
    title="Wide & Deep",
    task="wide_deep",
    model="wide_deep",
    optimizer="FTRL for the wide part, Adagrad for the deep",
    metric="AUC",
    higher=True,
    worst=0.5,
    trivial="logistic regression without crosses",
    margin=0.001,
    seeds=3,
    files="adult_train.csv and adult_test.csv, .gz or not",
    full=Size(
        steps=3000,
        batch=128,
        rate=0.05,
        floor=0.8,
        data={},
        model={"width": 32, "hidden": (256, 128, 64)},
    ),
    quick=Size(
        steps=400,
        batch=64,
        rate=0.05,
        floor=0.9,
        data={},
        model={"width": 8, "hidden": (32, 16)},
    ),
    real=Size(
        steps=2000,
        batch=64,
        rate=0.05,
        floor=0.85,
        data={},
        model={"width": 8, "hidden": (32, 16)},
    ),
)

SMALL_LSTM = {
    "units": 128,
    "layer_count": 1,
    "steps": 24,
    "dropout": 0.0,
    "scale": 0.1,
}

LSTM_LM = Family(
    name="lstm_lm",
    title="LSTM language model",
    task="language",
    model="lstm_lm",
    optimizer="Adam, gradients clipped at norm 5",
    metric="perplexity",
    higher=False,
    worst=10_000.0,
    trivial="Kneser-Ney trigram",
    margin=0.9,
    seeds=3,
    files="ptb.train.txt and ptb.test.txt, or Multi30k's English side",
    full=Size(
        steps=7000,
        batch=32,
        rate=2e-3,
        floor=200.0,
        data={"most": 10_000},
        model={
            "units": 200,
            "layer_count": 2,
            "steps": 20,
            "dropout": 0.2,
            "scale": 0.1,
        },
    ),
    quick=Size(
        steps=800,
        batch=32,
        rate=0.01,
        floor=7.9,
        data={"most": 100, "letters": True},
        model=SMALL_LSTM,
        margin=0.15,  # 2 %, as 0.9 is of words
    ),
    real=Size(
        steps=900,
        batch=32,
        rate=0.01,
        floor=6.0,
        data={"most": 100, "letters": True},
        model=SMALL_LSTM,
        margin=0.07,  # 2 %, as 0.9 is of words
    ),
)

SCENES = "VOC's directories, or voc2007_*.npz or bccd_*.npz with *_boxes.json(.gz)"

SSD = Family(
    name="ssd",
    title="SSD",
    task="ssd",
    model="ssd",
    optimizer="momentum 0.9",
    metric="mAP",
    higher=True,
    worst=0.0,
    trivial="mean boxes",
    margin=0.05,
    seeds=3,
    files=SCENES,
    full=Size(
        steps=5500,
        batch=8,
        rate=0.003,
        floor=0.1,
        data={"side": 160, "patches": True},
        model={"width": 16, "normalize": True},
    ),
    quick=Size(
        steps=400,
        batch=16,
        rate=0.0003,
        floor=0.3,
        data={"side": 40, "classes": 1},
        model={
            "width": 8,
            "normalize": True,
            "normalize_base": False,
            "scale": 127.5,
            "heads": 0.01,
        },
        needs_scaling=True,
    ),
    real=Size(
        steps=400,
        batch=8,
        rate=0.003,
        floor=0.25,
        data={"side": 96},
        model={"width": 8, "normalize": True, "heads": 0.01},
    ),
)

FASTER_RCNN = Family(
    name="faster_rcnn",
    title="Faster R-CNN",
    task="faster_rcnn",
    model="faster_rcnn",
    optimizer="momentum 0.9, gradients clipped at norm 10",
    metric="mAP",
    higher=True,
    worst=0.0,
    trivial="mean boxes",
    margin=0.05,
    seeds=3,
    files=SCENES,
    full=Size(
        steps=4000,
        batch=4,
        rate=0.01,
        floor=0.1,
        data={"side": 160},
        model={
            "width": 16,
            "hidden": 256,
            "stages": 4,
            "normalize": True,
            "settings": {"anchors": 128, "candidates": 1000, "proposals": (300, 100)},
        },
    ),
    quick=Size(
        steps=150,
        batch=16,
        rate=0.005,
        floor=0.12,
        data={"side": 40, "classes": 1},
        model={"width": 4, "hidden": 32, "stages": 4, "normalize": True},
    ),
    real=Size(
        steps=450,
        batch=4,
        rate=0.02,
        floor=0.1,
        data={"side": 96},
        model={
            "width": 4,
            "hidden": 32,
            "stages": 4,
            "normalize": True,
            "settings": {"candidates": 256, "proposals": (128, 64)},
        },
    ),
)

PAIRS = "train.de and train.en with test_2016_flickr (Multi30k), newstest2014 or test"

LSTM_NMT = Family(
    name="lstm_nmt",
    title="LSTM translation with attention",
    task="lstm_nmt",
    model="lstm_nmt",
    optimizer="Adam, gradients clipped at norm 5",
    metric="BLEU",
    higher=True,
    worst=0.0,
    trivial="word by word",
    margin=1.0,
    seeds=3,
    files=PAIRS,
    full=Size(
        steps=2800,
        batch=64,
        rate=2e-3,
        floor=5.0,
        data={"vocabulary": 4000, "steps": 28, "most": 30_000},
        model={"units": 256, "layer_count": 1, "dropout": 0.2},
    ),
    quick=Size(
        steps=260,
        batch=96,
        rate=0.005,
        floor=3.0,
        data={"vocabulary": 120, "steps": 20, "most": 2000},
        model={"units": 64, "layer_count": 1, "dropout": 0.0},
    ),
    real=Size(
        steps=300,
        batch=64,
        rate=0.01,
        floor=1.0,
        data={"vocabulary": 1000, "steps": 24, "most": 29000, "tested": 300},
        model={"units": 64, "layer_count": 1, "dropout": 0.0},
    ),
)

TRANSFORMER_NMT = Family(
    name="transformer_nmt",
    title="Transformer translation",
    task="transformer_nmt",
    model="transformer_nmt",
    optimizer="Adam, gradients clipped at norm 5",
    metric="BLEU",
    higher=True,
    worst=0.0,
    trivial="word by word",
    margin=1.0,
    seeds=3,
    files=PAIRS,
    full=Size(
        steps=3500,
        batch=64,
        rate=2e-3,
        floor=5.0,
        data={"vocabulary": 4000, "steps": 28, "most": 30_000},
        model={
            "width": 128,
            "heads": 4,
            "blocks": 3,
            "hidden": 512,
            "dropout": 0.1,
        },
    ),
    quick=Size(
        steps=300,
        batch=48,
        rate=4e-3,
        floor=60.0,
        data={"vocabulary": 300, "steps": 16, "most": 2000},
        model={"width": 48, "heads": 4, "blocks": 1, "hidden": 384, "dropout": 0.0},
        margin=1.6,  # 2 % of what phrases reach
    ),
    real=Size(
        steps=600,
        batch=48,
        rate=0.006,
        floor=12.0,
        data={"vocabulary": 1000, "steps": 24, "most": 29000, "tested": 300},
        model={"width": 48, "heads": 4, "blocks": 1, "hidden": 96, "dropout": 0.0},
    ),
)

PROGRESSIVE_GAN = Family(
    name="progressive_gan",
    title="Progressive GAN",
    task="progressive_gan",
    model="progressive_gan",
    optimizer="Adam without first moment",
    metric="SWD",
    higher=False,
    worst=1.0,
    trivial="independent pixels",
    margin=0.05,
    seeds=3,
    files=IMAGES,
    full=Size(
        steps=8000,
        batch=32,
        rate=0.003,
        floor=0.5,
        data={"side": 16},
        model={"channels": (64, 64, 32), "latent": 64},
    ),
    quick=Size(
        steps=450,
        batch=16,
        rate=0.005,
        floor=0.54,
        data={"side": 16},
        model={"channels": (32, 32, 16), "latent": 16},
    ),
    real=Size(
        steps=800,
        batch=16,
        rate=0.004,
        floor=0.5,
        data={"side": 8},
        model={"channels": (32, 32), "latent": 16},
    ),
    falls=False,
)

SMALL_BERT = {
    "steps": 16,
    "width": 48,
    "heads": 4,
    "blocks": 1,
    "dropout": 0.0,
    "scale": 0.15,
}

BERT = Family(
    name="bert",
    title="BERT, masked language model",
    task="bert",
    model="bert",
    optimizer="AdamW, gradients clipped at norm 1",
    metric="perplexity",
    higher=False,
    worst=10_000.0,
    trivial="Kneser-Ney trigram of what is seen",
    margin=0.3,
    seeds=3,
    files="ptb.train.txt and ptb.test.txt, or Multi30k's English side",
    full=Size(
        steps=6000,
        batch=32,
        rate=5e-4,
        floor=150.0,
        data={"most": 10_000},
        model={
            "steps": 64,
            "width": 128,
            "heads": 4,
            "blocks": 4,
            "dropout": 0.1,
        },
    ),
    quick=Size(
        steps=900,
        batch=128,
        rate=6e-3,
        floor=45.0,
        data={"most": 500},
        model=SMALL_BERT,
    ),
    real=Size(
        steps=800,
        batch=128,
        rate=6e-3,
        floor=100.0,
        data={"most": 2000},
        model=SMALL_BERT,
    ),
)

FCN = Family(
    name="fcn",
    title="FCN segmentation",
    task="segment",
    model="fcn",
    optimizer="momentum 0.9",
    metric="mean IoU",
    higher=True,
    worst=0.0,
    trivial="each place's most frequent class",
    margin=0.01,
    seeds=3,
    files=SCENES,
    full=Size(
        steps=4000,
        batch=8,
        rate=0.02,
        floor=0.1,
        data={"side": 128},
        model={"width": 16, "normalize": True},
    ),
    quick=Size(
        steps=300,
        batch=12,
        rate=0.015,
        floor=0.33,
        data={"side": 32, "classes": 2},
        model={"width": 4, "normalize": True},
    ),
    real=Size(
        steps=250,
        batch=12,
        rate=0.03,
        floor=0.35,
        data={"side": 64},
        model={"width": 4, "normalize": True},
    ),
)

ALL = (
    *(RESNET, RESNET50, SSD, FASTER_RCNN, LSTM_NMT, TRANSFORMER_NMT),
    *(PROGRESSIVE_GAN, WIDE_DEEP, LSTM_LM, BERT, FCN),
)
FAMILIES = {family.name: family for family in ALL}


# Seeds to judge where mixed pairs differ by more than twice what those in float32 do,
# which margins are frozen for: by family and 16-bit type. From the scatter of judged
# pairs, whose standard deviation was up to 2.9 times the noise of a calibration in
# float16, and up to 5.2 times in bfloat16.
SEEDS: Mapping[str, Mapping[str, int]] = {
    "lstm_nmt": {"float16": 14, "bfloat16": 24},
    "lstm_lm": {"float16": 8},
    "bert": {"float16": 6, "bfloat16": 24},
    "fcn": {"float16": 8, "bfloat16": 16},
    "wide_deep": {"float16": 8},
}


def seeds(family: str, dtype: str, frozen: int) -> int:
    """How many seeds a run judges if nobody says how many.

    Args:
      family: its name.
      dtype: the 16-bit type.
      frozen: as many as the margins ask for.
    """
    return max(frozen, SEEDS.get(family, {}).get(dtype, 0))


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """What the full size of a family is to reach.

    Attributes:
      data: name of the data.
      metric: at least, or of one where less is better at most; None for what the
        trivial model has, which float32 must beat in any case.
    """

    data: str
    metric: float | None = None


GOALS: dict[str, tuple[Goal, ...]] = {
    "resnet": (Goal("cifar10", 0.75),),
    "ssd": (Goal("bccd_160", 0.7), Goal("voc2007_160")),
    "faster_rcnn": (Goal("voc2007_160"),),
    "lstm_nmt": (Goal("multi30k", 25.0),),
    "transformer_nmt": (Goal("multi30k", 30.0),),
    "progressive_gan": (Goal("fashion_mnist", 0.15),),
    "lstm_lm": (Goal("multi30k_en"),),
}
