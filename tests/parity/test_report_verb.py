"""``report`` with a compiled bundle: texts before and after, and what was planned beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.compiled import Compiler
from tests.unit.tools.test_report import Page
from zoexport.api import Bundle
from zoexport.cli.main import run
from zoexport.tools.plan import plan_training

pytestmark = pytest.mark.parity
PROMPTS = ("The film is a warm and funny story", "<b>no</b>")


def test_texts_and_plan(
    compiler: Compiler, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)
    data, state, output = tmp_path / "data.jsonl", tmp_path / "run", tmp_path / "report.html"
    data.write_text("".join(json.dumps({"text": f"good film {i}"}) + "\n" for i in range(6)))
    train = (
        "train",
        path,
        "--data",
        data,
        "--state",
        state,
        "--steps",
        12,
        "--set",
        "learning_rate=0.3",
    )
    assert run([*map(str, train), "--report-to", "jsonl", "--json"]) == 0
    trained = json.loads(capfd.readouterr().out)
    prompts = [part for prompt in PROMPTS for part in ("--prompt", prompt)]
    line = (
        "report",
        state,
        "-o",
        output,
        "--bundle",
        path,
        *prompts,
        "--max-new-tokens",
        8,
        "--json",
    )
    assert run([*map(str, line)]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["runs"][0]["peak_anonymous_mb"] == trained["peak_anonymous_mb"]
    assert result["runs"][0]["step_seconds_median"] == pytest.approx(
        trained["step_seconds_median"], abs=1e-6
    )
    page = Page(output.read_text())
    bundle = Bundle.open(path)
    for prompt in PROMPTS:
        table = dict(page.tables[f"After the prompt {prompt!r}"])
        asked = prompt  # as the runs have learned texts alone
        before = bundle.generate(asked, max_new_tokens=8).text
        after = bundle.generate(asked, state=state, max_new_tokens=8).text
        assert table["before training"] == before and table["after, run A"] == after
        assert before != after, "so much training should show"
    planned = plan_training(
        bundle.manifest["model"]["source"],
        method="mebp",
        target=bundle.target,
        settings=bundle.settings,
        progress=lambda *_: None,
    )
    figures = {name: cells for name, *cells in page.tables["Figures"]}
    measured = [f"{planned['peak_anonymous_mb']:.4g}", f"{trained['peak_anonymous_mb']:.4g}"]
    assert figures["anonymous memory (MB)"] == measured
    files = [*path.rglob("*"), *state.iterdir()]
    size = sum(one.stat().st_size for one in files if one.is_file() and one.name != "manifest.json")
    disk = figures["bundle and state on the disk (MB)"]
    assert disk[0] == f"{planned['disk_mb']:.4g}"
    assert float(disk[1]) == pytest.approx(size / 1e6, rel=1e-2)
