"""The page of the demo: the report page of the training step, with both runs above it.

Everything shown is in `result.json`, which `demo` writes beside the page. No run is
started and no file is read here.
"""

from __future__ import annotations

import html
import statistics
import string
from collections.abc import Mapping, Sequence
from typing import Any

from amp.graph_rewrite import figures
from examples import demo_charts
from examples.demo_charts import Axis, Curve

Result = Mapping[str, Any]
Rows = Sequence[tuple[str, str, str]]
# Where the report page is cut open, and the style that its new part needs.
_BODY, _STYLE = "<body>\n", "</style>"

_CSS = """
#demo { max-width: 1500px; margin: 0 auto; padding: 18px 20px 0; }
#demo h1 { font-size: 24px; padding-right: 90px; }
#demo .lead { font-size: 16px; max-width: 62em; margin: 6px 0 0; }
#demo .fine { color: var(--soft); margin: 6px 0 0; max-width: 75em; }
#demo .told { max-width: 62em; font-size: 16px; margin: 14px 0 0; }
#demo .told.warning { border-left: 4px solid var(--high); padding-left: 12px; }
#demo > h2 { font-size: 20px; margin: 34px 0 0; }
#demo > h2 ~ table { margin-top: 10px; }
#theme { position: absolute; top: 18px; right: max(20px, calc((100vw - 1460px) / 2)); }
.tiles, .charts { display: grid; gap: 12px; margin: 16px 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 230px), 1fr)); }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); }
.tile, .chart { margin: 0; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; padding: 12px 14px; min-width: 0; }
.tile b { display: block; font-size: 26px; line-height: 1.25; font-weight: 650; }
.tile b.gain { color: var(--low); }
.chart svg { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { font-size: 12px; fill: var(--soft); }
.chart text.middle { text-anchor: middle; }
.chart text.end { text-anchor: end; }
.chart text.name { font-size: 15px; fill: var(--text); }
.chart .grid { stroke: var(--line); }
.chart polyline, .keys line { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.chart .float32 { stroke: var(--high); }
.chart .mixed { stroke: var(--low); }
.chart .training { stroke-dasharray: 5 5; stroke-width: 1.5; }
.chart .mixed.training { stroke-dashoffset: 5; }
.chart .thin { stroke-width: 1.2; }
.chart rect.float32 { fill: var(--high); stroke: none; }
.chart rect.mixed { fill: var(--low); stroke: none; }
.chart rect.before { fill: var(--card); stroke: none; opacity: .55; }
.keys { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px;
  margin: 4px 0 0; padding: 0; font-size: 13px; color: var(--soft); }
.keys svg { display: inline-block; width: 26px; height: 8px; margin-right: 6px; }
.facts { display: flex; flex-wrap: wrap; gap: 8px 40px; align-items: center; }
.facts > div { flex: 1 1 300px; }
#demo table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
#demo td, #demo th { text-align: right; padding: 5px 0 5px 24px; font-weight: normal;
  border-bottom: 1px solid var(--line); }
#demo th { color: var(--soft); }
#demo td:first-child, #demo th:first-child { text-align: left; padding-left: 0; }
@media (max-width: 760px) {
  #demo { padding: 12px 12px 0; }
  #demo table { width: 100%; }
  #demo td, #demo th { padding-left: 12px; }
  #theme { top: 12px; right: 12px; }
}
"""

_PART = string.Template("""<section id="demo" aria-label="The demo">
<h1>The same training in float32 and in mixed precision</h1>
<p class="lead">$lead</p>
$told
<div class="tiles">
$tiles
</div>
<div class="charts">
$charts
</div>
<div class="facts">
<table>
$rows
</table>
<div>
$lines
</div>
</div>
<h2>What it would be on an A100</h2>
<p class="fine">Predicted by the cost model from the vendor's data sheets. Nothing ran
there. float32 products are TF32 on an A100, as is TensorFlow's default, so 16 bits gain
less over it than over a T4. A step as small as this one mostly waits for kernels to
start.</p>
<table>
$elsewhere
</table>
<h2>What tf-amp did to the training step</h2>
<p class="fine">Every node of its graph with its type, the reason and the costs.
Scopes open at a click.</p>
</section>
""")
_LEAD = (
    "A wide ResNet learns handwritten digits twice, by one plain Keras script: as it "
    "is, and with <code>%s</code> before the command. Nothing else differs. "
    "The runs took turns step by step, so that both met the same machine."
)


def page(result: Result, rows: Rows, report: str) -> str:
    """The text of the page, which needs no other file.

    Args:
      result: what `result.json` holds.
      rows: of the table: label, float32, mixed; the first row is the head.
      report: the report page of the mixed run's training step.

    Raises:
      ValueError: the report page is not built as expected.
    """
    for mark in (_BODY, _STYLE, "<title>"):
        if mark not in report:
            raise ValueError(f"the report page has no {mark!r}")
    told = result["told"]
    warning = ' class="told warning"' if result["warning"] else ' class="told"'
    part = _PART.substitute(
        lead=_LEAD % f"AMP_ENABLE=1{' AMP_EMULATE=1' if result['emulated'] else ''}",
        told=f"<p{warning}>{html.escape(told)}</p>",
        tiles="\n".join(_tile(*one) for one in _tiles(result)),
        charts="\n".join(_charts(result)),
        elsewhere=_elsewhere(result),
        rows="\n".join(_row(row, "td" if n else "th") for n, row in enumerate(rows)),
        lines="\n".join(
            f'<p class="fine">{html.escape(line)}</p>' for line in result["notes"]
        ),
    )
    title = "<title>tf-amp demo · "
    report = report.replace("<title>", title, 1).replace(_BODY, _BODY + part, 1)
    return report.replace(_STYLE, _CSS + _STYLE, 1)


def _tiles(result: Result) -> list[tuple[str, str, str, bool]]:
    """Of each tile the figure, what it is, beside what, and whether it is a gain."""
    a, b, there = result["float32"], result["mixed"], result["elsewhere"]
    far = [one for one in there if one["device"] == there[0]["device"]]
    emulated, gain = result["emulated"], figures.gain(a["step_ms"], b["step_ms"])
    times = f"{a['step_ms']:.1f} → {b['step_ms']:.1f} ms"
    if emulated:
        gain, times = "no gain here", "16 bits are emulated; see above"
    step = "a training step" if emulated else "a training step, measured"
    tiles = [
        (gain, step, times, not result["warning"]),
        (
            f"{b['accuracy']:.1%}",
            "of the test digits right",
            f"float32: {a['accuracy']:.1%}",
            False,
        ),
        (
            f"{b['peak_mib']:,.0f} MiB",
            "peak memory of the process",
            f"float32: {a['peak_mib']:,.0f} MiB",
            False,
        ),
    ]
    what = f"predicted on an {far[-1]['device']}, not measured"
    small, large = (one["job"].partition(":")[0] for one in (far[0], far[-1]))
    loads = f"for {large}; for {small}: {_gain_there(far[0])}"
    tiles.append((_gain_there(far[-1]), what, loads, False))
    return tiles


def _gain_there(far: Result) -> str:
    return figures.gain(far["seconds32"], far["seconds16"])


def _elsewhere(result: Result) -> str:
    """The table of predictions for other devices."""
    rows = [("predicted, not measured", "ms a step", "16 bits are")]
    rows += [
        (
            f"{far['device']}, {far['dtype']}: {far['job']}",
            f"{1e3 * far['seconds32']:.2f} → {1e3 * far['seconds16']:.2f}",
            _gain_there(far),
        )
        for far in result["elsewhere"]
    ]
    return "\n".join(_row(row, "td" if n else "th") for n, row in enumerate(rows))


def _tile(figure: str, what: str, beside: str, gain: bool) -> str:
    texts = [html.escape(text) for text in (figure, what, beside)]
    tag = '<b class="gain">' if gain else "<b>"
    return (
        f'<div class="tile">{tag}{texts[0]}</b>{texts[1]}'
        f'<div class="hint">{texts[2]}</div></div>'
    )


def _row(row: tuple[str, str, str], tag: str) -> str:
    cells = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
    return f"<tr>{cells}</tr>"


def _charts(result: Result) -> list[str]:
    runs = result["runs"]
    loss, right = _lines(runs, "loss"), _lines(runs, "accuracy")
    percent = Axis(_floor(right), 1.0, shown="{:.0%}".format)
    decades = demo_charts.over_log(loss)
    return [
        _chart("Loss", demo_charts.curves("Loss by epoch", "epoch", decades, loss)),
        _chart(
            "Accuracy",
            demo_charts.curves("Accuracy by epoch", "epoch", percent, right),
        ),
        _chart("Time of each step, ms", _steps(runs), _about_steps(result)),
        _chart("Peak memory", _memory(runs), result["memory"]),
    ]


def _chart(title: str, drawn: str, note: str = "") -> str:
    note = f'<p class="fine">{html.escape(note)}</p>' if note else ""
    return (
        f'<figure class="chart"><h3>{html.escape(title)}</h3>\n{drawn}{note}</figure>'
    )


def _lines(runs: Result, name: str) -> list[Curve]:
    kinds = (("training", "", " training"), ("test", "val_", ""))
    return [
        Curve(f"{run}, {kind}", f"{run}{style}", runs[run][f"{prefix}{name}"])
        for kind, prefix, style in kinds
        for run in ("float32", "mixed")
    ]


def _floor(lines: Sequence[Curve]) -> float:
    least = min(value for line in lines for value in line.values)
    return min(0.9, int(least * 10) / 10)


def _steps(runs: Result) -> str:
    lines = [Curve(run, f"{run} thin", runs[run]["steps_ms"]) for run in runs]
    axis = Axis(0.0, _highest(runs))
    return demo_charts.curves("Time of each training step", "step", axis, lines)


def _highest(runs: Result) -> float:
    """The upper end of the times of steps: a few first and late ones lie beyond."""
    halves = [runs[run]["steps_ms"][len(runs[run]["steps_ms"]) // 2 :] for run in runs]
    return max(1.5 * statistics.quantiles(half, n=20)[-1] for half in halves)


def _about_steps(result: Result) -> str:
    runs = result["runs"]
    high = _highest(runs)
    over = [time for run in runs for time in runs[run]["steps_ms"] if time > high]
    parts = ["Times in the table are medians of the second half."]
    if not result["emulated"]:
        first = "In its first steps the mixed run tries its plans and float32 in turn."
        parts.insert(0, first)
    if over:
        longest = f"{max(over) / 1e3:.1f} s"
        parts.append(f"{len(over)} longer steps, up to {longest}, are cut off.")
    return " ".join(parts)


def _memory(runs: Result) -> str:
    rows = [
        Curve(name, name, (run["peak_mib"], run["before_mib"]))
        for name, run in runs.items()
    ]
    return demo_charts.bars("Peak memory of the processes", "MiB", rows)
