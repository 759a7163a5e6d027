"""The page, the tables and the chart of results; how figures look in text.

What figures mean is `summary`'s work: nothing is computed or measured here. Only
drawing imports matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import summary

NAMES = {"keras": "Keras policy", "grappler": "Grappler", "amp": "tf-amp"}
EXECUTORS = {"kernels": "TensorFlow's kernels", "xla": "XLA (jit_compile=True)"}
COLOURS = {"keras": "#8aa4c8", "grappler": "#b9b9b9", "amp": "#d1661a"}
SPEED_HEAD = (
    "model",
    "float32, ms",
    *NAMES.values(),
    "predicted",
    "peak memory",
    "first step, s",
    "rewriting, s",
)
Table = Sequence[Sequence[str]]


def page(results: Mapping[str, Any], chart: str) -> str:
    """Everything that results hold, as Markdown.

    Args:
      results: what `training_step` writes.
      chart: the file of the chart, as seen from the page.
    """
    rows = summary.rows(results["runs"])
    parts = ["# Whole training steps", machine(results), *warnings(results)]
    if not all(row.for_memory for row in rows):
        parts += [LEGEND, f"![Speed-up over float32, a bar each]({chart})"]
    parts += speed_tables(rows)
    if any(row.for_memory for row in rows):
        parts += ["## Peak memory where activations dominate", memory_table(rows)]
    parts += ["## Targets", targets_table(results, rows)]
    failures = failures_list(rows)
    if failures:
        parts += ["## What failed, or was warned of", failures]
    return "\n\n".join(parts) + "\n"


LEGEND = (
    "Speed-ups are float32's seconds a step over those of the same step in the same "
    "round: the median over rounds (least–most). Predicted is the plugin's own figure, "
    "from times of single operations, as far as they were measured by the end of the "
    "run. Peak memory is the plugin's over float32's, in all; the first round has the "
    "race, the others begin with its winner. First step: seconds from before the model "
    "is built to its end, float32 → plugin. Rewriting: the plugin's seconds for its "
    "plans, of which the first comes with the second step, or with the first where an "
    "earlier round has found the winner."
)


def excerpt(results: Mapping[str, Any], chart: str, more: str) -> str:
    """The part for a page of docs/: machine, chart and speed.

    Args:
      results: what `training_step` writes.
      chart, more: the files of the chart and of the whole page.
    """
    rows = summary.rows(results["runs"])
    parts = [machine(results), *warnings(results)]
    parts += [f"![Speed-up over float32, a bar each]({chart})", *speed_tables(rows)]
    name = more.rpartition("/")[2]
    parts += [f"Targets met and missed: [{name}]({more})."]
    return "\n\n".join(parts)


def machine(results: Mapping[str, Any]) -> str:
    found, settings = results["machine"], results["settings"]
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    flags = " ".join(found["flags"]) or "no AVX512, no AMX"
    sizes = ", small sizes" if settings["small_sizes"] else ""
    gpu = f"{found['gpu']}; " if found["gpu"] else ""
    own = "".join(f", {k}={v}" for k, v in settings["variables"].items())
    return (
        f"{gpu}{found['cpu']}, {found['cores']} cores ({flags}), {found['system']}; "
        f"{versions}. {settings['dtype']}, {settings['rounds']} rounds{sizes}{own}; "
        f"begun {settings['begun']}. Figures of the device: {found['figures']}."
    )


def warnings(results: Mapping[str, Any]) -> list[str]:
    """What a reader must know before any figure."""
    found = []
    if not results["machine"]["dtype"]:
        reason = results["machine"]["reason"].partition(";")[0]
        found.append(
            f"**These figures say nothing about speed-up: {reason}.** They show that "
            "the benchmark runs, and what the neighbours cost on such a machine. "
            "tf-amp is float32 once more here, so its spread is the noise."
        )
    if results["settings"]["small_sizes"]:
        found.append("**Small sizes: targets are of the whole ones.**")
    if results["settings"]["note"]:
        found.append(f"**{results['settings']['note']}**")
    return found


def speed_tables(rows: Sequence[summary.Row]) -> list[str]:
    parts = []
    for executor, title in EXECUTORS.items():
        own = [r for r in rows if r.executor == executor and not r.for_memory]
        if own:
            parts += [f"**{title}**", markdown([SPEED_HEAD, *map(_speed_row, own)])]
    return parts


def _speed_row(row: summary.Row) -> list[str]:
    gains = [_gain(row, mode) for mode in NAMES]
    return [
        row.case,
        milliseconds(row.seconds32),
        *gains,
        number(row.predicted),
        number(row.memory.middle if row.memory else None),
        f"{number(row.first32, '.1f')} → {number(row.first, '.1f')}",
        number(row.rewriting, ".1f"),
    ]


def _gain(row: summary.Row, mode: str) -> str:
    if mode in row.failures:
        return row.failures[mode].word
    return spread(row.gains[mode])


def memory_table(rows: Sequence[summary.Row]) -> str:
    head = ("model", "executor", "in all", "after the first steps")
    body = [
        (row.case, row.executor, spread(row.memory), spread(row.steady_memory))
        for row in rows
        if row.for_memory
    ]
    return markdown([head, *body])


def targets_table(results: Mapping[str, Any], rows: Sequence[summary.Row]) -> str:
    words = {True: "met", False: "missed", None: "not measured"}
    body = []
    for target in summary.targets(rows):
        verdict = words[target.met]
        if target.wanted is None:
            verdict = "reported"
        elif results["settings"]["small_sizes"] and target.met is not None:
            verdict = "small sizes"
        bound = "at most" if target.most else "at least"
        wanted = "" if target.wanted is None else f"{bound} {target.wanted:g}"
        where = f" ({target.where})" if target.where else ""
        seen = number(target.seen) + where
        body.append((target.name, target.executor, wanted, seen, verdict))
    return markdown([("target", "executor", "wanted", "seen", ""), *body])


def failures_list(rows: Sequence[summary.Row]) -> str:
    found = []
    for row in rows:
        said = [(NAMES.get(m, m), failure.cause) for m, failure in row.failures.items()]
        said += [("warning", text) for text in row.warnings]
        found += [f"* {row.case}, {row.executor}, {who}: {text}" for who, text in said]
    return "\n".join(found)


def number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def milliseconds(seconds: float | None) -> str:
    """Three digits, or whole ones."""
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def spread(value: summary.Spread | None) -> str:
    if value is None:
        return "–"
    return f"{value.middle:.2f} ({value.low:.2f}–{value.high:.2f})"


def markdown(table: Table) -> str:
    """A table whose first row is the head, with columns as wide as they need."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        first, *rest = zip(row, widths, strict=True)
        texts = [first[0].ljust(first[1]), *(cell.rjust(w) for cell, w in rest)]
        return f"| {' | '.join(texts)} |"

    rule = [f"|{'-' * (widths[0] + 2)}", *(f"{'-' * (w + 1)}:" for w in widths[1:])]
    return "\n".join([line(cells[0]), "|".join(rule) + "|", *map(line, cells[1:])])


def marks(name: str) -> tuple[str, str]:
    """What stands before and after the part of a page that is of one file of results.

    Args:
      name: of the file, without its ending.
    """
    return f"<!-- results of {name}: begin -->", f"<!-- results of {name}: end -->"


def between_marks(text: str, new: str, name: str) -> str:
    """A page with what stands between the two marks of a file of results replaced.

    Raises:
      ValueError: it lacks one of them.
    """
    first, last = marks(name)
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page lacks {first} or, after it, {last}")
    return f"{before}{begin}\n\n{new}\n\n{end}{after}"


def chart(results: Mapping[str, Any]) -> str | None:
    """Gains by model and mode, least and most as whiskers, as SVG.

    None where nothing was timed.
    """
    rows = [row for row in summary.rows(results["runs"]) if not row.for_memory]
    shown = [e for e in EXECUTORS if any(row.executor == e for row in rows)]
    if not shown:
        return None
    import matplotlib
    from matplotlib import figure

    picture = figure.Figure(figsize=(13, 3.4 * len(shown)), layout="constrained")
    panels = picture.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axes, executor in zip(panels, shown, strict=True):
        _bars(axes, [row for row in rows if row.executor == executor])
        axes.set_title(EXECUTORS[executor], loc="left", fontsize=10)
    panels[0].legend(frameon=False, ncols=len(NAMES), loc="upper right", fontsize=9)
    file = io.StringIO()
    # Text stays text, and names inside the file are the same in every drawing.
    with matplotlib.rc_context({"svg.hashsalt": "tf-amp", "svg.fonttype": "none"}):
        picture.savefig(file, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _bars(axes: Any, rows: Sequence[summary.Row]) -> None:
    width = 0.8 / len(NAMES)
    for index, (mode, name) in enumerate(NAMES.items()):
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
