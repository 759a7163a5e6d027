"""Wide & Deep on a table; area under the ROC curve.

Categories, numbers and labels come from the table as they are.
"""

from __future__ import annotations

from pathlib import Path

import keras

from convergence import metrics, task
from convergence.data import table
from convergence.families import Size
from models import wide_deep


def load(size: Size, directory: Path | None) -> table.Table:
    return table.load(directory, **size.data)


def make(data: table.Table, size: Size) -> task.Task:
    train, test = data.train, data.test
    fields, numbers = train.ids.shape[1], train.numbers.shape[1]
    sizes = {"rows": data.rows, "fields": fields, "numbers": numbers, **size.model}
    model = wide_deep.build(**sizes)
    infer = task.inference(model)
    optimizer = keras.optimizers.Adagrad(task.cosine(size.rate, size.steps))

    def batch(seed: int, step: int) -> task.Batch:
        chosen = task.rows(seed, step, batch=size.batch, count=len(train))
        return (train.ids[chosen], train.numbers[chosen]), train.labels[chosen]

    def evaluate() -> float:
        logits = task.outputs(infer, (test.ids, test.numbers), 256)
        return metrics.auc(test.labels, logits)

    return task.supervised(model, wide_deep.LOSS(), optimizer, batch, evaluate)
