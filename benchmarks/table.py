"""The page and the tables of results; how figures look in text.

What figures mean is the work of `summary` and `targets`: nothing is computed or
measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import bench_models, summary, targets

NAMES = {"keras": "Keras policy", "grappler": "Grappler", "amp": "tf-amp"}
EXECUTORS = {"kernels": "TensorFlow's kernels", "xla": "XLA (jit_compile=True)"}
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
        parts += [legend(rows), f"![Speed-up over float32, a bar each]({chart})"]
    parts += [*speed_tables(rows), *not_run(results)]
    if any(row.for_memory for row in rows):
        parts += ["## Peak memory where activations dominate", memory_table(rows)]
    parts += ["## Targets", targets_table(results, rows)]
    failures = failures_list(rows)
    if failures:
        parts += ["## What failed, or was warned of", failures]
    return "\n\n".join(parts) + "\n"


def legend(rows: Sequence[summary.Row]) -> str:
    """What the columns are."""
    kinds = (
        "A first run begins with an empty cache and looks for a plan; later runs begin "
        "with what it found."
        if summary.kinds(rows) != [summary.UNTOLD]
        else "These results do not tell first runs of a job from later ones, which "
        "begin with what the first found."
    )
    return (
        "Speed-ups are float32's seconds a step over those of the same step in the "
        "same round: the median over rounds (least–most). Predicted is the plugin's "
        "own figure, from times of single operations, as far as they were measured by "
        f"the end of the run. {kinds} Peak memory is the plugin's over float32's, in "
        "all. First step: seconds from before the model is built to its end, float32 → "
        "plugin. Rewriting: the most seconds that the plugin's plans took in a run, of "
        "which the first comes with the second step, or with the first where an "
        "earlier run has found the winner."
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
    variables = {**settings["variables"], **found.get("environment", {})}
    own = "".join(f", {k}={v}" for k, v in variables.items())
    return (
        f"{gpu}{found['cpu']}, {found['cores']} cores ({flags}), {found['system']}; "
        f"{versions}. {settings['dtype']}, {settings['rounds']} rounds{sizes}{own}; "
        f"begun {settings['begun']}{_commit(found)}. "
        f"Figures of the device: {found['figures']}."
    )


def _commit(machine: Mapping[str, Any]) -> str:
    """Of which code the figures are, where that was told."""
    commit = machine.get("commit")
    if not commit:
        return ""
    changes = " with changes" if commit["dirty"] else ""
    return f", commit {commit['id'][:7]}{changes}"


def not_run(results: Mapping[str, Any]) -> list[str]:
    """The default cases that there is no figure of, by executor."""
    found = []
    for executor, title in EXECUTORS.items():
        ran = {run["case"] for run in results["runs"] if run["executor"] == executor}
        left = [case for case in bench_models.CASES if case not in ran]
        if left:
            found.append(f"{title}: {', '.join(left) if ran else 'all'}")
    return [f"Default cases that were not run: {'; '.join(found)}."] if found else []


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
            kinds = summary.kinds(own)
            body = [_speed_row(row, kinds) for row in own]
            parts += [f"**{title}**", markdown([_speed_head(kinds), *body])]
    return parts


def _speed_head(kinds: Sequence[str]) -> list[str]:
    memory = [summary.of_kind("peak memory", kind) for kind in kinds]
    first = [f"{summary.of_kind('first step', kind)}, s" for kind in kinds]
    return [
        *("model", "float32, ms", *NAMES.values(), "predicted"),
        *(*memory, *first, "rewriting, s"),
    ]


def _speed_row(row: summary.Row, kinds: Sequence[str]) -> list[str]:
    gains = [_gain(row, mode) for mode in NAMES]
    starts = [row.starts.get(kind) for kind in kinds]
    return [
        row.case,
        milliseconds(row.seconds32),
        *gains,
        number(row.predicted),
        *(number(summary.middle(start.memory) if start else None) for start in starts),
        *map(_first_step, starts),
        number(row.rewriting, ".1f"),
    ]


def _first_step(start: summary.Start | None) -> str:
    if start is None:
        return "–"
    return f"{number(start.first32, '.1f')} → {number(start.first, '.1f')}"


def _gain(row: summary.Row, mode: str) -> str:
    if mode in row.failures:
        return row.failures[mode].word
    return spread(row.gains[mode])


def memory_table(rows: Sequence[summary.Row]) -> str:
    own = [row for row in rows if row.for_memory]
    kinds = summary.kinds(own)
    columns = ("in all", "after the first steps")
    head = [summary.of_kind(column, kind) for kind in kinds for column in columns]
    body = []
    for row in own:
        starts = [row.starts.get(kind) for kind in kinds]
        cells = [
            spread(value)
            for start in starts
            for value in ((start.memory, start.steady_memory) if start else (None,) * 2)
        ]
        body.append((row.case, row.executor, *cells))
    return markdown([("model", "executor", *head), *body])


def targets_table(results: Mapping[str, Any], rows: Sequence[summary.Row]) -> str:
    words = {True: "met", False: "missed", None: "not measured"}
    body = []
    for target in targets.targets(rows):
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
