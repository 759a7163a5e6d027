"""Margins follow from pairs that nobody judges, and hold while nothing changes."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib

import pytest
from convergence_runs import pairs

from convergence import audit, equivalence, margins
from convergence.errors import ResultError
from convergence.families import RESNET


def test_calm_pairs_give_a_quarter_of_the_target() -> None:
    entry = margins.made(RESNET, RESNET.quick, pairs(1e-5))
    assert entry["margin"] == {"loss": margins.LOSS / 4, "metric": RESNET.margin / 4}
    assert entry["seeds"] == RESNET.seeds
    assert min(entry["power"].values()) >= equivalence.SURE


def test_a_size_on_other_data_has_a_target_of_its_own() -> None:
    letters = dataclasses.replace(RESNET.quick, margin=RESNET.margin / 8)
    entry = margins.made(RESNET, letters, pairs(1e-5))
    assert entry["target"]["metric"] == RESNET.margin / 8
    assert entry["margin"]["metric"] == RESNET.margin / 32


def test_noisy_pairs_ask_for_more_seeds_and_never_for_more_margin() -> None:
    entry = margins.made(RESNET, RESNET.quick, pairs(0.01))
    assert RESNET.seeds < entry["seeds"] <= margins.MOST_SEEDS
    assert entry["margin"]["metric"] <= RESNET.margin
    noise = [-0.01, 0.01, -0.01, 0.01, -0.01]
    bound = equivalence.upper_deviation([-n for n in noise])
    assert entry["deviation"]["metric"] == pytest.approx(bound)
    hopeless = margins.made(RESNET, RESNET.quick, pairs(0.5))
    assert hopeless["seeds"] == RESNET.seeds  # more would not decide it
    assert hopeless["margin"] == hopeless["target"]
    assert max(hopeless["power"].values()) < 0.9


def test_a_margin_is_for_pairs_of_twice_the_noise() -> None:
    """Sixteen bits round in every step, `perturbed` once."""
    entry = margins.made(RESNET, RESNET.quick, pairs(0.001))
    noise = margins.MIXED * entry["deviation"]["metric"]
    needed = equivalence.needed_margin(noise, entry["seeds"])
    assert RESNET.margin / 4 < needed < RESNET.margin
    assert entry["margin"]["metric"] == pytest.approx(needed)


def test_seeds_that_margins_may_come_of_are_not_judged() -> None:
    assert margins.judged_from(None) == margins.JUDGED
    assert margins.judged_from(1000) == 1000
    with pytest.raises(ResultError, match="104"):
        margins.judged_from(104)


def test_a_loss_that_does_not_fall_has_no_margin_and_asks_for_no_seeds() -> None:
    game = dataclasses.replace(RESNET, falls=False)
    noisy = [
        ({**a, "ends": [2.0 + 0.02 * (-1) ** i]}, b)
        for i, (a, b) in enumerate(pairs(0.0))
    ]
    entry = margins.made(game, game.quick, noisy)
    assert entry["margin"] == {"metric": RESNET.margin / 4}
    assert set(entry["power"]) == {"metric"}
    assert entry["seeds"] == RESNET.seeds
    assert margins.made(RESNET, RESNET.quick, noisy)["seeds"] > RESNET.seeds


def test_losses_are_compared_by_their_logarithm() -> None:
    assert margins.loss_difference(2.2, 2.0, None) == pytest.approx(math.log(1.1))
    assert margins.loss_difference(-0.4, -0.5, 0.5) == pytest.approx(0.2)
    assert margins.loss_difference(-0.4, 2.0, None) is None
    assert margins.loss_difference(None, 2.0, None) is None
    below = [({**a, "ends": [-1.0]}, {**b, "ends": [-1.1]}) for a, b in pairs(0.0)]
    entry = margins.made(RESNET, RESNET.quick, below)
    assert entry["scale"] == pytest.approx(1.05)
    assert entry["pairs"]["loss"] == pytest.approx([-0.1 / 1.05] * 5)


def test_too_few_pairs_and_pairs_that_diverge_are_refused() -> None:
    with pytest.raises(ResultError, match="2 pairs"):
        margins.made(RESNET, RESNET.quick, pairs(0.01, seeds=2))
    (first, *others) = pairs(0.01)
    broken = [(first[0], {**first[1], "ends": [None]}), *others]
    with pytest.raises(ResultError, match="1 runs without a finite loss"):
        margins.made(RESNET, RESNET.quick, broken)


def test_what_is_not_frozen_or_was_changed_is_refused(tmp_path: pathlib.Path) -> None:
    file, name = tmp_path / "margins.json", "resnet-digits-quick"
    with pytest.raises(ResultError, match="no margins are frozen") as e:
        margins.frozen(name, RESNET, RESNET.quick, file)
    assert "python -m convergence calibrate" in str(e.value)
    entry = margins.made(RESNET, RESNET.quick, pairs(1e-4))
    margins.freeze(name, entry, file)
    margins.freeze("another", entry, file)
    assert margins.frozen(name, RESNET, RESNET.quick, file) == entry
    longer = dataclasses.replace(RESNET.quick, steps=121)
    with pytest.raises(ResultError, match="another row"):
        margins.frozen(name, RESNET, longer, file)
    wide = json.loads(file.read_text())
    wide[name]["margin"]["loss"] = 0.6
    file.write_text(json.dumps(wide))
    with pytest.raises(ResultError, match="changed by hand"):
        margins.frozen(name, RESNET, RESNET.quick, file)
    file.write_text("[]")
    with pytest.raises(ResultError, match="no margins"):
        margins.read(file)


def test_margins_of_another_rule_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = margins.made(RESNET, RESNET.quick, pairs(1e-4))
    assert margins.fault(entry, RESNET, RESNET.quick) == ""
    monkeypatch.setattr(audit, "rule", lambda: "another")
    assert "another rule" in margins.fault(entry, RESNET, RESNET.quick)
