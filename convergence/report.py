"""The report: tables and pictures of all results, as Markdown and HTML.

Everything comes from the files of results; what figures mean is decided in `verdict`.
"""

from __future__ import annotations

import html
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from amp.integration import atomic_files
from convergence import pictures, probe, results, trivial, verdict
from convergence.settings import CONSTANT

PAGE = Path(__file__).parents[1] / "docs" / "convergence.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEAD = ("setting", "mean", "sd", "difference", "90 % interval", "KS p")
HEAD += ("last loss", "gradient error", "diverged", "skipped", "16-bit nodes", "")
LAYER_HEAD = ("gradients of", "under 2^-24", "under 2^-14", "scaled: under 2^-24")
LAYER_HEAD += ("scaled: under 2^-14",)
MOST_LAYERS = 12
Table = Sequence[Sequence[str]]


def write(directory: Path) -> list[Path]:
    """Writes report.md, report.html and a picture a file of results; returns the files.

    Of the suite's own directory the page docs/convergence.md is brought up to date too.

    Raises:
      ResultError: a file of results cannot be read.
    """
    found = [result for result in results.every(directory) if result["runs"]]
    written = []
    drawings = {}
    for result in found:
        path = directory / (Path(results.file_name(result)).stem + ".svg")
        drawings[path.name] = pictures.picture(result)
        atomic_files.write(path, drawings[path.name])
        written.append(path)
    page = "# Convergence: results\n\n" + markdown(found, "")
    pages = {directory / "report.md": page}
    pages[directory / "report.html"] = web(found, drawings)
    if directory.resolve() == results.DIRECTORY.resolve() and PAGE.exists():
        text = PAGE.read_text(encoding="utf-8")
        inside = markdown(found, "../convergence/results/")
        pages[PAGE] = between_marks(text, inside)
    for path, text in pages.items():
        atomic_files.write(path, text)
    return [*written, *pages]


def markdown(found: Sequence[Mapping[str, Any]], where: str) -> str:
    """All results as Markdown.

    Args:
      found: contents of files of results.
      where: how the page leads to the pictures.
    """
    parts = [lined(summary(found))] if found else ["There are no results yet."]
    for result in found:
        judged = verdict.verdict(result)
        stem = Path(results.file_name(result)).stem
        parts += [f"## {title(result)}", about(result), lined(settings_table(result))]
        classes = classes_table(result)
        parts += [lined(classes)] if classes else []
        parts += [f"{verdict_line(judged)}", f"![{title(result)}]({where}{stem}.svg)"]
        layers = layers_table(result)
        if layers:
            parts += [LAYERS_NOTE, lined(layers)]
    return "\n\n".join(parts) + "\n"


LAYERS_NOTE = (
    "Nonzero gradients of the loss by each layer's result, in the float32 run of seed "
    f"0 after half of its steps, as they are and times {CONSTANT:g}. float16 has no "
    "number under 2^-24, and loses bits of what is under 2^-14. The layers that lose "
    "most come first."
)


def title(result: Mapping[str, Any]) -> str:
    how = "emulated " if result["emulated"] else ""
    quick = ", quick" if result["quick"] else ""
    return f"{result['title']} on {result['data']}, {how}{result['dtype']}{quick}"


def about(result: Mapping[str, Any]) -> str:
    """What was run on what, in a sentence or two."""
    size, rule, machine = result["size"], result["rule"], result["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    better = "higher" if rule["higher"] else "lower"
    model = ", ".join(f"{k} {v}" for k, v in size["model"].items())
    return (
        f"{rule['metric']} ({better} is better), margin {rule['margin']:g}; "
        f"{trivial_model(result)}; "
        f"{result['seeds']} seeds, {size['steps']} steps of {size['batch']}, "
        f"{result['optimizer']}, learning rate {size['rate']:g}; {model}. "
        f"{machine['gpu'] or machine['cpu']}, {machine['cores']} cores, "
        f"{machine['system']}; {versions}."
    )


def trivial_model(result: Mapping[str, Any]) -> str:
    """The trivial model's metric, and whether float32 is better than it."""
    if "trivial" not in result:
        return "no trivial model"
    word = "beats it" if trivial.beats(result) else "**does not beat it**"
    told = result["trivial"]
    return f"trivial model ({told['name']}) {figure(told['value'])}, float32 {word}"


def classes_table(result: Mapping[str, Any]) -> Table:
    """The metric by class and setting, means over seeds; empty if it is of no class."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in result["runs"]:
        for name, value in run.get("classes", {}).items():
            found.setdefault(name, {}).setdefault(run["setting"], []).append(value)
    if not found:
        return []
    settings = list(dict.fromkeys(run["setting"] for run in result["runs"]))
    rows = [
        (name, *(figure(mean(each[s])) if s in each else "–" for s in settings))
        for name, each in found.items()
    ]
    return [(f"{result['rule']['metric']} of", *settings), *rows]


def summary(found: Sequence[Mapping[str, Any]]) -> Table:
    """A line a family: the mean of each setting, and the verdict."""
    head = ("family", "data", "type", "metric", "trivial", *verdict.SETTINGS, "verdict")
    rows: list[Sequence[str]] = [head]
    for result in found:
        judged = verdict.verdict(result)
        means = {row.setting: figure(row.mean) for row in judged.rows}
        how = " emulated" if result["emulated"] else ""
        rows.append(
            (
                result["family"] + (", quick" if result["quick"] else ""),
                result["data"],
                result["dtype"] + how,
                result["rule"]["metric"],
                figure(result.get("trivial", {}).get("value")),
                *(means.get(setting, "–") for setting in verdict.SETTINGS),
                "passes" if judged.passes else "**fails**",
            )
        )
    return rows


def settings_table(result: Mapping[str, Any]) -> Table:
    return [HEAD, *map(_settings_row, verdict.verdict(result).rows)]


def _settings_row(row: verdict.Row) -> Sequence[str]:
    between = "–"
    if row.low is not None and row.high is not None:
        between = f"{row.low:+.3g} … {row.high:+.3g}"
    word = "equal" if not row.reasons else "; ".join(row.reasons)
    return (
        row.setting,
        figure(row.mean),
        f"{row.deviation:.2g}",
        "–" if row.difference is None else f"{row.difference:+.3g}",
        between,
        figure(row.p, ".3f"),
        figure(row.loss),
        figure(row.error, ".3f"),
        str(row.diverged),
        str(row.skipped),
        f"{row.nodes[0]} of {row.nodes[1]}" if row.nodes[1] else "–",
        word if row.difference is not None else "; ".join(row.reasons),
    )


def verdict_line(judged: verdict.Verdict) -> str:
    if judged.passes:
        return "**Passes.**"
    return f"**Fails**: {'; '.join(judged.reasons)}."


def layers_table(result: Mapping[str, Any]) -> Table:
    """Shares of small gradients by layer, unscaled and scaled; empty without any."""
    seen = pictures.looked_at(result)
    layers = (seen["results"] or seen["weights"]) if seen else {}
    if not layers:
        return []
    bounds = (pictures.UNDERFLOW, pictures.SUBNORMAL)
    # What is under 2^e after scaling by S was under 2^e / S.
    shift = CONSTANT.hex().partition("p")[2]
    shares = {
        name: [probe.share_below(held, b - int(s)) for s in (0, shift) for b in bounds]
        for name, held in layers.items()
    }
    ranked = sorted(shares, key=lambda name: shares[name], reverse=True)
    rows = [(n, *(f"{s:.1%}" for s in shares[n])) for n in ranked[:MOST_LAYERS]]
    return [LAYER_HEAD, *rows]


def figure(value: float | None, form: str = ".4g") -> str:
    return "–" if value is None else format(value, form)


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


def web(found: Sequence[Mapping[str, Any]], drawings: Mapping[str, str]) -> str:
    """All results as a page that needs no other file."""
    parts = [tagged(summary(found))] if found else ["<p>There are no results yet.</p>"]
    for result in found:
        judged = verdict.verdict(result)
        drawing = drawings[Path(results.file_name(result)).stem + ".svg"]
        parts += [f"<h2>{html.escape(title(result))}</h2>"]
        parts += [f"<p>{html.escape(about(result).replace('*', ''))}</p>"]
        parts += [tagged(settings_table(result))]
        classes = classes_table(result)
        parts += [tagged(classes)] if classes else []
        parts += [f"<p>{html.escape(verdict_line(judged).replace('*', ''))}</p>"]
        parts += [drawing[drawing.index("<svg") :]]
        layers = layers_table(result)
        if layers:
            parts += [f"<p>{html.escape(LAYERS_NOTE)}</p>", tagged(layers)]
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
