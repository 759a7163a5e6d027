"""The chart of results. Only drawing imports matplotlib; nothing is computed here."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import summary, table

COLOURS = {"keras": "#8aa4c8", "grappler": "#b9b9b9", "amp": "#d1661a"}


def draw(results: Mapping[str, Any]) -> str | None:
    """Gains by model and mode, least and most as whiskers, as SVG.

    None where nothing was timed.
    """
    rows = [row for row in summary.rows(results["runs"]) if not row.for_memory]
    shown = [e for e in table.EXECUTORS if any(row.executor == e for row in rows)]
    if not shown:
        return None
    import matplotlib
    from matplotlib import figure

    picture = figure.Figure(figsize=(13, 3.4 * len(shown)), layout="constrained")
    panels = picture.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axes, executor in zip(panels, shown, strict=True):
        _bars(axes, [row for row in rows if row.executor == executor])
        axes.set_title(table.EXECUTORS[executor], loc="left", fontsize=10)
    panels[0].legend(
        frameon=False, ncols=len(table.NAMES), loc="upper right", fontsize=9
    )
    file = io.StringIO()
    # Text stays text, and names inside the file are the same in every drawing.
    with matplotlib.rc_context({"svg.hashsalt": "tf-amp", "svg.fonttype": "none"}):
        picture.savefig(file, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _bars(axes: Any, rows: Sequence[summary.Row]) -> None:
    width = 0.8 / len(table.NAMES)
    for index, (mode, name) in enumerate(table.NAMES.items()):
        pairs = [(i, row.gains[mode]) for i, row in enumerate(rows)]
        known = [(place, gain) for place, gain in pairs if gain is not None]
        middles = [gain.middle for _, gain in known]
        low = [gain.middle - gain.low for _, gain in known]
        high = [gain.high - gain.middle for _, gain in known]
        axes.bar(
            [place + (index - 1) * width for place, _ in known],
            middles,
            width * 0.92,
            yerr=[low, high],
            label=name,
            color=COLOURS[mode],
            error_kw={"linewidth": 0.8, "ecolor": "#333"},
        )
    axes.axhline(1.0, color="#333", linewidth=0.8)
    labels = [row.case.replace(" ", "\n") for row in rows]
    axes.set_xticks(range(len(rows)), labels, fontsize=7.5)
    axes.set_ylabel("speed-up over float32", fontsize=9)
    axes.margins(x=0.01, y=0.18)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
