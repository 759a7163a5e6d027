"""Pictures of results, as SVG: curves, loss scales, gradient histograms.

Drawn from what files of results hold; no statistics beyond means.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convergence.settings import CONSTANT, FLOAT32, SETTINGS

COLOURS = {
    "float32": "#222222",
    "unscaled": "#c0392b",
    "constant": "#1f5fa8",
    "dynamic": "#2e8b57",
}
# float16: the smallest number, and the smallest with all its bits (IEEE 754).
UNDERFLOW, SUBNORMAL = -24, -14
LAYERS = 24  # rows of a histogram, at most


def picture(result: Mapping[str, Any]) -> str:
    """One picture of a family, as SVG."""
    import matplotlib

    file = io.StringIO()
    # Names inside the file are the same in every drawing; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "tf-amp", "svg.fonttype": "none"}):
        drawn(result).savefig(file, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def drawn(result: Mapping[str, Any]) -> Any:
    """A figure of losses by part, the loss scale, and gradients by layer."""
    from matplotlib import figure

    parts = len(result["runs"][0]["losses"])
    probe = looked_at(result)
    rows = 2 if probe else 1
    drawing = figure.Figure(figsize=(11, 3.6 * rows), layout="constrained")
    panels = drawing.subplots(rows, max(parts + 1, 2), squeeze=False)
    for part in range(parts):
        _losses(panels[0, part], result, part)
    _scales(panels[0, parts], result)
    if probe:
        constant = 0.0, float(np.log2(CONSTANT))
        for axes, shift in zip(panels[1], constant, strict=False):
            _gradients(axes, probe["results"] or probe["weights"], shift)
        for axes in panels[1, 2:]:
            axes.set_axis_off()
    title = f"{result['title']}, {result['data']}, {result['dtype']}"
    drawing.suptitle(title + (" emulated" if result["emulated"] else ""), fontsize=11)
    return drawing


def looked_at(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Gradients of a float32 run, half of its steps done; None if there is none."""
    for run in result["runs"]:
        found = [probe for probe in run["probes"] if "results" in probe]
        if run["setting"] == FLOAT32 and found:
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
    """Loss scales over time, a line a seed; a mark where a step was skipped."""
    steps = result["size"]["steps"]
    for setting in SETTINGS[2:]:
        for index, run in enumerate(_of(result, setting)):
            held = [*run["scales"], [steps, run["scales"][-1][1]]]
            places, values = zip(*held, strict=True)
            label = setting if index == 0 else None
            style = {"color": COLOURS[setting], "alpha": 0.7, "linewidth": 1}
            axes.step(places, values, where="post", label=label, **style)
            at = np.searchsorted(places, run["skips"], side="right") - 1
            marks = [values[i] for i in at]
            axes.plot(run["skips"], marks, "x", color=COLOURS[setting], markersize=3)
    axes.set_yscale("log", base=2)
    axes.set_title("loss scale (× skipped step)", fontsize=9)
    axes.set_xlabel("step", fontsize=8)
    if axes.lines:
        axes.legend(frameon=False, fontsize=7)
    _plain(axes)


def _gradients(axes: Any, layers: Mapping[str, Any], shift: float) -> None:
    """How gradients of each layer spread over exponents, scaled by 2^shift."""
    names = list(layers)[:: -(-len(layers) // LAYERS)]
    lowest, highest = -50, 16
    table = np.array([_shares(layers[name], shift, lowest, highest) for name in names])
    extent = (lowest, highest, len(names) - 0.5, -0.5)
    axes.imshow(
        np.sqrt(table), aspect="auto", extent=extent, cmap="Greys", vmin=0, vmax=0.6
    )
    for exponent, style in ((UNDERFLOW, "-"), (SUBNORMAL, "--")):
        axes.axvline(exponent, color="#c0392b", linestyle=style, linewidth=1)
        axes.text(exponent, -0.7, f"2^{exponent}", fontsize=7, ha="center", va="bottom")
    axes.set_yticks(range(len(names)), names, fontsize=4.5)
    scale = f"times 2^{shift:g}" if shift else "unscaled"
    axes.set_title(f"gradients, {scale}, by layer\n", fontsize=9)
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
