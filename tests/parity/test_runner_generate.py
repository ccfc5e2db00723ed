"""``zoexport-runner generate``: the text of Python's host, on a phone's shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.generation import adapted_state
from zoexport.api import Bundle
from zoexport.core.native import runner_path
from zoexport.session import Sampling

pytestmark = pytest.mark.parity
RUNNER = runner_path()
PROMPT = "The film is a warm and café"


@pytest.fixture(scope="module")
def bundle(compiler: Compiler) -> Path:
    return compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)


@pytest.fixture(scope="module")
def state(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapted_state(bundle, tmp_path_factory.mktemp("runner") / "state")


def ran(bundle: Path, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    line = [RUNNER, "generate", "--bundle", bundle, "--max-new-tokens", "16", *arguments]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def test_texts_are_those_of_python(bundle: Path, state: Path, tmp_path: Path) -> None:
    opened = Bundle.open(bundle)
    opened.export_adapter(tmp_path / "adapter", state=state)
    sampling = Sampling(temperature=1.3, top_k=50, top_p=0.9, min_p=0.001, seed=9)
    drawn = ["--temperature", 1.3, "--top-k", 50, "--top-p", 0.9, "--min-p", 0.001, "--seed", 9]
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([], {}),
        (["--state", state], {"state": state}),
        (["--adapter", tmp_path / "adapter"], {"state": state}),
        (["--state", state, *drawn], {"state": state, "sampling": sampling}),
    ]
    for arguments, options in cases:
        expected = opened.generate(PROMPT, max_new_tokens=16, **options).as_dict()
        found = json.loads(ran(bundle, "--prompt", PROMPT, *arguments, "--json").stdout)
        assert found.keys() == expected.keys()
        for key in ("text", "tokens", "prompt_tokens", "stop"):
            assert found[key] == expected[key]
    stop = expected["text"][4:7]
    options = {"state": state, "sampling": sampling, "stop": ["nothing of it", stop]}
    expected = opened.generate(PROMPT, max_new_tokens=16, **options).as_dict()
    more = ["--stop", "nothing of it", "--stop", stop]
    done = ran(bundle, "--prompt", PROMPT, "--state", state, *drawn, *more)
    assert done.stdout.startswith(expected["text"] + "\n")
    assert "stop: string" in done.stdout


def test_a_message_is_answered(bundle: Path) -> None:
    expected = Bundle.open(bundle).generate(
        [{"role": "user", "content": "Hello"}], max_new_tokens=16
    )
    found = json.loads(ran(bundle, "--prompt", "Hello", "--chat", "--json").stdout)
    assert found["tokens"] == expected.tokens


@pytest.mark.parametrize(
    ("arguments", "part", "code"),
    [
        ([], "--prompt", 2),
        (["--prompt", "a", "--state", "x", "--adapter", "y"], "--adapter", 2),
        (["--prompt", "a", "--adapter", "nowhere"], "nowhere", 1),
        (["--prompt", "a", "--temperature", "-1"], "'temperature'", 2),
        (["--prompt", "a", "--stop", ""], "stop string", 2),
        (["--prompt", "a " * 2000], "generate.context", 2),
    ],
)
def test_what_cannot_be_used(bundle: Path, arguments: list[str], part: str, code: int) -> None:
    done = ran(bundle, *arguments, code=code)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert part in done.stderr
