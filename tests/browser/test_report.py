"""The page of ``report`` in Chromium: no console message, nothing fetched, no sideways scrolling, axe-core's rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.unit.run.test_logging import train
from tests.unit.session.test_validation import Run
from zoexport.cli.main import run as run_verb
from zoexport.session import Validation

pytestmark = [pytest.mark.slow, pytest.mark.network]

PICTURES = os.environ.get("ZOEXPORT_REPORT_PICTURES")
"""A folder for what docs/images has of the page: ZOEXPORT_REPORT_PICTURES=docs/images renews it."""


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section that needs no compiled bundle: two runs, one of them reported, with a change."""
    folder = tmp_path_factory.mktemp("page")
    run = Run(folder, "prge")
    train(run, "jsonl", steps=60)
    other = "a_run_with_a_long_name_that_has_no_place_to_break_it_anywhere"
    for learning_rate, steps in ((0.05, 40), (0.02, 50)):
        with (
            run.open() as session,
            run.dataset(run.data) as data,
            run.dataset(run.held_out) as test,
        ):
            session.attach(folder / other, change_settings=True)
            session.configure(learning_rate=learning_rate)
            session.train(data, steps, validation=Validation(test, 5))
    output = folder / "report.html"
    states = ("run", other)
    arguments = [*(str(folder / state) for state in states), "-o", str(output)]
    assert run_verb(["report", *arguments, "--bundle", str(run.bundle)]) == 0
    return output


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_in_a_browser(
    page_file: Path, browser: Browser, axe: str, width: int, scheme: Any
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    assert asked == [page_file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # What is drawn lies within its chart, and is no smaller than can be read.
    sizes = page.evaluate(
        """[...document.querySelectorAll("svg text")].map(one => {
             const text = one.getBoundingClientRect();
             const chart = one.closest("svg").getBoundingClientRect();
             return [text.left - chart.left, chart.right - text.right, text.height];
           })"""
    )
    assert len(sizes) > 40
    assert min(min(left, right) for left, right, _ in sizes) > -1.5
    assert min(height for *_, height in sizes) >= 9
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 26)" if scheme == "dark" else "rgb(255, 255, 255)")
    strokes = page.evaluate(
        """[...new Set([...document.querySelectorAll("svg path")].map(
             one => getComputedStyle(one).stroke))]"""
    )
    first = "rgb(122, 184, 255)" if scheme == "dark" else "rgb(11, 87, 164)"
    assert first in strokes, strokes
    if PICTURES is not None and (width, scheme) == (1280, "light"):
        page.set_viewport_size({"width": width, "height": 640})
        page.evaluate("[...document.querySelectorAll('h2')][2].scrollIntoView()")
        page.screenshot(path=Path(PICTURES) / "report-wide.png")
    page.evaluate(axe)
    found = page.evaluate("axe.run()")
    assert [(one["id"], [n["html"] for n in one["nodes"]]) for one in found["violations"]] == []
    assert len(found["passes"]) > 15
    assert said == []
    context.close()


def test_axe_and_the_console_are_heard(browser: Browser, axe: str) -> None:
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.set_content("<html><body><img src='data:,'><script>console.error('seen')</script>")
    page.evaluate(axe)
    violations = {one["id"] for one in page.evaluate("axe.run()")["violations"]}
    assert {"image-alt", "html-has-lang"} <= violations
    assert "seen" in said
    page.close()
