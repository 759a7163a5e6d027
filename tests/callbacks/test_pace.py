"""Readings take at most 3 % of the time, however short the steps are."""

from __future__ import annotations

import itertools

import pytest

from amp.callbacks.pace import EVERY, TIMES, Pace

READING = 4.3e-3  # seconds


class Job:
    """A clock, and steps that take time by it.

    Args:
      every: as of `Pace`.
      first: seconds that the first readings take besides.
    """

    def __init__(self, every: int | None = None, first: tuple[float, ...] = ()) -> None:
        self.now = self.read = 0.0
        self.readings: list[int] = []
        self.pace = Pace(every, lambda: self.now)
        self._numbers, self._first = itertools.count(), list(first)

    def steps(self, count: int, seconds: float) -> None:
        for number in itertools.islice(self._numbers, count):
            self.now += seconds
            due = number % self.pace.every == 0
            if due:
                took = READING + (self._first.pop(0) if self._first else 0.0)
                self.now, self.read = self.now + took, self.read + took
                self.readings.append(number)
            self.pace.passed(read=due)


@pytest.mark.parametrize("step", [1e-5, 1e-4, 5e-4, 1e-3, 1.5e-3, 0.02])
def test_a_reading_takes_at_most_its_share_of_the_time_to_the_next(step: float) -> None:
    job = Job()
    job.steps(3 * EVERY, step)  # by the third reading the cost of one is known
    job.steps(2 * job.pace.every, step)
    count, every = len(job.readings), job.pace.every
    job.steps(10 * every, step)
    assert len(job.readings) - count == 10
    assert every * step >= TIMES * READING
    assert every == EVERY or every / 2 * step < TIMES * READING


def test_where_steps_are_long_every_hundredth_is_read() -> None:
    job = Job()
    job.steps(1001, 0.02)
    assert job.readings == list(range(0, 1001, EVERY))


def test_readings_come_more_often_again_when_steps_are_longer() -> None:
    job = Job()
    job.steps(1000, 1e-4)
    assert job.pace.every >= 10 * EVERY
    job.steps(3 * job.pace.every, 0.1)
    assert job.pace.every == EVERY


@pytest.mark.parametrize("first", [(9.0,), (0.0, 9.0), (0.0, 0.0, 9.0)])
def test_what_a_first_reading_takes_besides_does_not_stay(
    first: tuple[float, ...],
) -> None:
    """The function that is observed is traced in one of them."""
    job, usual = Job(first=first), Job()
    for each in (job, usual):
        each.steps(2000, 5e-4)
    assert job.readings == usual.readings


def test_time_between_two_trainings_is_no_step() -> None:
    job = Job()
    job.steps(2 * EVERY + 1, 5e-4)
    job.now += 1000.0
    job.pace.start()
    job.steps(6 * EVERY, 5e-4)
    assert job.readings[-1] == 8 * EVERY
    assert job.pace.every == 8 * EVERY  # 50 * 4.3 ms is the time of 430 steps


@pytest.mark.parametrize("every", [1, 7, 100])
def test_a_number_that_the_user_gave_stays(every: int) -> None:
    job = Job(every)
    job.steps(700, 1e-6)
    assert job.readings == list(range(0, 700, every))
