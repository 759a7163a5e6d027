"""Wide & Deep on a table; area under the ROC curve.

One gradient, two optimizers: the wide part's and the deep part's.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from convergence import metrics, task
from convergence.data import table
from convergence.families import Size
from models import wide_deep


def load(size: Size, directory: Path | None) -> table.Table:
    return table.load(directory, **size.data)


def trivial(data: table.Table, size: Size) -> float:
    """AUC of a logistic regression on categories and numbers, without crosses."""
    from sklearn import linear_model

    every = np.arange(data.rows)
    train, test = (
        np.concatenate(
            [(rows.ids[:, :, None] == every).any(axis=1), rows.numbers], axis=1
        )
        for rows in (data.train, data.test)
    )
    model = linear_model.LogisticRegression(max_iter=1000)
    model.fit(train, data.train.labels.ravel())
    return metrics.auc(data.test.labels, model.decision_function(test))


def make(data: table.Table, size: Size) -> task.Task:
    train, test = data.train, data.test
    fields, numbers = train.ids.shape[1], train.numbers.shape[1]
    sizes = {"rows": data.rows, "fields": fields, "numbers": numbers}
    model = wide_deep.build(**sizes, crosses=data.crosses, **size.model)
    infer = task.inference(model)
    wide = keras.optimizers.Ftrl(size.rate, l1_regularization_strength=1e-4)
    deep = keras.optimizers.Adagrad(task.cosine(size.rate, size.steps))
    updates = (  # the paper's, section 3.3
        (wide, wide_deep.wide_variables(model)),
        (deep, wide_deep.deep_variables(model)),
    )
    entropy = wide_deep.LOSS()

    def loss(batch: task.Batch) -> tf.Tensor:
        x, y = batch
        return entropy(y, model(x, training=True))

    def batch(seed: int, step: int) -> task.Batch:
        chosen = task.rows(seed, step, batch=size.batch, count=len(train))
        return (train.ids[chosen], train.numbers[chosen]), train.labels[chosen]

    def evaluate() -> float:
        logits = task.outputs(infer, (test.ids, test.numbers), 256)
        return metrics.auc(test.labels, logits)

    parts = (task.Part(loss, updates),)
    return task.Task(model, lambda stage: parts, batch, evaluate)
