"""A job that kills itself: `killed_job.py KIND STEP`, STEP over all epochs, or -1.

Run by test_weight_files.py. Each step prints what the loss scale has come to as one
line of JSON. `fit` knows nothing of the plugin but for that.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

STEP = tf.Variable(0)
X = np.ones([32, 4], "float32")


def done(weights):
    STEP.assign_add(1)
    import amp  # to look only

    (scaler,) = amp.loss_scaling.current().states
    fields = ("scale", "good_steps", "skipped_steps")
    found = [getattr(scaler, field).numpy().tolist() for field in fields]
    total = sum(float(tf.reduce_sum(w)) for w in weights)
    print(json.dumps([int(STEP), *found, total]), flush=True)
    if int(STEP) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)


def fit():
    layers = [keras.Input([4]), keras.layers.Dense(1, kernel_initializer="ones")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(2.0**-6), "mse")
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: STEP.assign(4 * epoch),
        on_train_batch_end=lambda batch, logs: done(model.weights),
    )
    callbacks = [keras.callbacks.BackupAndRestore("backup"), watch]
    model.fit(X, X[:, :1], batch_size=8, epochs=5, verbose=0, callbacks=callbacks)


def loop():
    import amp

    weights = tf.Variable(tf.ones([4, 1]))
    optimizer = keras.optimizers.Adam(2.0**-6)
    optimizer.build([weights])
    scalers = amp.loss_scaling.current()
    checkpoint = tf.train.Checkpoint(
        weights=weights, optimizer=optimizer, step=STEP, loss_scale=scalers
    )
    manager = tf.train.CheckpointManager(checkpoint, "checkpoints", 1)
    manager.restore_or_initialize()

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(X[:8], weights) - X[:8, :1]))
        gradient = tape.gradient(loss, weights)
        optimizer.apply_gradients([(gradient, weights)])

    while int(STEP) < 20:
        train()
        done([weights])
        if int(STEP) % 4 == 0:
            manager.save()


if __name__ == "__main__":
    {"fit": fit, "loop": loop}[sys.argv[1]]()
