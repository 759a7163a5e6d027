"""`page`: makes one self-contained HTML file of a report and the figures beside it.

Nothing of a report is known here but that it is data for JSON; what is shown, and how,
is in `assets/`: a template, a style sheet, scripts, and in `vendor/` graph libraries
with their licences (`make vendor` fetches them). The page loads nothing; its Content
Security Policy forbids it to.
"""

from __future__ import annotations

import functools
import html
import json
from collections.abc import Mapping
from importlib import resources

# In the order in which they run.
_SCRIPTS = (
    "vendor/cytoscape.min.js",
    "vendor/dagre.min.js",
    "format.js",
    "scopes.js",
    "layout.js",
    "graph.js",
    "summary.js",
    "table.js",
    "details.js",
    "main.js",
)


def page(title: str, data: Mapping[str, object]) -> str:
    """The text of the page.

    Args:
      title: what the browser's tab says.
      data: what the scripts show: `report` (as `Report.to_json` has it),
        `rules` (their meaning by their name), `causes` (for each decision the place of
        the decision that its cause names, or -1) and `changes` (by rule, what would
        give a node another type).
    """
    # No "<" in it: a node's name must not end the element that the data is in.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    before, after = _frame().split("@DATA@")
    return before.replace("@TITLE@", html.escape(title)) + text + after


@functools.cache
def _frame() -> str:
    """The page but for its title and data."""
    scripts = "\n".join(f"<script>\n{_asset(name)}\n</script>" for name in _SCRIPTS)
    style = f"<style>\n{_asset('page.css')}\n</style>"
    return _asset("page.html").replace("@STYLE@", style).replace("@SCRIPTS@", scripts)


def _asset(name: str) -> str:
    assets = resources.files(__package__) / "assets"
    return (assets / name).read_text("utf-8")
