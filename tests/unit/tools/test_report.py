"""What the page of ``report`` says of runs of both kinds, and that nothing from a file is markup in it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.signed import make_keys, sign
from tests.unit.run.test_logging import rows, train
from tests.unit.session.test_validation import Run
from zoexport.cli.main import run as run_verb
from zoexport.session import describe_state
from zoexport.tools.charts import DARK, LIGHT
from zoexport.tools.report import read_run, thinned

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Tags, attributes, text, and the tables as rows of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}
        self._open: list[str] = []
        self._caption = ""
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "caption":
            self._caption = ""
        elif tag == "tr":
            self.tables.setdefault(self._caption, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._caption][-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if "caption" in self._open:
            self._caption += data
        elif self._open and self._open[-1] in ("td", "th"):
            self.tables[self._caption][-1][-1] += data


@pytest.fixture(params=["prge", "mebp"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return Run(tmp_path, request.param)


def call(capfd: pytest.CaptureFixture[str], code: int, *arguments: object) -> Any:
    assert run_verb(["report", *map(str, arguments), "--json"]) == code
    return json.loads(capfd.readouterr().out)


def test_the_page_says_what_state_and_report_have(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    train(run, "jsonl")
    state, output = run.folder / "run", run.folder / "report.html"
    result = call(capfd, 0, state, "-o", output)
    page = Page(output.read_text())
    described = describe_state(state)
    measured = [row for row in rows(run.folder / "run.report.jsonl") if row["kind"] == "step"]
    (one,) = result["runs"]
    assert (one["state"], one["steps"]) == (str(state), 10)
    assert one["best_step"] == described["validation"]["best_step"]
    assert one["peak_anonymous_mb"] == max(row["anonymous_mb"] for row in measured)
    assert result["bytes"] == output.stat().st_size < 200_000

    facts = dict(page.tables["Facts of each run"])
    assert facts["method"] == run.method and facts["steps"] == "10"
    assert facts["loss of the first step"] == f"{measured[0]['loss']:.4g}"
    assert facts["loss of the last step"] == f"{measured[-1]['loss']:.4g}"
    settings = dict(page.tables["Settings of each run"])
    assert settings.pop("setting") == "A"
    assert settings == {key: str(value) for key, value in described["settings"].items()}
    evaluations = page.tables["Evaluations of run A"]
    found = described["validation"]["evaluations"]
    assert [row[0].split()[0] for row in evaluations[1:]] == [str(one["step"]) for one in found]
    assert [row[1] for row in evaluations[1:]] == [f"{one['loss']:.4g}" for one in found]
    marked = [row[0] for row in evaluations if "best" in row[0]]
    assert marked == [f"{described['validation']['best_step']} (best)"]
    labels = [a["aria-label"] or "" for tag, a in page.tags if tag == "svg"]
    assert [label.split(" by step")[0] for label in labels] == [
        "Training loss",
        "Held-out loss",
        "Time of a step",
        "Anonymous memory after a step",
    ]
    lowest = min(found[1:], key=lambda one: one["loss"])
    assert f"lowest {lowest['loss']:.4g} at step {lowest['step']}" in labels[1]


def test_what_nobody_recorded_is_left_out(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    run.train("run", 5, held_out=False)
    output = run.folder / "report.html"
    result = call(capfd, 0, run.folder / "run", "-o", output)
    assert result["runs"][0]["step_seconds_median"] is None
    page = Page(output.read_text())
    assert "Time and memory" not in page.text and "Held-out" not in page.text
    assert "anonymous memory after a step, at most (MB)" not in dict(
        page.tables["Facts of each run"]
    )
    assert len([tag for tag, _ in page.tags if tag == "svg"]) == 1
    # A report of another run beside it counts for nothing.
    head = {"kind": "run", "bundle_id": "0" * 64, "seed": 7}
    row = {
        "kind": "step",
        "step": 1,
        "loss": 1.0,
        "learning_rate": 1.0,
        "seconds": 5.0,
        "anonymous_mb": 9.0,
    }
    (run.folder / "run.report.jsonl").write_text(f"{json.dumps(head)}\n{json.dumps(row)}\n")
    assert read_run(run.folder / "run").seconds == {}
    # Nor do steps with another loss, as of a state that was removed.
    found = read_run(run.folder / "run")
    head = {**head, "bundle_id": found.found["bundle_id"], "seed": found.found["seed"]}
    mine = {**row, "step": 2, "loss": found.losses[1]}
    lines = "".join(json.dumps(line) + "\n" for line in (head, row, mine))
    (run.folder / "run.report.jsonl").write_text(lines)
    assert read_run(run.folder / "run").seconds == {2: 5.0}


def test_several_runs_have_their_differences_marked(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    run.train("first", 6, every=2)
    with run.open() as session, run.dataset(run.data) as data:
        session.attach(run.folder / "second")
        session.configure(learning_rate=0.01)
        session.train(data, 4)
    output = run.folder / "report.html"
    call(capfd, 0, run.folder / "first", run.folder / "second", "-o", output)
    page = Page(output.read_text())
    table = page.tables["Settings of each run"]
    assert table[0] == ["setting", "A", "B"]
    marked = [row[0] for row in table if row[0].endswith(" (differs)")]
    assert marked == ["learning_rate (differs)"]
    assert next(row for row in table if row[0] == "learning_rate (differs)")[2] == str(
        describe_state(run.folder / "second")["settings"]["learning_rate"]
    )
    assert len([a for tag, a in page.tags if tag == "tr" and a.get("class") == "differs"]) == 1
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_nothing_of_a_strangers_state_is_markup(
    run: Run, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}$\\frac{"
    state = run.folder / "<svg onload=alert(3)>$\\frac{_<script>alert(4)<\u2215script>"
    run.train(state.name, 4, every=2)

    def strange(path: Path, bundle: Path | None) -> dict[str, Any]:
        # More than the session lets through, which checks what it knows.
        found = describe_state(path)
        texts = dict.fromkeys(("method", "bundle_id", "seed", "damage"), hostile)
        settings = {**found["settings"], "lr_scheduler_type": hostile, hostile: hostile}
        changes = [{"step": hostile, "key": hostile, "old": hostile, "new": hostile}]
        data = {"examples": hostile, "sha256": hostile}
        return {**found, **texts, "settings": settings, "changes": changes, "data": data}

    monkeypatch.setattr("zoexport.tools.report.describe_state", strange)
    output = run.folder / "report.html"
    call(capfd, 0, state, "-o", output)
    page = Page(output.read_text())
    _check_harmless(page)
    assert page.text.count(hostile) >= 8 and str(state) in page.text
    assert dict(page.tables["Settings of each run"])[hostile] == hostile


def _check_harmless(page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in ("script", "img", "iframe", "link", "object", "foreignobject"), tag
        assert not any(name.startswith("on") for name in attributes), attributes
        for name, value in attributes.items():
            if name.endswith(("href", "src")):
                assert (value or "").startswith("#")
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_what_cannot_be_reported_is_one_message(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report.html"
    assert "no state.json" in call(capfd, 1, tmp_path, "-o", output)["error"]["found"]
    run.train("run", 2, held_out=False)
    other = Run(tmp_path / "other", "mebp" if run.method == "prge" else "prge")
    error = call(capfd, 1, run.folder / "run", "-o", output, "--bundle", other.bundle)["error"]
    assert "the state of bundle" in error["found"]
    error = call(capfd, 2, run.folder / "run", "-o", output, "--prompt", "no")["error"]
    assert error["found"] == "no --bundle"
    assert not output.exists()
    output.write_text("mine")
    error = call(capfd, 2, run.folder / "run", "-o", output)["error"]
    assert "--force" in error["fix"] and output.read_text() == "mine"
    call(capfd, 0, run.folder / "run", "-o", output, "--force")
    assert output.read_text().startswith("<!DOCTYPE html>")
    assert call(capfd, 2, *[run.folder / "run"] * 25, "-o", output, "--force")["error"]
    assert call(capfd, 2, "-o", output)["error"]


def test_a_bundle_that_no_trusted_key_signed_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, keys = Run(tmp_path / "made", "prge"), make_keys(tmp_path / "keys")
    run.train("run", 2, held_out=False)
    state, output = run.folder / "run", tmp_path / "report.html"
    line = (state, "-o", output, "--bundle", run.bundle, "--trust", keys.pub)
    assert "no signature" in call(capfd, 1, *line)["error"]["found"]
    assert not output.exists()
    sign(run.bundle, keys.secret)
    call(capfd, 0, *line)
    # What it was compiled from is not there, which the page says.
    assert "Nothing was planned: " in Page(output.read_text()).text


def test_a_long_curve_has_at_most_400_points() -> None:
    points = thinned([(float(n), float(n % 2)) for n in range(1, 1001)])
    assert len(points) == 250
    assert points[0] == (2.5, 0.5) and points[-1] == (998.5, 0.5)
    assert thinned([(1.0, 2.0)] * 400) == [(1.0, 2.0)] * 400


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colours", "back"), [(LIGHT, "#ffffff"), (DARK, "#14171a")])
def test_curves_stand_out_from_the_page(colours: tuple[str, ...], back: str) -> None:
    for colour in colours:
        first, second = sorted((_luminance(colour), _luminance(back)), reverse=True)
        assert (first + 0.05) / (second + 0.05) >= 4.5, colour
