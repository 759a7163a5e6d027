"""How Sphinx builds the site of docs/ (`make docs`): its pages, theme and links.

Settings only; what pages say stands in the pages.
"""

from __future__ import annotations

import os
import re
from typing import Any

project = "tf-amp"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = project
html_copy_source = False
html_show_copyright = False  # there is no line of one
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_heading_anchors = 3  # pages link to headings, as on a repository's own pages

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)[^)]*\)")


def without_links_out(app: Any, page: str, source: list[str]) -> None:
    """Leaves the text of links to files beside docs/, which are not on the site."""

    def shown(link: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join(os.path.dirname(page), link[2]))
        return link[1] if path.startswith("..") else link[0]

    source[0] = LINK.sub(shown, source[0])


def setup(app: Any) -> None:
    """Called by Sphinx at the start of a build."""
    app.connect("source-read", without_links_out)
