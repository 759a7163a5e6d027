"""What rewriting costs is told of both ways that there are, by phase."""

from __future__ import annotations

import pytest

from benchmarks import rewrite_cost

PHASES = {"read", "fingerprint", "analyze", "price", "decide", "apply", "write"}


def test_both_ways_and_every_phase_have_a_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rewrite_cost.main(["--step", "--sizes", "100", "--rounds", "1", "--phases"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    whole = {
        row[0]: float(row[2]) for row in rows if row[0] in ("function", "GraphDef")
    }
    phases = {" ".join(row[:-1]): float(row[-1]) for row in rows if row[0] not in whole}
    assert set(phases) >= PHASES
    assert whole["function"] >= sum(phases[name] for name in PHASES) > 0.0
    assert whole["GraphDef"] > 0.0
