"""Running families: every arm with every seed, results after each run.

The loop of one run is in `training`; what is printed is `__main__`'s matter, which
passes in whom to tell.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import amp
from convergence import (
    again,
    arms,
    audit,
    drilling,
    families,
    goals,
    margins,
    results,
    settings,
)
from convergence.arms import Arm
from convergence.failures import naming
from convergence.families import Family, Size
from convergence.results import Subject
from convergence.task import Task, mean
from convergence.training import Spec, Trainer

CALIBRATIONS = 5  # pairs
CONTROL_SEEDS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How families are run.

    Attributes:
      quick: quick sizes.
      data: directory of real data; None for the embedded data.
      dtype: "float16" or "bfloat16".
      emulate: round in float32; done anyway where the device lacks the type.
      seeds: how many; None for what the margins were frozen for, or the goal, and more
        where `families.SEEDS` says so.
      first_seed: of those that are judged; None for `margins.JUDGED`.
      resume: go on with earlier results and checkpoints.
      any_commit: also with those of another commit.
      out: directory of results.
      frozen: file of margins.
    """

    quick: bool = False
    data: Path | None = None
    dtype: str = "float16"
    emulate: bool = False
    seeds: int | None = None
    first_seed: int | None = None
    resume: bool = False
    any_commit: bool = False
    out: Path = results.DIRECTORY
    frozen: Path = margins.FILE

    def size(self, family: Family) -> Size:
        return family.size(quick=self.quick, real=self.data is not None)


# Told the arm, the seed, the steps there are, and the steps taken.
Tell = Callable[[str, int, int, int], None]


def emulated(options: Options) -> bool:
    """Whether values are rounded instead of computed in 16 bits."""
    return options.emulate or options.dtype not in amp.device().native


def run(family: Family, options: Options, tell: Tell) -> dict[str, Any]:
    """Runs what is missing of a family in every setting, and returns its results.

    Raises:
      DataError: the data cannot be read.
      ResultError: no margins are frozen for it, or earlier results cannot be gone on
        with.
    """
    runs = _Runs(family, options, tell)
    return runs.judged(arms.compared(), runs.frozen())


def reach(family: Family, options: Options, tell: Tell) -> dict[str, Any]:
    """Trains a family towards its goal, as `run` does under margins.

    Raises:
      DataError: the data cannot be read.
      ResultError: it has no goal, or earlier results cannot be gone on with.
    """
    runs = _Runs(family, options, tell)
    return runs.judged(arms.once(), runs.goal())


def control(family: Family, options: Options, tell: Tell) -> dict[str, Any]:
    """Runs the negative controls of a family, as `run` does its settings."""
    if options.seeds is None:
        options = dataclasses.replace(options, seeds=CONTROL_SEEDS)
    runs = _Runs(family, options, tell, controls=True)
    return runs.judged(arms.controlled(), runs.frozen())


def calibrate(family: Family, options: Options, tell: Tell) -> dict[str, Any]:
    """Trains the pairs from which margins are made.

    Returns:
      "key", "family" and "entry", for `margins.freeze`; "entry" is None if a valid one
      is frozen and `resume` is asked for.
    """
    return _Runs(family, options, tell).calibrated()


class _Runs:
    """The runs of one family.

    Args:
      family, options, tell: as of `run`.
      controls: whether faults are planted.
    """

    def __init__(
        self, family: Family, options: Options, tell: Tell, *, controls: bool = False
    ) -> None:
        self._family, self._options, self._tell = family, options, tell
        self._size = options.size(family)
        self._module = importlib.import_module(f"convergence.tasks.{family.task}")
        self._data = self._module.load(self._size, options.data)
        self._subject = Subject(
            family=family,
            size=self._size,
            data=self._data.name,
            dtype=options.dtype,
            emulated=emulated(options),
            quick=options.quick,
            controls=controls,
        )
        self._first: dict[int, list[np.ndarray]] = {}
        self._commit = audit.commit()
        # A checkpoint is gone on with by the same code, row and machine only.
        told = [dataclasses.asdict(self._size), audit.code(family.task)]
        self._made_by = audit.of([*told, results.made_on()])

    def frozen(self) -> Mapping[str, Any]:
        """The margins to judge by."""
        held = self._options.frozen
        return margins.frozen(self._subject.key, self._family, self._size, held)

    def goal(self) -> Mapping[str, Any]:
        """The goal to judge by, in the place of margins."""
        return goals.entry(self._family.name, self._data.name)

    def judged(self, every: Sequence[Arm], entry: Mapping[str, Any]) -> dict[str, Any]:
        """Results of these arms, under margins or a goal."""
        options, subject = self._options, self._subject
        told = {arm.name: arm.told(subject.dtype, self._size.steps) for arm in every}
        result, path = self._begin(results.head(subject, told, entry))
        first = margins.judged_from(options.first_seed)
        count = options.seeds or self._seeds(entry)
        seeds = range(first, first + count)
        result["seeds"] = len({run["seed"] for run in result["runs"]}.union(seeds))
        if subject.controls:
            self._borrow(result, seeds)
        elif "trivial" not in result:
            value = mean(self._module.trivial(self._data, self._size))
            result["trivial"] = {"name": self._family.trivial, "value": value}
        results.write(path, result)
        self._train(result, path, every, seeds)
        self._drill(result, path, every, first)
        return result

    def _seeds(self, entry: Mapping[str, Any]) -> int:
        """How many seeds are judged if nobody says how many."""
        asked: int = entry["seeds"]
        if "goal" in entry:
            return asked
        return families.seeds(self._family.name, self._options.dtype, asked)

    def _drill(
        self, result: dict[str, Any], path: Path, every: Sequence[Arm], seed: int
    ) -> None:
        """Adds the drills that are missing, or of other code, of arms with a scale."""
        task = self._family.task
        wanted = drilling.outdated(result, task)
        for arm in every:
            if arm.name in wanted:
                policy, rule = self._policy(arm), drilling.rule(result, arm.name)
                drill = drilling.Drill(arm, policy, rule, task, self._make)
                with naming(f"{self._family.name}, drill of {arm.name}, seed {seed}"):
                    result["drills"][arm.name] = drill.found(seed)
                results.write(path, result)

    def _make(self) -> Task:
        made: Task = self._module.make(self._data, self._size)
        return made

    def _policy(self, arm: Arm) -> amp.Policy | None:
        subject, steps = self._subject, self._size.steps
        return arm.policy(dtype=subject.dtype, emulate=subject.emulated, steps=steps)

    def _borrow(self, result: dict[str, Any], seeds: Sequence[int]) -> None:
        """Takes sound runs from the settings' results, if all else is alike."""
        path = self._options.out / results.file_name(result | {"controls": False})
        if not path.exists():
            return
        held = results.read(path)
        alike = ("protocol", "size", "rule", "code", "commit", "machine")
        if any(held.get(key) != result[key] for key in alike):
            return
        has = {(run["setting"], run["seed"]) for run in result["runs"]}
        result["runs"] += [
            run
            for run in held["runs"]
            if run["setting"] in result["settings"]
            and run["seed"] in seeds
            and (run["setting"], run["seed"]) not in has
        ]

    def calibrated(self) -> dict[str, Any]:
        """The margins that follow from the calibration seeds."""
        options, subject = self._options, self._subject
        held = margins.read(options.frozen).get(subject.key)
        told = {"key": subject.key, "family": self._family.name, "entry": None}
        if options.resume and not margins.fault(held, self._family, self._size):
            return told
        if not options.resume:
            for old in options.out.glob(f".checkpoints/calibration-{subject.key}-*"):
                old.unlink()
        first = margins.CALIBRATED
        seeds = range(first, first + (options.seeds or CALIBRATIONS))
        result: dict[str, Any] = {"runs": []}
        every = arms.calibrated()
        self._train(result, None, every, seeds)
        runs = {(run["setting"], run["seed"]): run for run in result["runs"]}
        pairs = [tuple(runs[arm.name, seed] for arm in every) for seed in seeds]
        return told | {"entry": margins.made(self._family, self._size, pairs)}

    def _begin(self, fresh: dict[str, Any]) -> tuple[dict[str, Any], Path]:
        """Results to add to, and their file; without `resume` none are gone on with."""
        options = self._options
        path = options.out / results.file_name(fresh)
        if options.resume:
            return results.go_on(path, fresh, any_commit=options.any_commit), path
        for old in path.parent.glob(f".checkpoints/{path.stem}-*"):
            old.unlink()
        return fresh, path

    def _train(
        self,
        result: dict[str, Any],
        path: Path | None,
        every: Sequence[Arm],
        seeds: Sequence[int],
    ) -> None:
        """Adds the runs that are missing; writes the file, if any, after each."""
        for arm, missing in _missing(result["runs"], every, seeds):
            where = f"{self._family.name}, {arm.name}, seed"
            with naming(f"{where} {missing[0]}"):
                trainer = Trainer(self._make(), self._policy(arm), arm.planted)
            for seed in missing:
                spec = self._spec(arm, seed, path, drawn=seed == seeds[0])
                advance = functools.partial(
                    self._tell, arm.name, seed, self._size.steps
                )
                with naming(f"{where} {seed}"):
                    told, plan = trainer.run(spec, advance), trainer.plan()
                own = {"setting": arm.name, "seed": seed, "plan": plan.digest}
                own |= {"nodes": [plan.low, plan.every], "commit": self._commit}
                result["runs"].append({**own, **told})
                if path is not None:
                    results.write(path, result)
                spec.place.unlink(missing_ok=True)
            del trainer
            again.forget()

    def _spec(self, arm: Arm, seed: int, path: Path | None, *, drawn: bool) -> Spec:
        folder = (path or self._options.out / "x").parent / ".checkpoints"
        stem = path.stem if path else f"calibration-{self._subject.key}"
        first = self._weights(seed)
        if arm.setting == settings.PERTURBED:
            first = settings.nudged(first, (seed,), settings.NUDGE)
        return Spec(
            seed=seed,
            steps=self._size.steps,
            first=first,
            worst=self._family.worst,
            probed=arm.setting in settings.MIXED,
            drawn=drawn and path is not None and arm.setting != settings.PERTURBED,
            place=folder / f"{stem}-{arm.name}-{seed}-{self._made_by}.npz",
        )

    def _weights(self, seed: int) -> list[np.ndarray]:
        """The first values of the model's variables, the same in all arms."""
        if seed not in self._first:
            keras.utils.set_random_seed(seed)
            model = self._make().model
            self._first[seed] = [variable.numpy() for variable in model.variables]
        return self._first[seed]


def _missing(
    runs: Sequence[Mapping[str, Any]], every: Sequence[Arm], seeds: Sequence[int]
) -> list[tuple[Arm, list[int]]]:
    """The arms that lack runs, each with the seeds that it lacks."""
    done = {(run["setting"], run["seed"]) for run in runs}
    lacking = (
        (arm, [seed for seed in seeds if (arm.name, seed) not in done]) for arm in every
    )
    return [(arm, missing) for arm, missing in lacking if missing]
