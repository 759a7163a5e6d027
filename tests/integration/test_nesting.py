"""What is entered again is left as often; threads do not see each other."""

from __future__ import annotations

import threading

import pytest

from amp.integration.nesting import Nesting


def test_it_is_inside_until_the_outermost_is_left() -> None:
    nesting = Nesting()
    assert not nesting
    with nesting.inside():
        with nesting.inside():
            assert nesting
        assert nesting
    assert not nesting


def test_an_error_leaves_it() -> None:
    nesting = Nesting()
    with pytest.raises(KeyError), nesting.inside():
        raise KeyError
    assert not nesting


def test_ctrl_c_as_it_is_entered_leaves_it() -> None:
    class Interrupted(Nesting):
        def enter(self) -> None:
            super().enter()
            raise KeyboardInterrupt

    nesting = Interrupted()
    with pytest.raises(KeyboardInterrupt), nesting.inside():
        pass
    assert not nesting


def test_leaving_what_was_entered_before_is_not_counted() -> None:
    nesting = Nesting()
    nesting.leave()
    with nesting.inside():
        assert nesting


def test_each_thread_has_its_own() -> None:
    nesting, seen = Nesting(), list[bool]()
    with nesting.inside():
        thread = threading.Thread(target=lambda: seen.append(bool(nesting)))
        thread.start()
        thread.join()
    assert seen == [False]
