"""A reading is one line of the log, and what TensorBoard's plugins read."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from amp.callbacks import readings
from amp.callbacks.readings import Reading
from amp.loss_scaling.exponents import Underflow
from amp.loss_scaling.tally import Tally

FLOW = Underflow(zero=0.25, denormal=0.5, exponents=((-30, 2.0), (-20, 4.0), (0, 2.0)))
READING = Reading(
    step=200,
    scaler="net",
    scale=1024.0,
    skipped=3,
    since=Tally(100, {"a": 2, "b": 3}),
    dtype="float16",
    underflow={"a": FLOW},
)


def test_a_line_has_the_scale_the_skipped_steps_the_first_and_the_worst():
    assert str(READING) == (
        "step 200: loss scale 1024 (net); 3 updates skipped; gradients not finite in "
        "at least 3 of 100 calls, b first; a 25% zero and 50% denormal in float16"
    )


def test_calls_in_which_other_variables_overflowed_count_too():
    more = dataclasses.replace(READING, since=Tally(200, {"a": 184, "b": 19}))
    assert "in at least 184 of 200 calls, b first" in str(more)


def test_a_line_without_news_is_short():
    calm = dataclasses.replace(READING, since=Tally(100, {"a": 0}), underflow={})
    assert str(calm) == "step 200: loss scale 1024 (net); 3 updates skipped"


def written(path):
    found = {}
    for file in sorted(path.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found[value.tag] = (
                    value.metadata.plugin_data.plugin_name,
                    tf.make_ndarray(value.tensor),
                    event.step,
                )
    return found


def test_tensorboard_gets_scalars_histograms_a_picture_and_a_text(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default() as writer:
        readings.write(READING)
        writer.flush()
    found = written(tmp_path)
    assert found["amp/net/loss_scale"][:2] == ("scalars", np.float32(1024))
    assert found["amp/net/skipped_steps"][1] == 3
    assert found["amp/net/overflows/b"][1] == 3
    assert found["amp/net/underflow_to_zero/a"][1] == 0.25
    assert found["amp/net/underflow_denormal/a"][1] == 0.5
    kind, first, step = found["amp/net/first_gradient_not_finite"]
    assert (kind, first.tolist(), step) == ("text", [b"b"], 200)
    kind, bits, _ = found["amp/net/bits_above_underflow/a"]
    # float16's smallest normal number is 2**-14, which is where the axis has its 0.
    assert kind == "histograms"
    assert bits.tolist() == [[-16, -15, 2], [-6, -5, 4], [14, 15, 2]]
    kind, (width, height, png), _ = found["amp/net/exponents"]
    shape = tf.io.decode_png(png).shape
    assert (kind, [int(height), int(width), 3]) == ("images", shape)


def test_the_picture_has_a_red_line_at_the_smallest_normal_number():
    shown = readings.picture([FLOW, FLOW], "float16")
    red = np.where((shown == (220, 40, 40)).all(-1).all(0))[0]
    assert red.tolist() == [(-14 + 40) * 8 - 1]
