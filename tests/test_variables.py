"""Every variable that the package reads is known, and no other."""

from __future__ import annotations

import pathlib
import re

import pytest

import _tf_amp_start
from amp import variables
from amp.policy import WORDS

ROOT = pathlib.Path(__file__).parents[1]


def test_what_the_code_names_is_what_the_table_knows():
    code = "\n".join(path.read_text() for path in ROOT.glob("amp/**/*.py"))
    named = set(re.findall(r"AMP_[A-Z_]+[A-Z]", code))
    fields = set(variables.known()) - set(variables.OTHERS)
    assert named - fields == set(variables.OTHERS)


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), (" Yes ", True), ("OFF", False), ("maybe", None)]
)
def test_a_switch_is_on_or_off_or_says_neither(value, on):
    assert variables.switch({"AMP_ENABLE": value}) is on
    assert variables.switch({"AMP_STRICT": value}, "AMP_STRICT") is on
    assert variables.switch({}) is False


def test_what_starts_before_the_package_knows_the_same_words():
    found = dict.fromkeys(_tf_amp_start._ON, True)
    assert found | dict.fromkeys(_tf_amp_start._OFF, False) == WORDS


def test_a_misspelt_variable_is_answered_with_the_one_that_was_meant():
    meant = {
        "AMP_CACHE": "AMP_CACHE_DIR",
        "AMP_COLOUR": None,
        "AMP_DTPYE": "AMP_DTYPE",
        "AMP_ENBALE": "AMP_ENABLE",
        "AMP_LOG": None,
        "AMP_LOSSSCALE": "AMP_LOSS_SCALE",
        "amp_keep": "AMP_KEEP",
    }
    assert variables.unknown(["PATH", "AMP_DTYPE", "TMP_AMP_X", *meant]) == meant


def test_the_complaint_is_one_line_and_silent_where_all_is_known():
    assert variables.complaint(["AMP_DTYPE", "PATH"]) == ""
    assert variables.complaint(["AMP_DTPYE"]) == (
        "AMP_DTPYE (did you mean AMP_DTYPE?) is no variable of this package and "
        "changes nothing"
    )
    told = variables.complaint(["AMP_DTPYE", "AMP_COLOUR"])
    assert told == (
        "AMP_COLOUR, AMP_DTPYE (did you mean AMP_DTYPE?) are no variables of this "
        "package and change nothing"
    )
