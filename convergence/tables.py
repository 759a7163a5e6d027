"""The tables of the report, as rows of text; the first row is the head.

Everything comes from results and their verdict; no Markdown and no HTML is known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from convergence import (
    comparison,
    goals,
    gradient_rule,
    judge,
    pictures,
    probe,
    trivial,
)
from convergence.comparison import Compared
from convergence.equivalence import DIFFERENT, EQUAL
from convergence.settings import CONSTANT, FLOAT32, MIXED, SETTINGS
from convergence.verdict import Row

Table = list[Sequence[str]]
Judged = Mapping[str, Any]
NONE = "–"

HEAD = (
    *("setting", "metric", "sd", "loss against float32", "margin"),
    *("metric against float32", "margin", "worst gradient or update", "limit"),
    *("grew, backed off", "skipped", "diverged", "16-bit nodes", ""),
)
LAYER_HEAD = (
    *("gradients of", "under 2^-24", "under 2^-14"),
    *("scaled: under 2^-24", "scaled: under 2^-14"),
)
LOST_HEAD = (
    *("gradient of", "unscaled: to 0", "to denormals"),
    *("dynamic: to 0", "to denormals"),
)
TIMES_HEAD = ("setting", "median of a run", "speed-up")
FINDS = ("finds loss", "finds metric", "of what is learned")
GOALS_HEAD = (
    *("family", "data", "type", "metric", "trivial", "wanted", "float32"),
    *("dynamic", "minutes", "verdict"),
)
NATIVE_HEAD = (
    *("family", "data", "setting", "pairs", "loss", "margin"),
    *("metric", "margin", ""),
)
MOST_ROWS = 12


def summary(found: Sequence[tuple[Judged, str]]) -> Table:
    """A line a family: the mean of each setting, what the rule finds, and the verdict.

    Args:
      found: results, and why they are not counted ("" if they are).
    """
    head = ("family", "data", "type", "metric", "trivial", *SETTINGS)
    rows: Table = [(*head, *FINDS, "verdict")]
    for result, stale in found:
        how = " emulated" if result["emulated"] else ""
        rows.append(
            (
                result["family"] + (", quick" if result["quick"] else ""),
                result["data"],
                result["dtype"] + how,
                result["rule"]["metric"],
                figure(result.get("trivial", {}).get("value")),
                *_means(result),
                *(_summed(result) if not stale else (NONE, NONE, NONE, "not counted")),
            )
        )
    return rows


def _means(result: Judged) -> list[str]:
    told = []
    for setting in SETTINGS:
        own = [r["metric"] for r in result["runs"] if r["setting"] == setting]
        told.append(figure(sum(own) / len(own)) if own else NONE)
    return told


def _summed(result: Judged) -> tuple[str, str, str, str]:
    judged = judge.judged(result)
    must = [row for row in judged.rows if row.must_pass]
    loss, metric = (
        _most([getattr(row, name) for row in must]) for name in ("loss", "metric")
    )
    word = judged.word if judged.passes else f"**{judged.word}**"
    percent = NONE if loss is None else _percent(loss, result)
    return percent, figure(metric, ".3g"), _of_learned(metric, result), word


def _of_learned(metric: float | None, result: Judged) -> str:
    """A difference of the metric, over what float32 is ahead of the trivial model."""
    known = result.get("trivial", {}).get("value")
    own = [r["metric"] for r in result["runs"] if r["setting"] == FLOAT32]
    if metric is None or known is None or not own:
        return NONE
    learned = abs(mean(own) - known)
    return f"{metric / learned:.0%}" if learned else NONE


def _most(compared: Sequence[Compared | None]) -> float | None:
    """The worsening that is found in each of several settings."""
    found = [None if each is None else each.found for each in compared]
    known = [value for value in found if value is not None]
    return max(known) if known and len(known) == len(found) else None


def _percent(value: float, result: Judged, form: str = ".2%") -> str:
    """A difference of the loss: of logarithms, or relative already."""
    relative = math.expm1(value) if result["rule"]["scale"] is None else value
    return format(relative, form)


def settings_table(result: Judged) -> Table:
    return [HEAD, *(_row(row, result) for row in judge.rows(result))]


def _row(row: Row, result: Judged) -> Sequence[str]:
    loss, metric, worst = row.loss, row.metric, row.worst
    return (
        row.setting,
        figure(row.mean),
        f"{row.deviation:.2g}",
        *_loss_cells(loss, result),
        *_metric_cells(metric),
        NONE if worst is None else f"{worst.error:.3g}, {worst.kind} {worst.variable}",
        NONE if worst is None else f"{worst.limit:.3g}",
        f"{row.moves[0]}, {row.moves[1]}" if worst is not None else NONE,
        str(row.skipped),
        str(row.diverged),
        f"{row.nodes[0]} of {row.nodes[1]}" if row.nodes[1] else NONE,
        _words(row),
    )


def _loss_cells(loss: Compared | None, result: Judged) -> tuple[str, str]:
    if loss is None:
        return NONE, NONE
    told = _between(loss, lambda x: _percent(x, result, "+.2%"))
    return told, f"±{_percent(loss.margin, result)}"


def _metric_cells(metric: Compared | None) -> tuple[str, str]:
    if metric is None:
        return NONE, NONE
    return _between(metric, lambda x: f"{x:+.3g}"), f"±{metric.margin:.3g}"


def _between(compared: Compared, text: Any) -> str:
    return f"{text(compared.mean)} ({text(compared.low)} … {text(compared.high)})"


def _words(row: Row) -> str:
    if row.outcome != EQUAL:
        return f"{row.outcome}: {'; '.join(row.reasons)}"
    return "" if row.metric is None else EQUAL


def trivial_model(result: Judged) -> str:
    """The trivial model's metric, and whether float32 is better than it."""
    if "trivial" not in result:
        return "no trivial model"
    word = "beats it" if trivial.beats(result) else "**does not beat it**"
    told = result["trivial"]
    return f"trivial model ({told['name']}) {figure(told['value'])}, float32 {word}"


def classes_table(result: Judged) -> Table:
    """The metric by class and setting, means over seeds; empty if it is of no class."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in result["runs"]:
        for name, value in run.get("classes", {}).items():
            found.setdefault(name, {}).setdefault(run["setting"], []).append(value)
    if not found:
        return []
    settings = list(dict.fromkeys(run["setting"] for run in result["runs"]))
    rows = [
        (name, *(figure(mean(each[s])) if s in each else NONE for s in settings))
        for name, each in found.items()
    ]
    return [(f"{result['rule']['metric']} of", *settings), *rows]


def goals_table(found: Sequence[Judged]) -> Table:
    """A line a full size: what was wanted, what came out, and how long it took."""
    rows: Table = [GOALS_HEAD]
    for result in found:
        judged = judge.judged(result)
        means = {row.setting: row.mean for row in judged.rows}
        minutes = [f"{run['seconds'] / 60:.0f}" for run in result["runs"]]
        rows.append(
            (
                result["family"],
                result["data"],
                result["dtype"] + (" emulated" if result["emulated"] else ""),
                result["rule"]["metric"],
                figure(result["trivial"]["value"]),
                figure(goals.wanted(result)),
                *(figure(means.get(setting)) for setting in (FLOAT32, "dynamic")),
                ", ".join(minutes),
                judged.word if judged.passes else f"**{judged.word}**",
            )
        )
    return rows


def controls_table(found: Sequence[Judged]) -> Table:
    """Which family found which fault, and by which clauses."""
    families = [result["family"] for result in found]
    names = dict.fromkeys(name for result in found for name in result["settings"])
    faults = [name for name in names if name not in SETTINGS]
    clauses = [
        {
            row.setting: [f.clause for f in row.findings if f.outcome == DIFFERENT]
            for row in judge.rows(result)
        }
        for result in found
    ]
    rows: Table = [("fault", *families)]
    for fault in faults:
        told = [", ".join(each.get(fault, [])) or "not found" for each in clauses]
        rows.append((fault, *told))
    return rows


def times_table(result: Judged) -> Table:
    """How long runs took, and float32's time over it by pairs; empty if emulated."""
    if result["emulated"]:
        return []
    runs: dict[str, dict[int, float]] = {}
    for run in result["runs"]:
        runs.setdefault(run["setting"], {})[run["seed"]] = run["seconds"]
    base = runs.get(FLOAT32, {})
    rows: Table = [TIMES_HEAD]
    for setting, own in runs.items():
        ratios = [base[seed] / own[seed] for seed in own if seed in base]
        told = f"{median(ratios):.2f}" if ratios else NONE
        rows.append((setting, f"{median(own.values()):.1f} s", told))
    return rows


def native_table(found: Sequence[Judged]) -> Table:
    """Native runs beside emulated ones of the same seeds; empty if none have both."""
    alike = ("family", "data", "dtype", "quick")
    emulated = {tuple(r[k] for k in alike): r for r in found if r["emulated"]}
    rows: Table = [NATIVE_HEAD]
    for native in found:
        other = emulated.get(tuple(native[k] for k in alike))
        if not native["emulated"] and other is not None:
            rows += [r for s in MIXED if (r := _native_row(native, other, s))]
    return rows if len(rows) > 1 else []


def _native_row(native: Judged, emulated: Judged, setting: str) -> Sequence[str]:
    """One setting's; empty where no seed was run both ways."""
    own, base = (
        {run["seed"]: run for run in result["runs"] if run["setting"] == setting}
        for result in (native, emulated)
    )
    pairs = [(own[seed], base[seed]) for seed in own if seed in base]
    if not pairs:
        return ()
    compared = comparison.compared(native["rule"], pairs)
    loss, metric = compared.get("loss"), compared.get("metric")
    outcomes = [each.outcome for each in (loss, metric) if each is not None]
    return (
        native["family"],
        native["data"],
        setting,
        str(len(pairs)),
        *_loss_cells(loss, native),
        *_metric_cells(metric),
        ", ".join(dict.fromkeys(outcomes)),
    )


def layers_table(result: Judged) -> Table:
    """Shares of small gradients by layer, unscaled and scaled; empty without any."""
    seen = pictures.looked_at(result)
    layers = (seen["results"] or seen["weights"]) if seen else {}
    if not layers:
        return []
    bounds = (pictures.UNDERFLOW, pictures.SUBNORMAL)
    # What is under 2^e after scaling by S was under 2^e / S.
    shift = round(math.log2(CONSTANT))
    shares = {
        name: [probe.share_below(held, b - s) for s in (0, shift) for b in bounds]
        for name, held in layers.items()
    }
    ranked = sorted(shares, key=lambda name: shares[name], reverse=True)
    rows = [(n, *(f"{s:.1%}" for s in shares[n])) for n in ranked[:MOST_ROWS]]
    return [LAYER_HEAD, *rows]


def lost_table(result: Judged) -> Table:
    """What the mixed runs lost of each variable's gradient; empty without any."""
    unscaled, dynamic = (
        gradient_rule.loss_of_values(r for r in result["runs"] if r["setting"] == name)
        for name in ("unscaled", "dynamic")
    )
    if not unscaled:
        return []
    rows: Table = [LOST_HEAD]
    for name in list(unscaled)[:MOST_ROWS]:
        shares = (*unscaled[name], *dynamic.get(name, (math.nan, math.nan)))
        rows.append((name, *(f"{share:.1%}" for share in shares)))
    return rows


def figure(value: float | None, form: str = ".4g") -> str:
    return NONE if value is None else format(value, form)
