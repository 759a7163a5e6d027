"""The report: tables and pictures of all results, as Markdown and HTML.

Everything comes from the files of results; what figures mean is decided in `verdict`,
what tables hold in `tables`.
"""

from __future__ import annotations

import html
import os
import string
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from amp.integration import atomic_files
from convergence import (
    drilled,
    goals,
    judge,
    margins,
    pictures,
    results,
    staleness,
    tables,
)
from convergence.settings import CONSTANT
from convergence.tables import Table
from convergence.verdict import Verdict

PAGE = Path(__file__).parents[1] / "docs" / "convergence.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
Judged = Mapping[str, Any]
Counted = Sequence[tuple[Judged, str]]  # results, and why they are not counted
Tell = Callable[[int, int], None]


def write(
    directory: Path,
    replan: staleness.Replan,
    frozen: Path = margins.FILE,
    tell: Tell = lambda done, every: None,
) -> list[Path]:
    """Writes report.md, report.html and a picture a file of results; returns the files.

    Of the suite's own directory the page docs/convergence.md is brought up to date too.

    Args:
      directory: of results.
      replan: plans the steps of a result anew; several threads ask.
      frozen: file of margins.
      tell: told how many results were looked at, and of how many.

    Raises:
      ResultError: a file of results cannot be read.
    """
    every = [result for result in results.every(directory) if result["runs"]]
    threads = futures.ThreadPoolExecutor(os.cpu_count())
    try:
        asked = [threads.submit(staleness.reason, r, replan, frozen) for r in every]
        for done, _ in enumerate(futures.as_completed(asked), 1):
            tell(done, len(asked))
    finally:
        threads.shutdown(cancel_futures=True)  # a Ctrl-C waits for no others
    found = [(r, reason.result()) for r, reason in zip(every, asked, strict=True)]
    drawings = {
        stem(result) + ".svg": pictures.picture(result)
        for result, stale in found
        if not stale and not result["controls"]
    }
    pages = {directory / name: drawing for name, drawing in drawings.items()}
    text = "# Convergence: results\n\n" + markdown(found, "")
    pages[directory / "report.md"] = text
    pages[directory / "report.html"] = web(found, drawings)
    if directory.resolve() == results.DIRECTORY.resolve() and PAGE.exists():
        text = PAGE.read_text(encoding="utf-8")
        inside = markdown(found, "../convergence/results/")
        pages[PAGE] = between_marks(text, inside)
    for path, text in pages.items():
        atomic_files.write(path, text)
    return list(pages)


def stem(result: Judged) -> str:
    return Path(results.file_name(result)).stem


def sections(found: Counted) -> list[tuple[str, list[str | Table], str]]:
    """The report without its form.

    Returns:
      Of each section its title, its paragraphs and tables, and the stem of its picture,
      "" for none.
    """
    if not found:
        return [("", ["There are no results yet."], "")]
    judged = [(r, stale) for r, stale in found if not r.get("controls")]
    pairs = [(r, stale) for r, stale in judged if not goals.is_of(r)]
    reached = [r for r, stale in judged if goals.is_of(r) and not stale]
    planted = [r for r, stale in found if r.get("controls") and not stale]
    made: list[tuple[str, list[str | Table], str]] = []
    made.append(("", [tables.summary(pairs), *_stale(found)], ""))
    if reached:
        made.append(("Goals", [GOALS_NOTE, tables.goals_table(reached)], ""))
    if planted:
        controls: list[str | Table] = [CONTROLS_NOTE, tables.controls_table(planted)]
        made.append(("Negative controls", controls, ""))
    counted = [result for result, stale in pairs if not stale]
    if native := tables.native_table(counted):
        made.append(("Native and emulated", [NATIVE_NOTE, native], ""))
    for result, stale in judged:
        if not stale:
            made.append((title(result), _section(result), stem(result)))
    return made


def _stale(found: Counted) -> list[str | Table]:
    rows = [(results.file_name(r), stale) for r, stale in found if stale]
    return [STALE_NOTE, [("file", "why"), *rows]] if rows else []


def _section(result: Judged) -> list[str | Table]:
    parts: list[str | Table] = [about(result), tables.settings_table(result)]
    parts += [classes] if (classes := tables.classes_table(result)) else []
    parts.append(verdict_line(judge.judged(result)))
    for note, table in (
        (TIMES_NOTE, tables.times_table(result)),
        (LOST_NOTE, tables.lost_table(result)),
        (LAYERS_NOTE, tables.layers_table(result)),
    ):
        parts += [note, table] if table else []
    return parts


STALE_NOTE = "Not counted:"
GOALS_NOTE = (
    "Full sizes, trained once in float32 and once in mixed precision with dynamic loss "
    "scaling: one pair shows no equivalence, but that both get where they are to."
)
CONTROLS_NOTE = (
    "Faults planted on purpose, and what calls the runs different from float32: "
    "clauses of the rule, and what stands beside it (drills, effect, zeros, recovery)."
)
NATIVE_NOTE = (
    "The same seeds with 16-bit kernels and with rounded float32 ones: native less "
    "emulated, with the 90 % interval, beside the margins that float32 is held to. "
    "Nothing is judged by it."
)
TIMES_NOTE = (
    "Wall time of whole runs, tracing and probes included, medians over seeds, and "
    "float32's over it, the median of pairs. All that may be is in 16 bits here, "
    "whether it gains or not, and quick runs have one thread: not what a job gains."
)
LOST_NOTE = (
    "Values of gradients that are not 0 in float32 and became 0, or denormals, in the "
    "mixed runs: means over all probed steps of all seeds. Those that lose most "
    "come first."
)
LAYERS_NOTE = (
    "Nonzero gradients of the loss by each layer's result, in the first float32 run "
    f"after half of its steps, as they are and times {CONSTANT:g}. float16 has no "
    "number under 2^-24, and loses bits of what is under 2^-14. The layers that lose "
    "most come first."
)


def title(result: Judged) -> str:
    how = "emulated " if result["emulated"] else ""
    quick = ", quick" if result["quick"] else ""
    return f"{result['title']} on {result['data']}, {how}{result['dtype']}{quick}"


def about(result: Judged) -> str:
    """What was run on what, in a few sentences."""
    size, rule, machine = result["size"], result["rule"], result["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    better = "higher" if rule["higher"] else "lower"
    model = ", ".join(f"{k} {v}" for k, v in size["model"].items())
    commits = dict.fromkeys(run.get("commit", "") for run in result["runs"])
    judged_by = (
        f"Wanted of every run: {goals.wanted(result):.4g}"
        if goals.is_of(result)
        else f"Margins frozen as {rule['tag']}"
    )
    minutes = sum(run["seconds"] for run in result["runs"]) / 60
    return (
        f"{rule['metric']} ({better} is better); {tables.trivial_model(result)}; "
        f"{result['seeds']} seed{'s' * (result['seeds'] != 1)}, "
        f"{size['steps']} steps of {size['batch']}, {result['optimizer']}, learning "
        f"rate {size['rate']:g}; {model}. {judged_by}. {drilled.told(result)}. Commit "
        f"{', '.join(commits)}; {minutes:.0f} minutes of training, begun "
        f"{result['begun']}. {machine['gpu'] or machine['cpu']}, {machine['cores']} "
        f"cores, {machine['system']}; {versions}."
    )


def verdict_line(judged: Verdict) -> str:
    if judged.passes:
        return "**Passes.**"
    told = "; ".join((*judged.reasons, *judged.undecided))
    return f"**{judged.word.capitalize()}**: {told}."


def markdown(found: Counted, where: str) -> str:
    """All results as Markdown.

    Args:
      found: contents of files of results, and why they are not counted.
      where: how the page leads to the pictures.
    """
    parts = []
    for heading, content, drawing in sections(found):
        parts += [f"## {heading}"] * bool(heading)
        parts += [f"![{heading}]({where}{drawing}.svg)"] * bool(drawing)
        parts += [part if isinstance(part, str) else lined(part) for part in content]
    return "\n\n".join(parts) + "\n"


def lined(table: Table) -> str:
    """A table whose first row is the head, as Markdown."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in table]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    rule = "|---" + "|--:" * (len(cells[0]) - 1) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def between_marks(text: str, new: str) -> str:
    """A page with what stands between its two marks replaced.

    Raises:
      ValueError: it lacks one of them.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} or, after it, {END}")
    return f"{before}{BEGIN}\n\n{new}\n{END}{after}"


WEB = string.Template(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>tf-amp: convergence</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
         max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 3rem; }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums;
          font-size: .85rem; margin: 1rem 0; }
  th, td { padding: .2rem .9rem .2rem 0; text-align: right;
           border-bottom: 1px solid #ddd; }
  th:first-child, td:first-child { text-align: left; }
  svg { width: 100%; height: auto; }
  p { color: #444; }
</style>
<h1>Convergence: float32 against mixed precision</h1>
$body
</html>
"""
)


def web(found: Counted, drawings: Mapping[str, str]) -> str:
    """All results as a page that needs no other file."""
    parts = []
    for heading, content, drawing in sections(found):
        parts += [f"<h2>{html.escape(heading)}</h2>"] * bool(heading)
        if drawing:
            svg = drawings[drawing + ".svg"]
            parts.append(svg[svg.index("<svg") :])
        for part in content:
            if isinstance(part, str):
                parts.append(f"<p>{html.escape(part.replace('*', ''))}</p>")
            else:
                parts.append(tagged(part))
    return WEB.substitute(body="\n".join(parts))


def tagged(table: Table) -> str:
    """A table whose first row is the head, as HTML."""
    tags = ["th", *["td"] * (len(table) - 1)]
    rows = [
        "".join(f"<{tag}>{html.escape(cell.replace('*', ''))}</{tag}>" for cell in row)
        for tag, row in zip(tags, table, strict=True)
    ]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>\n{body}\n</table>"
