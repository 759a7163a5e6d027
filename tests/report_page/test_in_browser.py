"""The report page in headless Chromium: what a reader sees, and how soon."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import demo_results
import pytest
from report_pages import large_report

from amp.graph_rewrite import figures
from amp.graph_rewrite.decisions import Decision
from examples import demo

pytestmark = [pytest.mark.slow, pytest.mark.processes]
api = pytest.importorskip("playwright.sync_api", reason="no playwright to drive it")
NODES = 20_000
REPORT = large_report(NODES)
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(names)} is installed")
    with api.sync_playwright() as playwright:
        # Its sandbox refuses to run as root, as tests in a container do.
        chromium = playwright.chromium
        started = chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    target = tmp_path_factory.mktemp("page") / "report.html"
    target.write_text(REPORT.to_html(), encoding="utf-8")
    return target


@pytest.fixture
def opened(browser: Any, path: pathlib.Path) -> Iterator[Any]:
    """Opens the page offline; in the end no script may have failed."""
    contexts, errors = [], []

    def open_page(file: pathlib.Path = path, **options: Any) -> Any:
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda one: seen(one.url, file))
        page.on("console", lambda one: errors.append(one.text) if bad(one) else None)
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    def seen(url: str, file: pathlib.Path) -> None:
        if url != file.as_uri():
            errors.append(f"asked for {url}")

    def bad(message: Any) -> bool:
        return message.type in ("error", "warning")

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


def visible(page: Any) -> list[str]:
    script = "ampReport.graph.cy.nodes().map(node => node.data('label'))"
    labels: list[str] = page.evaluate(script)
    return labels


def tap(page: Any, label: str) -> None:
    """Clicks the box with a label, wherever it is drawn."""
    script = """label => {
      const cy = ampReport.graph.cy;
      const node = cy.nodes().filter(one => one.data('label') === label)[0];
      if (node.renderedHeight() < 8) cy.zoom(1);
      cy.center(node);
      return node.renderedPosition();
    }"""
    page.locator("#graph").scroll_into_view_if_needed()
    page.evaluate(FRAMES)  # Cytoscape learns of the scrolling in the next frame
    page.locator("#graph").click(position=page.evaluate(script, label))


def test_the_first_view_is_there_in_two_seconds_and_is_folded(opened: Any) -> None:
    # The best of three: what else the machine does only ever delays it.
    pages = [opened() for _ in range(3)]
    ready = "Number(document.documentElement.dataset.ready)"
    assert min(page.evaluate(ready) for page in pages) < 2000
    assert len(visible(pages[0])) < 50
    assert pages[0].locator(".row").count() < 60  # of 20,000


def test_scopes_unfold_at_a_click_and_fold_again(opened: Any) -> None:
    page = opened(viewport={"width": 1300, "height": 1000})
    folded = visible(page)  # but for "model", which holds nearly all there is
    assert {"x", "model"} < set(folded)
    tap(page, next(label for label in folded if label.startswith("block")))
    unfolded = visible(page)
    assert len(unfolded) > len(folded)
    page.click("#fold-scope")
    assert sorted(visible(page)) == sorted(folded)
    page.click("#fold")
    assert len(visible(page)) <= len(unfolded)


def test_a_search_shows_the_node_its_reason_and_the_chain_of_causes(
    opened: Any,
) -> None:
    page = opened()
    page.fill("#search", "layer_1234/norm/mul")
    page.keyboard.press("Enter")
    details = page.locator("#details")
    assert "model/block_123/layer_1234/norm/mul" in details.inner_text()
    chain = page.locator("#details .chain button").all_inner_texts()
    ends = ["norm/mul", "norm/add", "norm/eps"]
    assert chain == [f"model/block_123/layer_1234/{name}" for name in ends]
    assert {"eps", "mul"} <= set(visible(page))
    assert page.evaluate("ampReport.graph.cy.nodes('.chosen').data('label')") == "mul"
    edges = page.evaluate("ampReport.graph.cy.edges('.chosen').length")
    assert edges == 3  # two that it reads, and its reader
    page.locator("#details .chain button").nth(2).click()
    assert page.evaluate("ampReport.graph.cy.nodes('.chosen').data('label')") == "eps"


def test_a_node_that_is_clicked_in_the_graph_says_why(opened: Any) -> None:
    page = opened(viewport={"width": 1300, "height": 1000})
    page.fill("#search", "layer_7/Relu")
    page.keyboard.press("Enter")
    tap(page, "BiasAdd")
    shown = page.locator("#details").inner_text()
    assert "layer_7/BiasAdd" in shown
    assert "arithmetic beside 16-bit nodes" in shown


def test_however_much_is_opened_the_drawing_stays_small(opened: Any) -> None:
    page = opened()
    for layer in range(0, 2200, 100):
        page.fill("#search", f"layer_{layer}/MatMul")
        page.keyboard.press("Enter")
        assert f"layer_{layer}/MatMul" in page.locator("#details").inner_text()
    assert len(visible(page)) < 500


@pytest.mark.parametrize("width", [390, 1300])
def test_the_plans_that_raced_are_listed_with_what_they_make(
    opened: Any, width: int
) -> None:
    page = opened(viewport={**PHONE, "width": width})
    won, other = page.locator(".full tr").all()[1:]
    assert "best" in (won.get_attribute("class") or "")
    cells = [cell.inner_text() for cell in won.locator("td").all()]
    assert cells[:2] == ["float32", "won"]
    assert cells[4:] == ["4", "0", "0", "3.0 MiB"]
    cells = [cell.inner_text() for cell in other.locator("td").all()]
    assert cells[1] == "not made, the race was over"
    assert cells[5:] == ["–"] * 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_node_says_what_would_change_it_and_where_it_was_built(
    browser: Any, tmp_path: pathlib.Path
) -> None:
    nodes = (
        Decision("x", "Placeholder", "float32", "unlisted", "x", change="held"),
        Decision("eps", "Const", "float32", "range", "eps", source="net.py:7"),
        Decision("add", "AddV2", "float32", "range", "eps", sizes="4, 4 -> 4"),
    )
    report = dataclasses.replace(
        REPORT, decisions=nodes, source_text={"net.py:7": "x + 1e-8"}
    )
    (tmp_path / "page.html").write_text(report.to_html(), encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    for node, texts in (
        ("x", ("its readers cast", "Placeholder")),
        ("eps", ("net.py:7", "x + 1e-8", "AMP_DTYPE=bfloat16")),
        ("add", ("4, 4 -> 4", "AMP_DTYPE=bfloat16", "Chain of causes".upper())),
    ):
        page.fill("#search", node)
        page.keyboard.press("Enter")
        shown = page.locator("#details").inner_text()
        for text in texts:
            assert text in shown
    page.close()


def test_the_table_sorts_and_filters_all_nodes(opened: Any) -> None:
    page = opened()
    time = figures.time(max(one.seconds for one in REPORT.decisions))
    assert page.locator(".row").first.locator("span").last.inner_text() == time
    page.select_option("#filter-rule", "cancels")
    kept = [one for one in REPORT.decisions if one.rule == "cancels"]
    assert page.inner_text("#count") == f"{len(kept):,} of {NODES:,}"
    page.fill("#filter", "layer_1234/")
    assert page.inner_text("#count") == f"2 of {NODES:,}"
    page.locator("#columns button").first.click()
    names = page.locator(".row > span:first-child").all_inner_texts()
    assert [name.rpartition("/")[2] for name in names] == ["Mean", "Sub"]
    page.locator(".row").first.click()
    assert "layer_1234/norm/Mean" in page.locator("#details").inner_text()


def test_the_last_row_can_be_reached(opened: Any) -> None:
    page = opened()
    page.locator("#columns button").first.click()
    page.evaluate("document.getElementById('table').scrollTop = 1e9")
    last = max(one.node for one in REPORT.decisions)
    page.wait_for_function(
        "name => [...document.querySelectorAll('.row > span:first-child')]"
        ".some(cell => cell.textContent.includes(name))",
        arg=last,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_readers_and_can_be_switched(opened: Any, scheme: str) -> None:
    page = opened(color_scheme=scheme)
    script = "getComputedStyle(document.body).backgroundColor"
    theme = "document.documentElement.dataset.theme"
    before = page.evaluate(script)
    assert page.evaluate(theme) == scheme
    page.click("#theme")
    assert page.evaluate(theme) != scheme
    assert page.evaluate(script) != before


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_nothing_is_wider_than_the_screen(opened: Any, width: int) -> None:
    page = opened(viewport={**PHONE, "width": width}, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.fill("#search", "layer_12/norm/mul")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#details .chain").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1440])
def test_the_demos_page_fits_the_screen_and_has_the_graph_below(
    opened: Any, width: int, scheme: str, tmp_path: pathlib.Path
) -> None:
    demo.show(tmp_path, demo_results.result(), large_report(200).to_html())
    screen = {"width": width, "height": 844}
    page = opened(tmp_path / "report.html", viewport=screen, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#demo .chart polyline").count() == 10
    colours = {
        page.locator(f"#demo polyline.{run}").first.evaluate(
            "line => getComputedStyle(line).stroke"
        )
        for run in ("float32", "mixed")
    }
    assert len(colours) == 2
    head, theme = (page.locator(one).bounding_box() for one in ("#demo h1", "#theme"))
    assert theme["y"] < head["y"] + head["height"]  # the switch stands at the top
    assert len(visible(page)) > 3
