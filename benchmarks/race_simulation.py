"""How often a race errs, how many calls it takes and what it loses, in a simulation.

A program anyone can run: `PYTHONPATH=.:tests/support python
benchmarks/race_simulation.py [--races 100] [--noise quiet] [--step 0.1]`. The race and
its rules are the package's own; only the machine and its clock are not. No function of
TensorFlow is called. Of each field of entrants one takes the time of the column "at",
and all others 1, times `--step` seconds. Each noise has a line a field:

* wrong: the share of races whose winner is more than 2 % slower than the best;
* calls: the median number, and that which nine races in ten do not exceed;
* lost: the greatest share of the budget (2 % of 500 steps or 20 s) that a race lost.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from race_machine import Machine, winner

from amp.integration.racing import race_budget
from amp.integration.racing.race_log import FLOAT32

NAMES = ("cut", FLOAT32, "all", "products", "plain", "rewritten")
RATIOS = (1.0, 0.99, 0.97, 0.9, 0.5)
LENGTHS = (20, 100)
STALLS: dict[str, Any] = {"noise": 0.02, "stalls": 20.0}
NOISES: dict[str, dict[str, Any]] = {
    "quiet": {"noise": 0.02},
    "stalls": STALLS,
    "lengths": {**STALLS, "lengths": LENGTHS},
    "hidden lengths": {**STALLS, "lengths": LENGTHS, "hidden": True},
    "busy": {"noise": 0.1, "stalls": 20.0, "slow": 0.05},
}


def line(true: dict[str, float], races: int, traits: dict[str, Any]) -> str:
    """Races of one field of entrants, in figures."""
    calls, lost, wrong = [], [], 0
    best = min(true.values())
    for seed in range(races):
        machine = Machine(true, seed, **traits)
        wrong += best < 0.98 * true[winner(machine.race())]
        calls.append(machine.calls.total())
        lost.append(machine.lost / race_budget.allowed(best, 0))
    most = sorted(calls)[int(0.9 * races)]
    median = statistics.median(calls)
    return f"{wrong / races:6.1%} {median:6.0f} {most:6d} {max(lost):6.2f}"


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=100)
    parser.add_argument("--noise", choices=NOISES, nargs="*", default=list(NOISES))
    parser.add_argument("--step", type=float, default=0.1)
    parser.add_argument("--entrants", type=int, nargs="*", default=[2, 3, 4, 5, 6])
    parser.add_argument("--first", type=float, default=1.0)
    args = parser.parse_args()
    print(f"{'noise':16}{'entrants':>9}{'best':>9}{'at':>6}", end=" ")
    print(f"{'wrong':>6} {'calls':>6} {'90 %':>6} {'lost':>6}")
    for noise in args.noise:
        traits = {**NOISES[noise], "first": args.first}
        for count in args.entrants:
            for best in dict.fromkeys((*NAMES[:2], NAMES[count - 1])):
                for ratio in RATIOS if best == NAMES[0] else RATIOS[1:]:
                    true = dict.fromkeys(NAMES[:count], args.step)
                    true[best] *= ratio
                    head = f"{noise:16}{count:9d}{best:>9}{ratio:6.2f}"
                    print(head, line(true, args.races, traits), flush=True)


if __name__ == "__main__":
    main()
