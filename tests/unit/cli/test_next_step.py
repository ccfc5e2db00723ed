"""zoexport alone, doctor --fix, and completion for shells."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundles import write_bundle
from tests.support.sessions import open_session
from zoexport.cli.completion import SHELLS, VARIABLE
from zoexport.cli.main import cli, run
from zoexport.core.native import FIX
from zoexport.core.version import __version__
from zoexport.tools import doctor


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(arguments) == 0
    return capfd.readouterr().out.splitlines()


def commands(lines: list[str]) -> list[list[str]]:
    """The commands among what was said, each with a verb that there is."""
    found = [shlex.split(line) for line in lines if line.startswith("    zoexport ")]
    for words in found:
        group: Any = cli
        verb = group.commands[words[1]]
        if words[1] == "adapter":
            verb, words = verb.commands[words[2]], words[1:]
        with verb.make_context("verb", words[2:]):  # every argument is one that it takes
            pass
    return found


def test_alone_it_says_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = said(capfd)
    assert len(lines) <= 8
    assert [words[1] for words in commands(lines)] == ["compile"]
    write_bundle(tmp_path / "my bundle")
    (words,) = commands(said(capfd))
    assert words[1:3] == ["train", "my bundle"]
    with open_session(tmp_path / "my bundle", tmp_path / "run") as session:
        session.save()
    found = commands(said(capfd))
    assert [words[1] for words in found] == ["generate", "eval", "adapter"]
    assert all("my bundle" in words and "run" in words for words in found)
    # A state of another bundle is none of this one, and a file that is no description is passed over.
    shutil.rmtree(tmp_path / "my bundle")
    write_bundle(tmp_path / "other", num_queries=3)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    assert [words[1:3] for words in commands(said(capfd))] == [["train", "other"]]


def test_alone_without_the_native_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZOEXPORT_NATIVE_DIR", str(tmp_path / "none"))
    assert [words[1:] for words in commands(said(capfd))] == [["doctor", "--fix"]]


def check(name: str, status: str, fix: str = "") -> doctor.Check:
    return doctor.Check(name, status, "something", fix)


@pytest.mark.parametrize(
    ("checks", "command"),
    [
        ([check("a", "ok")], None),
        ([check("a", "missing", "Set ZOEXPORT_CACHE to a folder that can be written.")], None),
        (
            [
                check("a", "missing", FIX),
                check("b", "optional", "'zoexport[peft]'"),
            ],
            "make setup",
        ),
        (
            [
                check(
                    "a",
                    "optional",
                    "Get it (on Debian: tool, libtool-dev), and build zoexport again.",
                ),
                check("b", "optional", "Get the driver (on Debian: driver)."),
            ],
            "apt-get install driver libtool-dev tool && make setup",
        ),
        (
            [
                check("a", "optional", "pip install 'zoexport[report]'."),
                check("b", "ok", "pip install 'zoexport[plot]'."),
                check("c", "optional", "Set X, or pip install 'zoexport[android-npu]' (Linux)."),
                check("d", "optional", "pip install 'zoexport[report]'."),
            ],
            f"{shlex.quote(sys.executable)} -m pip install 'zoexport[android-npu,report]'",
        ),
    ],
)
def test_doctor_fix_prints_one_command(
    checks: list[doctor.Check],
    command: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "_packages", lambda: iter(checks))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    for name in ("_vulkan", "_targets", "_places"):
        monkeypatch.setattr(doctor, name, lambda: iter(()))
    for name in ("_native", "_qnn"):
        monkeypatch.setattr(doctor, name, lambda: check("other", "ok"))
    code = int(any(one.status == "missing" for one in checks))
    assert run(["doctor", "--fix"]) == code
    (line,) = capfd.readouterr().out.splitlines()
    assert line == (command or "# nothing is missing that a command installs")
    assert run(["doctor", "--fix", "--json"]) == code
    assert json.loads(capfd.readouterr().out)["command"] == command


def test_doctor_fix_far_from_a_checkout_names_the_wheel(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "checkout", lambda: None)
    monkeypatch.setattr(doctor, "_native", lambda: check("session library", "missing", FIX))
    assert run(["doctor", "--fix"]) == 1
    (line,) = capfd.readouterr().out.splitlines()
    pip = [sys.executable, "-m", "pip", "install", "--force-reinstall"]
    assert shlex.split(line) == [*pip, f"zoexport-{__version__}-*.whl"]


def completed(*words: str) -> set[str]:
    """What bash is offered for the last of the words."""
    line = [sys.executable, "-c", "from zoexport.cli.main import main; main()"]
    given = {"COMP_WORDS": shlex.join(["zoexport", *words]), "COMP_CWORD": str(len(words))}
    environment = {**os.environ, VARIABLE: "bash_complete", **given}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "among"),
    [
        (("com",), ("plain,compile", "plain,completion")),
        (("compile", "m", "--tar"), ("plain,--target",)),
        (("compile", "m", "--target", "ios-"), ("plain,ios-mlx", "plain,ios-coreml")),
        (("plan", "m", "--method", "m"), ("plain,mebp", "plain,mezo")),
        (("compile", "m", "--recipe", "qwen3-0"), ("plain,qwen3-0.6b-mebp",)),
        (("bench", "--shape", "qwen3-0"), ("plain,qwen3-0.6b",)),
        (("compile", "m", "--method", "mebp", "--set", "max_g"), ("plain,max_grad_norm=",)),
        (("compile", "m", "--method", "prge", "--set", "max_g"), ()),
        (("train", "b", "--data", "tr"), ("file,tr",)),
        (("completion", "f"), ("plain,fish",)),
        (("trian", "b", "--d"), ()),
    ],
    ids=" ".join,
)
def test_completion(words: tuple[str, ...], among: tuple[str, ...]) -> None:
    found = completed(*words)
    assert found >= {*among} if among else not found


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_of_shells(shell: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = said(capfd, "completion", shell)
    assert any(f"{VARIABLE}={shell}_complete" in line for line in lines)
    if shell == "bash":
        script = tmp_path / "zoexport"
        script.write_text("\n".join(lines))
        line = f"source {shlex.quote(str(script))}; complete -p zoexport"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
        assert "_zoexport_completion" in done.stdout, done.stderr
