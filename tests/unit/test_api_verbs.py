"""``zoexport.plan``, ``check``, ``report``, ``pack``, ``sign`` and ``federate.simulate``: the verbs as functions."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zoexport
from tests.support.bundles import write_bundle
from tests.support.tiny_models import tiny, tiny_tokenizer
from tests.unit.data.test_bundle_tokenizer import bundle as bundle  # the fixture
from zoexport.cli.federate import federate
from zoexport.cli.main import cli, run
from zoexport.core.errors import BundleError, ConfigError
from zoexport.core.minisign import read_key
from zoexport.run.results import Planned
from zoexport.tools.signing import make_key

GROUPS = {"check": cli.commands["data"], "simulate": federate}
FUNCTIONS = {
    "plan": zoexport.plan,
    "check": zoexport.check,
    "report": zoexport.report,
    "pack": zoexport.pack,
    "simulate": zoexport.federate.simulate,
}
OF_COMMANDS = {
    "assignments",
    "as_json",
    "debug",
    "trust",
    "columns",
    "template",
    "label_column",
    "choices",
}
"""Parameters of commands whose part in Python ``settings``, results, ``Bundle.open`` and ``DataSource`` have."""


def printed(capfd: pytest.CaptureFixture[str], *line: object) -> Any:
    assert run([*map(str, line), "--json"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_the_options_of_their_verbs(name: str) -> None:
    group: Any = GROUPS.get(name, cli)
    options = {one.name: one for one in group.commands[name].params if one.name not in OF_COMMANDS}
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    assert options.keys() == parameters.keys() - {"settings", "progress", "on_round"}
    for key, option in options.items():
        default = parameters[key].default
        if key not in ("target", "prompt") and default is not inspect.Parameter.empty:
            known = option.default if isinstance(option.default, str | int | float) else None
            assert (known or None) == (default or None), key


def test_importing_the_package_loads_no_library() -> None:
    code = (
        "import sys, zoexport; names = dir(zoexport); "
        "zoexport.plan, zoexport.check, zoexport.report, zoexport.pack, zoexport.sign, "
        "zoexport.federate.simulate, zoexport.Planned, zoexport.Simulated; "
        "print([name for name in ('torch', 'executorch', 'coremltools', 'mlx', 'flwr', 'rich', "
        "'transformers', 'pandas', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_plan_returns_what_its_verb_prints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path)
    tiny("llama").save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    found = zoexport.plan(model, settings={"lora_r": 4, "max_length": 32}, ram=600, budget_mb=300)
    line = ("plan", model, "--target", "host", "--set", "lora.r=4", "--set", "max_length=32")
    expected = printed(capfd, *line, "--ram", 600, "--budget-mb", 300)
    assert {**found.as_dict(), "advice": ""} == {**expected, "advice": ""}
    assert found.settings["lora.r"] == 4 and found.ram_mb == 600 and found.options is not None
    plain = zoexport.plan(model, settings={"lora.r": 4, "max_length": 32})
    assert plain.options is plain.kept is None
    assert plain.as_dict() == printed(capfd, *line) | {"advice": plain.advice}
    assert "budget_mb=N" in plain.advice


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget_mb": 0}, r"budget_mb=: found 0"),
        ({"disk_mb_s": 5.0}, r"disk_mb_s=: found no ram=.*Add ram="),
        ({"target": "hots"}, "Did you mean 'host'"),
        ({"method": "prg"}, "Did you mean 'prge'"),
        ({"settings": {"lora_alhpa": 1}}, r"'lora_alhpa'.*lora\.alpha"),
    ],
)
def test_plans_that_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        zoexport.plan("shape:llama3.2-1b", **given)


def test_check_returns_what_its_verb_prints(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "It was", "completion": " great"}, {"prompt": "a"}]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = zoexport.check(data, bundle, limit=5)
    assert (found.examples, found.usable, found.problem_count) == (1, False, 1)
    assert run(["data", "check", str(data), "--bundle", str(bundle), "--json"]) == 1
    assert found.as_dict() == json.loads(capfd.readouterr().out)
    assert zoexport.check(rows[:1], str(bundle), loss="full").usable
    with pytest.raises(BundleError):
        zoexport.check(rows, tmp_path)


def test_pack_and_sign_return_what_their_verbs_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_bundle(tmp_path / "model.bundle")
    make_key(tmp_path / "open.key", password=None)
    signed = zoexport.sign(folder, key="open.key")
    assert signed.as_dict() == printed(capfd, "sign", folder, "--key", "open.key")
    assert signed.signature.is_file() and signed.public_key
    packed = zoexport.pack(zoexport.Bundle.open(folder, trust=["open.pub"]))
    assert packed.file == Path("model.zobundle") and packed.signed
    again = printed(capfd, "pack", folder, "--trust", "open.pub", "--force")
    assert packed.as_dict() == again
    with pytest.raises(ConfigError, match="force=True"):
        zoexport.pack(folder)
    assert zoexport.pack(folder, tmp_path / "other.zobundle").file.is_file()


def test_sign_asks_for_the_password_of_an_encrypted_key(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "model.bundle")
    key = tmp_path / "my.key"
    make_key(key, password="secret")
    with pytest.raises(ConfigError, match=r"an encrypted key.*Pass it with password=\."):
        zoexport.sign(folder, key=key)
    public = read_key(key, lambda: "secret").public.line
    assert zoexport.sign(folder, key=key, password="secret").public_key == public
    assert zoexport.sign(folder, key=key, password=lambda: "secret").public_key == public
    with pytest.raises(ConfigError):
        zoexport.sign(folder, key=key, password="wrong")


def test_report_refuses_prompts_without_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompt=: found no bundle=.*Pass bundle="):
        zoexport.report(tmp_path / "run", tmp_path / "page.html", prompt="Once")
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(ConfigError, match="force=True"):
        zoexport.report([tmp_path / "run"], tmp_path / "page.html")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dp_noise": 1.0}, r"dp_noise=: found no dp_clip=, dp_epsilon="),
        ({"aggregate": "medium"}, r'aggregate="medium": .*Did you mean \'median\''),
    ],
)
def test_simulations_that_are_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    folder = write_bundle(tmp_path / "model.bundle")
    simulate: Callable[..., Any] = zoexport.federate.simulate
    with pytest.raises(ConfigError, match=message):
        simulate(folder, [{"text": "a"}], clients=2, sample=1, rounds=1, **given)


def test_results_reject_unknown_keys() -> None:
    with pytest.raises((TypeError, KeyError)):
        Planned.of({"nonsense": 1})
    assert typing.get_type_hints(Planned)["settings"] == dict[str, Any]
