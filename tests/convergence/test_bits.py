"""`bits`: what 16 bits hold, of enough values to say so."""

from __future__ import annotations

import numpy as np
import pytest

from convergence import bits


def test_few_values_or_other_types_are_not_judged() -> None:
    whole = np.arange(1, bits.FEW + 1, dtype=np.float32)
    assert bits.in_16_bits(whole)
    assert not bits.in_16_bits(whole[1:])
    assert not bits.in_16_bits(np.repeat(whole[1:], 2))
    assert not bits.in_16_bits(whole.astype(np.int32))
    assert not bits.in_16_bits(np.append(whole, np.float32(1 / 3)))
    assert bits.in_16_bits(np.append(whole, np.zeros(9, np.float32)))
    assert bits.in_16_bits(whole * np.float32(2.0**100))  # bfloat16 holds these


def test_a_share_is_enough_where_there_are_many() -> None:
    held = np.arange(1, bits.MANY + 1, dtype=np.float32)
    others = np.random.default_rng(0).random(bits.MANY // 4, np.float32)
    assert not bits.in_16_bits(np.append(held, others))
    assert bits.in_16_bits(np.append(held, others), share=0.75)
    few = np.append(held[: bits.FEW], others[:1])
    assert not bits.in_16_bits(few, share=0.75)


@pytest.mark.parametrize("dtype", bits.DIGITS)
def test_what_is_computed_back_is_near_to_what_was_rounded(dtype: str) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal(100).astype(np.float32)
    coarse = np.round(values * 64) / 64 if dtype == "bfloat16" else values
    coarse = coarse[np.abs(coarse) < 2].astype(np.float16).astype(np.float32)
    scale = np.float32(1 / 3)
    assert bits.near_16_bits(coarse * scale / scale, dtypes=[dtype])
    assert not bits.near_16_bits(values * scale / scale, dtypes=[dtype])
    assert not bits.near_16_bits(coarse[: bits.FEW - 1], dtypes=[dtype])


def test_one_value_in_eighty_is_near_to_float16_by_chance() -> None:
    values = np.random.default_rng(0).uniform(1, 2, 20_000)
    near = [bits.near_16_bits(values[i : i + 1], few=1) for i in range(len(values))]
    assert 1 / 160 < np.mean(near) < 1 / 40


def test_a_factor_is_told_apart_from_what_turns_a_gradient() -> None:
    random = np.random.default_rng(0)
    some = [random.standard_normal(1000).astype(np.float32) for _ in range(2)]
    turned = [x + 0.01 * random.standard_normal(1000).astype(np.float32) for x in some]
    factor, rest = bits.times([1.5 * x for x in turned], some)
    assert factor == pytest.approx(1.5, abs=1.5 * 0.01)  # the noise's share along it
    assert rest == pytest.approx(0.015, rel=0.1)
    assert bits.times([np.ones(2)], [np.zeros(2)]) == (1.0, 0.0)


def test_arrays_are_apart_where_most_values_that_are_not_0_differ() -> None:
    one, zeros = np.arange(1.0, 9.0), np.zeros(100)
    other = np.where(np.arange(8) < 4, one, -one)
    assert not bits.apart([one, zeros], [other, zeros])
    other[0] = 9.0
    assert bits.apart([one, zeros], [other, zeros])
