"""Who gets 16 bits on the wire; what they do to sums is tested in test_replicas.py."""

from __future__ import annotations

import pytest
import tensorflow as tf

import amp
from amp.integration.distributed import wire

ON = {"dtype": "bfloat16", "emulate": True}


@pytest.mark.parametrize("on", [False, True])
def test_without_several_hosts_an_optimizers_own_reduction_is_all_there_is(on):
    pairs = [(tf.ones([65536]), tf.Variable(tf.zeros([65536]))), (None, None)]
    seen = []

    def original(self, grads_and_vars):
        seen.append(list(grads_and_vars))
        return seen[-1]

    with amp.mixed_precision_scope(wire=on, **ON):
        assert wire._carried(original)(None, iter(pairs)) == pairs
    assert seen == [pairs]


def test_slices_other_types_and_small_tensors_stay_as_they_are(monkeypatch):
    class Two:
        num_replicas_in_sync = 2

    monkeypatch.setattr(tf.distribute, "get_strategy", Two)
    large, small = tf.Variable(tf.zeros([65536])), tf.Variable(tf.zeros([16]))
    slices = tf.IndexedSlices(tf.ones([1]), tf.constant([0]), tf.constant([65536]))
    pairs = [
        (None, large),
        (tf.ones([65536]), large),
        (tf.ones([16]), small),
        (slices, large),
        (tf.ones([65536], tf.float64), large),
    ]
    assert wire._chosen(pairs) == {1}
