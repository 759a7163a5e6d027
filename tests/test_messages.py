"""What the user is told is told once, where the program wants it, and never raises."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable

import pytest

from amp import messages

# What may have started the tests; execnet is named so in the processes of xdist.
_RUNNERS = {"__main__", "runpy", "execnet", "xdist", "__channelexec__"}


def test_a_warning_without_a_line_of_the_program_names_what_was_started(monkeypatch):
    ours = frozenset({__name__.partition(".")[0], "_pytest", "pytest", "pluggy"})
    known = messages._NOT_THE_PROGRAM | ours | _RUNNERS
    monkeypatch.setattr(messages, "_NOT_THE_PROGRAM", known)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.warns(UserWarning, match="amp: the end") as told:
        messages.warn("the end", UserWarning)
    assert (told[0].filename, told[0].lineno) == ("train.py", 0)


def test_a_note_goes_to_stderr_once_and_is_no_warning(capsys, caplog):
    for _ in range(2):
        messages.note("measuring takes %d s", 3)
    assert capsys.readouterr().err == "amp: measuring takes 3 s\n"
    assert not caplog.records


@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_a_program_that_sets_levels_decides_on_notes(level, capsys, caplog):
    with caplog.at_level(level, "amp"):
        messages.note("measuring takes long")
    assert not capsys.readouterr().err
    shown = [(r.levelno, r.getMessage()) for r in caplog.records]
    assert shown == [(20, "amp: measuring takes long")] * (level == logging.INFO)


@pytest.mark.parametrize(
    ("level", "off", "silenced"),
    [
        (logging.NOTSET, False, False),
        (logging.INFO, False, False),
        (logging.WARNING, False, True),
        (logging.NOTSET, True, True),
    ],
)
def test_news_is_silenced_by_a_level_above_info_or_by_turning_the_logger_off(
    level, off, silenced, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("amp"), "disabled", off)
    with caplog.at_level(level, "amp"):
        assert messages.silenced() == silenced


@pytest.mark.parametrize(
    "once", [messages.log_once, messages.warn_once, messages.to_stderr_once]
)
def test_what_is_said_once_is_said_again_once_it_is_forgotten(
    once: Callable[[str], None], monkeypatch
):
    said: list[str] = []
    way = once.__name__.removesuffix("_once")
    monkeypatch.setattr(messages, way, lambda *text: said.append(text[-1]))
    for _ in range(2):
        once("no disk")
    once("no room")
    assert said == ["no disk", "no room"]
    messages.forget()
    once("no disk")
    assert said[2:] == ["no disk"]


def test_a_warning_that_the_program_makes_an_error_is_logged(caplog, monkeypatch):
    # Not by the logger in which a fixture of all tests looks for such warnings.
    monkeypatch.setattr(messages, "_LOG", logging.getLogger("another"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        messages.warn("it runs as it was")
    assert caplog.messages == ["amp: it runs as it was"]
    assert caplog.records[0].amp_unraised
