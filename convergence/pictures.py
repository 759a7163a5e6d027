"""Pictures of results, as SVG: intervals, curves, loss scales, gradient histograms.

Drawn from what files of results hold; no statistics but means and what `verdict` gives.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convergence import verdict
from convergence.settings import CONSTANT, FLOAT32, SETTINGS

COLOURS = {
    "float32": "#222222",
    "perturbed": "#888888",
    "unscaled": "#c0392b",
    "constant": "#1f5fa8",
    "dynamic": "#2e8b57",
}
# float16: the smallest number, the smallest with all its bits, and the first beyond it
# (IEEE 754).
UNDERFLOW, SUBNORMAL, OVERFLOW = -24, -14, 16
LAYERS = 24  # rows of a histogram, at most
WIDEST = 20.0  # margins that a picture shows of an interval


def picture(result: Mapping[str, Any]) -> str:
    """One picture of a family, as SVG."""
    import matplotlib

    file = io.StringIO()
    # Names inside the file are the same in every drawing; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "tf-amp", "svg.fonttype": "none"}):
        drawn(result).savefig(file, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def drawn(result: Mapping[str, Any]) -> Any:
    """A figure of intervals, losses by part, the loss scale, and gradients by layer."""
    from matplotlib import figure

    parts = len(result["runs"][0]["losses"])
    histograms = _histograms(result)
    rows = 2 if histograms else 1
    drawing = figure.Figure(figsize=(13, 3.8 * rows), layout="constrained")
    panels = drawing.subplots(rows, max(parts + 2, 3), squeeze=False)
    _intervals(panels[0, 0], result)
    for part in range(parts):
        _losses(panels[0, part + 1], result, part)
    _scales(panels[0, parts + 1], result)
    for axes, told in zip(panels[1] if histograms else (), histograms, strict=False):
        _gradients(axes, *told)
    for axes in panels[1, len(histograms) :] if histograms else ():
        axes.set_axis_off()
    title = f"{result['title']}, {result['data']}, {result['dtype']}"
    drawing.suptitle(title + (" emulated" if result["emulated"] else ""), fontsize=11)
    return drawing


def _histograms(
    result: Mapping[str, Any],
) -> list[tuple[Mapping[str, Any], float, str]]:
    """The panels of histograms: what, times which power of two, and the title."""
    told = []
    probe = looked_at(result)
    if probe:
        layers, shift = probe["results"] or probe["weights"], float(np.log2(CONSTANT))
        told.append((layers, 0.0, "float32, by layers' results, unscaled"))
        told.append((layers, shift, f"the same, times 2^{shift:g}"))
    own = looked_at(result, "dynamic", "weights")
    if own:
        shift = float(np.log2(own["scale"]))
        told.append((own["weights"], shift, f"dynamic, by weights, times 2^{shift:g}"))
    return told


def _intervals(axes: Any, result: Mapping[str, Any]) -> None:
    """The 90 % intervals of loss (dots) and metric (squares), in margins."""
    rows = [row for row in verdict.rows(result) if row.metric]
    if not rows:  # of a goal
        axes.set_axis_off()
        return
    axes.axvspan(-1, 1, color="#e8e8e8", linewidth=0)
    for place, row in enumerate(rows):
        style = {"color": COLOURS[row.setting], "capsize": 3, "markersize": 4}
        for found, shift, form in ((row.loss, -0.12, "o"), (row.metric, 0.12, "s")):
            if found is None:
                continue
            low, mean, high = (
                np.clip(x / found.margin, -WIDEST, WIDEST)
                for x in (found.low, found.mean, found.high)
            )
            reach = [[mean - low], [high - mean]]
            axes.errorbar([mean], [place + shift], xerr=reach, fmt=form, **style)
    axes.set_yticks(range(len(rows)), [row.setting for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=2)
    ticks = (-10, -1, 0, 1, 10)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_title("difference over margin (● loss, ■ metric)", fontsize=9)
    _plain(axes)


def looked_at(
    result: Mapping[str, Any], setting: str = FLOAT32, what: str = "results"
) -> Mapping[str, Any] | None:
    """Histograms of a run, half of its steps done; None if there are none."""
    for run in result["runs"]:
        found = [probe for probe in run["probes"] if what in probe]
        if run["setting"] == setting and found:
            last: Mapping[str, Any] = found[-1]
            return last
    return None


def _of(result: Mapping[str, Any], setting: str) -> list[Mapping[str, Any]]:
    return [run for run in result["runs"] if run["setting"] == setting]


def _losses(axes: Any, result: Mapping[str, Any], part: int) -> None:
    """The mean loss over seeds, and all seeds thinly behind it."""
    for setting in SETTINGS:
        runs = _of(result, setting)
        if not runs:
            continue
        curves = np.array([run["losses"][part] for run in runs], float)
        count = curves.shape[1]
        steps = (np.arange(count) + 0.5) * result["size"]["steps"] / count
        style = {"color": COLOURS[setting]}
        axes.plot(steps, curves.T, linewidth=0.5, alpha=0.25, **style)
        known = np.isfinite(curves)
        sums = np.where(known, curves, 0.0).sum(axis=0)
        mean = np.where(known.any(axis=0), sums / known.sum(axis=0).clip(1), np.nan)
        wide = 2.6 if setting == FLOAT32 else 1.3  # both stay visible
        axes.plot(steps, mean, label=setting, linewidth=wide, **style)
    count = len(result["runs"][0]["losses"])
    axes.set_title("loss" if count == 1 else f"loss {part + 1} of {count}", fontsize=9)
    axes.set_xlabel("step", fontsize=8)
    positive = all(line.get_ydata()[0] > 0 for line in axes.lines)
    axes.set_yscale("log" if positive else "symlog")
    axes.legend(frameon=False, fontsize=7)
    _plain(axes)


def _scales(axes: Any, result: Mapping[str, Any]) -> None:
    """Loss scales over time, a line a scaler; a mark where a step was skipped."""
    for setting in SETTINGS[3:]:
        tracks = [track for run in _of(result, setting) for track in run["scalers"]]
        for index, track in enumerate(tracks):
            end = track["begin"] + track["count"]
            places, values = zip(
                *track["path"], (end, track["path"][-1][1]), strict=True
            )
            label = setting if index == 0 else None
            style = {"color": COLOURS[setting], "alpha": 0.7, "linewidth": 1}
            axes.step(places, values, where="post", label=label, **style)
            at = np.searchsorted(places, track["held"], side="right") - 1
            marks = [values[i] for i in at]
            axes.plot(track["held"], marks, "x", color=COLOURS[setting], markersize=3)
    axes.set_yscale("log", base=2)
    axes.set_title("loss scale (× skipped step)", fontsize=9)
    axes.set_xlabel("step", fontsize=8)
    if axes.lines:
        axes.legend(frameon=False, fontsize=7)
    _plain(axes)


def _gradients(axes: Any, layers: Mapping[str, Any], shift: float, title: str) -> None:
    """How gradients of each layer spread over exponents, scaled by 2^shift."""
    names = list(layers)[:: -(-len(layers) // LAYERS)]
    lowest, highest = -50, 20
    table = np.array([_shares(layers[name], shift, lowest, highest) for name in names])
    extent = (lowest, highest, len(names) - 0.5, -0.5)
    axes.imshow(
        np.sqrt(table), aspect="auto", extent=extent, cmap="Greys", vmin=0, vmax=0.6
    )
    for exponent, style in ((UNDERFLOW, "-"), (SUBNORMAL, "--"), (OVERFLOW, "-")):
        axes.axvline(exponent, color="#c0392b", linestyle=style, linewidth=1)
        axes.text(exponent, -0.7, f"2^{exponent}", fontsize=7, ha="center", va="bottom")
    axes.set_yticks(range(len(names)), names, fontsize=4.5)
    axes.set_title(f"gradients: {title}\n", fontsize=9)
    axes.set_xlabel("exponent of the absolute value (base 2)", fontsize=8)
    _plain(axes)


def _shares(
    held: Mapping[str, Any], shift: float, lowest: int, highest: int
) -> np.ndarray:
    found = np.zeros(highest - lowest)
    counts: Sequence[int] = held["counts"]
    for index, count in enumerate(counts):
        place = held["lowest"] + index + int(shift) - lowest
        found[int(np.clip(place, 0, len(found) - 1))] += count
    return found / max(sum(counts), 1)


def _plain(axes: Any) -> None:
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="y", length=2)
    axes.spines[["top", "right"]].set_visible(False)
