"""The command line: help, one message an error, exit codes, the shape of --json, what is imported when."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundles import write_bundle
from tests.support.tiny_models import save_tiny
from zoexport.cli.keys import entries
from zoexport.cli.main import cli, run
from zoexport.core.errors import BundleError, Problem
from zoexport.core.version import __version__
from zoexport.run import results
from zoexport.tools import doctor

HEAVY = ("torch", "executorch", "transformers", "coremltools", "mlx", "flwr")
VERBS = [
    ["finetune"],
    ["plan"],
    ["sensitivity"],
    ["compile"],
    ["data", "check"],
    ["train"],
    ["eval"],
    ["report"],
    ["generate"],
    ["chat"],
    ["pack"],
    ["parity"],
    ["unpack"],
    ["bench"],
    ["adapter", "export"],
    ["adapter", "import"],
    ["device", "list"],
    ["device", "push"],
    ["device", "train"],
    ["device", "pull"],
    ["device", "generate"],
    ["device", "parity"],
    ["device", "runner"],
    ["federate", "server"],
    ["federate", "client"],
    ["federate", "simulate"],
    ["inspect"],
    ["sign"],
    ["doctor"],
    ["completion"],
    ["methods"],
    ["recipes"],
    ["targets"],
]


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zoexport", *arguments], capture_output=True, text=True, **options
    )


def failure(capfd: pytest.CaptureFixture[str], arguments: list[str], code: int) -> str:
    """The one message of a call that must fail with ``code`` and print nothing else."""
    assert run(arguments) == code
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert len(lines) == 1, err
    prefix = "" if code == 130 else "error: "
    assert lines[0].startswith(prefix)
    if "--json" in arguments:
        (line,) = out.splitlines()
        content = json.loads(line)
        assert list(content) == ["error"]
        assert set(content["error"]) >= {"where", "found", "expected", "fix", "message"}
        assert content["error"]["exit_code"] == code
        assert lines[0] == prefix + content["error"]["message"]
    else:
        assert out == ""
    return lines[0]


# ---- help and version -------------------------------------------------------------------------------------------


def test_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"zoexport {__version__}\n", "")


def test_help_lists_every_verb(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capfd.readouterr().out
    assert sorted(cli.commands) == sorted({verb[0] for verb in VERBS})
    for verb in cli.commands:
        assert f"\n  {verb} " in text


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_explains_itself(verb: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*verb, "--help"]) == 0
    text = capfd.readouterr().out
    if verb != ["completion"]:  # a script, which no program reads
        assert "--json" in text
        assert "--debug" in text
    if verb[0] not in ("doctor", "methods", "recipes", "targets"):
        assert f"  zoexport {' '.join(verb)} " in text, "an example"


@pytest.mark.parametrize(
    "kind",
    [
        results.Trained,
        results.Evaluated,
        results.Generated,
        results.Parity,
        results.Exported,
        results.Imported,
    ],
)
def test_every_field_of_a_result_is_described(kind: type) -> None:
    described = [key for keys, _ in entries(kind) for key in keys.split(", ")]
    assert sorted(described) == sorted(field.name for field in dataclasses.fields(kind))


@pytest.mark.parametrize(
    "verb",
    [one for one in VERBS if one not in (["completion"], ["federate", "client"])],
    ids=" ".join,
)
def test_help_lists_the_keys_of_json(verb: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*verb, "--help"]) == 0
    text = capfd.readouterr().out
    assert "\n  JSON keys" in text
    assert max(map(len, text.partition("JSON keys")[2].splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("server", "B", "--nodes", "N", "--ca", "A", "--certificate", "C", "--key", "K"),
            "found no such folder",
        ),
        (("simulate", "B", "--data", "D", "--clients", "3"), "found no such folder"),
        (
            ("simulate", "B", "--data", "D", "--clients", "3", "--aggregate", "medain"),
            "Did you mean 'median'?",
        ),
        (
            ("simulate", "B", "--data", "D", "--clients", "3", "--dp-noise", "8"),
            "--dp-noise: found no --dp-clip, --dp-epsilon",
        ),
    ],
)
def test_federate_says_what_is_missing(
    tmp_path: Path, arguments: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [str(tmp_path / one) if len(one) == 1 and one.isalpha() else one for one in arguments]
    if "no such folder" not in message:
        write_bundle(tmp_path / "B")
    state = tmp_path / "state"
    shared = ["--state", str(state), "--sample", "2", "--rounds", "1"]
    assert run(["federate", *given, *shared]) in (1, 2)
    assert message in capfd.readouterr().err
    assert not state.exists()


def test_help_and_import_load_no_compiler_and_are_fast() -> None:
    probe = (
        "import sys, zoexport\n"
        "from zoexport.cli.main import run\n"
        "assert run(['--help']) == 0 and run(['train', '--help']) == 0\n"
        f"loaded = [name for name in {HEAVY!r} + ('rich', 'numpy') if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # About 0.1 s; torch alone would take longer than this on any machine.
    assert time.monotonic() - start < 2


def test_the_process_that_trains_loads_no_torch() -> None:
    probe = (
        "import sys, zoexport.run.train, zoexport.session, zoexport.data, zoexport.cli.main\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("json_flag", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["adapter", "export"], 2, ["missing argument", "BUNDLE"]),
        (["trian", "x"], 2, ["trian", "Did you mean 'train'?"]),
        (["adapter", "exprt"], 2, ["Did you mean 'export'?"]),
        (["train", "b"], 2, ["missing option", "--data", "zoexport train --help"]),
        (["train", "b", "--data", "d", "--state", "s", "--steps", "0"], 2, ["--steps", "x>=1"]),
        (["compile", "m", "--tagret", "host"], 2, ["--tagret", "--target"]),
        (["methods", "prg"], 2, ["method 'prg'", "Did you mean 'prge'?"]),
        (["recipes", "any-meb"], 2, ["Did you mean 'any-mebp'?"]),
        (["compile", "m", "--target", "android"], 2, ["Did you mean 'android-cpu'?"]),
        (["compile", "m", "--target", "hots"], 2, ["target 'hots'", "Did you mean 'host'?"]),
        (
            ["compile", "m", "--target", "host", "--method", "prg"],
            2,
            ["method 'prg'", "Did you mean 'prge'?"],
        ),
        (
            ["compile", "m", "--target", "host", "--set", "lora.rnak=4"],
            2,
            ["setting 'lora.rnak'", "Did you mean 'lora.r'?"],
        ),
        (["compile", "m", "--target", "host", "--set", "lora.r"], 2, ["no key=value"]),
        (["compile", "m", "--target", "host", "--set", "lora.r=0"], 2, ["'0'", "at least 1"]),
        (["compile", "m", "--target", "host", "--recipe", "none.yaml"], 2, ["recipe none.yaml"]),
        (
            ["compile", "m", "--target", "host", "--recipe", "any-megp"],
            2,
            ["Did you mean 'any-mebp'?"],
        ),
        (["inspect", "nowhere"], 1, ["nowhere: found no such folder; expected a bundle"]),
        (
            ["eval", "nowhere", "--data", "d"],
            1,
            ["nowhere: found no such folder; expected a bundle"],
        ),
        (["parity", "nowhere"], 1, ["nowhere: found no such folder; expected a bundle"]),
        (["adapter", "export", "nowhere", "-o", "o"], 1, ["nowhere"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_failure_is_one_message_and_writes_nothing(
    arguments: list[str],
    code: int,
    parts: list[str],
    json_flag: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    message = failure(capfd, [*arguments, *json_flag], code)
    for part in parts:
        assert part in message
    assert list(tmp_path.iterdir()) == []


def test_a_group_without_a_verb_names_its_verbs(capfd: pytest.CaptureFixture[str]) -> None:
    message = failure(capfd, ["adapter"], 2)
    assert "no verb" in message
    assert "export" in message


def test_several_bad_settings_are_reported_together(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", "m", "--target", "host", "--set", "num_queries=0", "--set", "epsilon=1"]
    message = failure(capfd, arguments, 2)
    assert "num_queries" in message
    assert "'epsilon'" in message


def test_a_defect_is_one_line_and_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a wire came loose\nand more")

    monkeypatch.setattr("zoexport.session.Bundle.open", broken)
    message = failure(capfd, ["inspect", "b"], 70)
    assert "RuntimeError: a wire came loose" in message
    assert "--debug" in message
    assert run(["inspect", "b", "--debug"]) == 70
    err = capfd.readouterr().err
    assert "Traceback" in err
    assert "in broken" in err


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (OSError(28, "No space left on device", "/tmp/x"), "file /tmp/x: found No space left"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_what_the_machine_lacks_is_no_defect(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    found: str,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("zoexport.session.Bundle.open", broken)
    assert found in failure(capfd, ["inspect", "b"], 1)


def test_what_a_pass_raises_names_model_and_phase(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(graph: Any) -> Any:
        raise AssertionError("aten.copy_.default\n%copy_ : [num_users=1] = call_function")

    monkeypatch.setattr("zoexport.passes.cleanup.cleanup", broken)
    model = str(save_tiny("llama", tmp_path / "model"))
    arguments = ["compile", model, "--target", "host", "--set", "max_length=32"]
    assert run([*arguments, "-o", str(tmp_path / "b")]) == 1
    message = capfd.readouterr().err.splitlines()[-1]
    assert "model LlamaForCausalLM" in message
    assert "AssertionError while cleanup (aten.copy_.default)" in message
    assert "num_users" not in message
    assert not (tmp_path / "b").exists()


def test_an_error_has_its_class_s_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zoexport.session.Bundle.open", interrupted)
    assert "Stopped" in failure(capfd, ["inspect", "b", "--json"], 130)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_130(number: signal.Signals) -> None:
    probe = (
        "import sys, time, zoexport.session\n"
        "def wait(*_, **__):\n"
        "    print('waiting', file=sys.stderr, flush=True)\n"
        "    time.sleep(30)\n"
        "zoexport.session.Bundle.open = wait\n"
        "from zoexport.cli.main import run\n"
        "sys.exit(run(['inspect', 'b']))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", probe], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "waiting\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.startswith("Stopped at your request. Run the same command again")


def test_a_closed_pipe_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "zoexport", "targets"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


# ---- results ----------------------------------------------------------------------------------------------------


def result(capfd: pytest.CaptureFixture[str], arguments: list[str], code: int = 0) -> Any:
    """The object of a ``--json`` call: one line on standard output, nothing else anywhere."""
    assert run([*arguments, "--json"]) == code
    out, err = capfd.readouterr()
    assert err == ""
    (line,) = out.splitlines()
    return json.loads(line)


def test_methods_lists_settings_with_their_defaults(capfd: pytest.CaptureFixture[str]) -> None:
    found = {entry["name"]: entry for entry in result(capfd, ["methods"])["methods"]}
    assert {"prge", "mezo"} <= set(found)
    settings = {entry["key"]: entry for entry in found["prge"]["settings"]}
    assert settings["lora.r"]["default"] == 16
    assert settings["learning_rate"]["default"] == 2e-3
    assert settings["learning_rate"]["runtime"]
    assert not settings["num_queries"]["runtime"]
    assert run(["methods"]) == 0
    assert "lora.r" not in capfd.readouterr().out
    assert run(["methods", "prge"]) == 0
    assert "lora.r" in capfd.readouterr().out
    (one,) = result(capfd, ["methods", "prge"])["methods"]
    assert one == found["prge"]
    assert run(["recipes", "smollm2-135m-mebp"]) == 0
    assert "learning_rate" in capfd.readouterr().out


def described(verb: str, title: str, capfd: pytest.CaptureFixture[str]) -> set[str]:
    """The keys that the help of a verb lists under a title."""
    assert run([verb, "--help"]) == 0
    section = capfd.readouterr().out.partition(f"\n  {title}:\n\n")[2].partition("\n\n")[0]
    found = re.findall(r"^  - (\w+(?:, \w+)*):", section, re.MULTILINE)
    return {key for keys in found for key in keys.split(", ")}


@pytest.mark.parametrize("verb", ["doctor", "methods", "recipes", "targets"])
def test_json_has_the_described_keys(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert set(result(capfd, [verb])) == described(verb, "JSON keys", capfd)


def test_json_of_a_bundle_has_the_described_keys(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = result(capfd, ["inspect", str(write_bundle(tmp_path / "bundle"))])
    assert described("inspect", "JSON keys of a bundle", capfd) <= set(found)


def test_targets_lists_what_can_be_compiled_for(capfd: pytest.CaptureFixture[str]) -> None:
    found = {entry["name"]: entry for entry in result(capfd, ["targets"])["targets"]}
    assert {"host", "android-cpu"} <= set(found)
    assert found["host"]["available"]


def test_inspect_shows_a_bundle_and_sees_an_altered_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    found = result(capfd, ["inspect", str(bundle)])
    assert {entry["name"] for entry in found["programs"]} == {"train", "evaluate"}
    assert found["trainable_slots"] == 1
    assert found["bytes"] == sum(found["files"].values())
    assert run(["inspect", str(bundle)]) == 0
    assert "Files, all intact" in capfd.readouterr().out
    name = sorted(found["files"])[0]
    content = bytearray((bundle / name).read_bytes())
    content[-1] ^= 1
    (bundle / name).write_bytes(content)
    assert name in failure(capfd, ["inspect", str(bundle), "--json"], BundleError.exit_code)


def test_doctor_finds_this_installation_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    found = result(capfd, ["doctor"])
    checks = {check["name"]: check for check in found["checks"]}
    assert found["ok"]
    assert checks["zoexport"]["found"] == __version__
    assert checks["session library"]["status"] == "ok"
    assert checks["torch"]["status"] == "ok"


def test_doctor_says_how_to_get_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZOEXPORT_NATIVE_DIR", str(tmp_path))
    found = result(capfd, ["doctor"], code=1)
    (check,) = [entry for entry in found["checks"] if entry["status"] == "missing"]
    assert check["name"] == "session library"
    assert "make setup" in check["fix"]
    assert not any(entry["name"].startswith("Vulkan") for entry in found["checks"])
    assert run(["doctor"]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert len([line for line in lines if "make setup" in line]) == 1
    assert any(line.startswith("session library, ") for line in lines)


def test_doctor_names_the_packages_for_vulkan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZOEXPORT_VULKAN_LIBRARY", str(tmp_path / "libvulkan.so"))
    monkeypatch.setattr("zoexport.tools.doctor.shutil.which", lambda name: f"/usr/bin/{name}")
    found = result(capfd, ["doctor"])
    (check,) = [entry for entry in found["checks"] if entry["name"] == "Vulkan"]
    assert check["status"] == "optional"
    assert "Error" not in check["found"] and check["fix"] not in check["found"]
    assert found["command"] == "apt-get install mesa-vulkan-drivers"
    assert run(["doctor", "--fix"]) == 0
    assert capfd.readouterr().out.strip() == found["command"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os._exit(9)", "function ended the process with status 9"),
        ("raise RuntimeError('no such symbol')", "no such symbol"),
    ],
)
def test_doctor_survives_a_library_that_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    (tmp_path / "added.py").write_text(code + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    problem = doctor._ask("added", "function")
    assert isinstance(problem, Problem) and problem.reason == message


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run(["targets", "--json"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
