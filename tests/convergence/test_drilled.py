"""What drills find is refused, and without today's drills a family is undecided."""

from __future__ import annotations

from convergence_runs import made_up

from convergence import drilled, judge
from convergence.families import FAMILIES


def test_what_a_drill_finds_is_refused() -> None:
    result = made_up()
    result["drills"]["dynamic"]["faults"] = ["one", "two"]
    judged = judge.judged(result)
    assert judged.reasons == ("dynamic: drill: one (and 1 more)",)


def test_without_its_drills_a_family_is_undecided() -> None:
    result = made_up()
    del result["drills"]["constant"]
    judged = judge.judged(result)
    assert (judged.word, judged.undecided) == ("undecided", ("constant: not drilled",))


def test_drills_of_another_form_leave_a_family_undecided() -> None:
    """They may not have looked for what today's drills find."""
    result = made_up()
    result["drills"]["dynamic"] = result["drills"]["dynamic"] | {"by": "earlier"}
    judged = judge.judged(result)
    told = "dynamic: drilled by others than today's drills"
    assert (judged.word, judged.undecided) == ("undecided", (told,))


def test_earlier_drills_speak_of_what_they_asked_for() -> None:
    result, (by, lack) = made_up(), next(iter(drilled.EARLIER.items()))
    task = FAMILIES[result["family"]].task
    for drill in result["drills"].values():
        drill |= {"by": by, "code": drilled.code(task, by)}
    assert judge.judged(result).word == "passes"
    said = f"Drills of constant, dynamic (which did not ask for {lack}) find nothing"
    assert drilled.told(result) == said


def test_drills_of_an_earlier_package_are_named_so() -> None:
    """Emulation that rounds nothing changes no plan; drills of before do not speak."""
    result = made_up()
    result["drills"]["dynamic"]["code"] = "earlier"
    said = drilled.told(result)
    assert said == "Drills of constant, dynamic (of an earlier package) find nothing"


def test_only_trusted_drills_are_told() -> None:
    result = made_up()
    assert drilled.told(result) == "Drills of constant, dynamic find nothing"
    result["drills"]["constant"]["by"] = "nobody"
    assert drilled.told(result) == "Drills of dynamic find nothing"
    result["drills"]["dynamic"]["faults"] = ["one"]
    assert drilled.told(result) == "Drills of dynamic find faults"
    del result["drills"]
    assert drilled.told(result) == "Not drilled"


def test_results_from_before_there_were_drills_are_undecided_until_drilled() -> None:
    result = made_up()
    del result["drills"]
    assert judge.judged(result).word == "undecided"
