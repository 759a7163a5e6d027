"""German and English number and date phrases, as many as wanted.

Words come from `num2words` and Babel; no vocabulary is made here.
"""

from __future__ import annotations

import datetime

import numpy as np

FIRST_DAY = datetime.date(1900, 1, 1).toordinal()
LAST_DAY = datetime.date(2100, 1, 1).toordinal()


def phrases(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Returns German phrases and their English translations, all different.

    Numbers below a million, ordinals below a thousand, and dates of two centuries, as
    chance has it.

    Args:
      count: how many.
      seed: of the random numbers.
    """
    random = np.random.default_rng(seed)
    found: dict[str, str] = {}
    kinds = (_number, _ordinal, _date)
    while len(found) < count:
        german, english = kinds[random.integers(len(kinds))](random)
        found.setdefault(german, english)
    return list(found), list(found.values())


def _number(random: np.random.Generator) -> tuple[str, str]:
    # Every length is as likely: of numbers below 10^6, nine of ten have six digits.
    number = int(random.integers(10 ** random.integers(1, 7)))
    return _words(number, "cardinal")


def _ordinal(random: np.random.Generator) -> tuple[str, str]:
    return _words(int(random.integers(1, 1000)), "ordinal")


def _words(number: int, to: str) -> tuple[str, str]:
    from num2words import num2words

    german = num2words(number, lang="de", to=to)
    return german, num2words(number, lang="en", to=to).replace(",", "")


def _date(random: np.random.Generator) -> tuple[str, str]:
    from babel import dates

    day = datetime.date.fromordinal(int(random.integers(FIRST_DAY, LAST_DAY)))
    length = ("full", "long")[random.integers(2)]
    german, english = (dates.format_date(day, length, locale=c) for c in ("de", "en"))
    return german, english
