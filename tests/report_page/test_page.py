"""`page`: one file that holds the report as its JSON has it, and loads nothing."""

from __future__ import annotations

import json
import math
import pathlib
import re
from typing import Any

import pytest
from report_pages import embedded, large_report

from amp.graph_rewrite import decisions
from amp.graph_rewrite.report import Report
from amp.report_page import page

VENDOR = pathlib.Path(page.__file__).parent / "assets/vendor"


def test_the_page_holds_the_report_as_its_json_has_it() -> None:
    report = large_report(300)
    assert embedded(report.to_html())["report"] == json.loads(report.to_json())


def test_the_sums_on_the_page_are_those_of_its_nodes() -> None:
    report = large_report(300)
    data = embedded(report.to_html())
    read = Report.from_json(json.dumps(data["report"]))
    told: dict[str, Any] = data["report"]["summary"]
    assert sum(told["nodes"].values()) == len(read.decisions)
    for dtype, size in told["bytes"].items():
        wide = 4 if dtype == "float32" else 2
        nodes = [one for one in read.decisions if one.dtype == dtype]
        assert told["nodes"][dtype] == len(nodes)
        assert size == wide * sum(one.elements for one in nodes)
    most = sorted((one.seconds for one in read.decisions), reverse=True)[:5]
    assert [read.decisions[place].seconds for place in told["costliest"]] == most
    for kept in told["kept"]:
        nodes = [one for one in read.decisions if one.rule == kept["rule"]]
        assert kept["nodes"] == len(nodes)
        # Added one by one there; since Python 3.12 `sum` corrects its rounding.
        rounding = len(nodes) * 2.0**-53
        exact = math.fsum(one.seconds32 for one in nodes)
        assert kept["seconds"] == pytest.approx(exact, rel=rounding, abs=0.0)


def test_each_cause_on_the_page_is_the_place_of_the_node_it_names() -> None:
    report = large_report(300)
    causes = embedded(report.to_html())["causes"]
    assert [None if place < 0 else place for place in causes] == decisions.causes(
        report.decisions
    )
    assert any(place >= 0 for place in causes)


def test_a_name_cannot_end_the_element_that_the_data_is_in() -> None:
    name = "</script><script>alert(1)</script><!--"
    text = page.page(name, {"name": name})
    assert embedded(text) == {"name": name}
    assert name not in text


def test_the_page_asks_for_nothing_and_may_not() -> None:
    text = large_report(30).to_html()
    assert "default-src 'none'" in text
    assert not re.findall(r"<(?:link|img|iframe|script)[^>]*(?:src|href)=", text)
    assert "@import" not in text
    assert not re.findall(r"@(?:TITLE|STYLE|SCRIPTS|DATA)@", text)


def test_every_library_is_there_with_its_licence_also_in_the_page() -> None:
    text = large_report(30).to_html()
    for library in VENDOR.glob("*.min.js"):
        name = library.name.removesuffix(".min.js")
        licence = (VENDOR / f"{name}.LICENSE.txt").read_text()
        owner = next(line for line in licence.splitlines() if "Copyright" in line)
        assert owner.split(",")[0].split(") ", 1)[1] in library.read_text()
        assert library.read_text().strip() in text
    assert {one.name for one in VENDOR.glob("*.min.js")} == {
        "cytoscape.min.js",
        "dagre.min.js",
    }
