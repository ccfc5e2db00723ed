"""Where QNN's libraries are looked for, and that an official SDK's are used as they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.phones import SERIAL, add_phone, install_phones
from tests.support.qnn import needs_qnn
from zoexport.compiler.plan import plan
from zoexport.core import qnn
from zoexport.core.errors import ConfigError, DeviceError, Problem
from zoexport.core.qnn import QnnLibrary
from zoexport.tools.doctor import examine

STAND_IN = """
extern "C" unsigned long QnnInterface_getProviders(const void*** providers, unsigned* count) {
  struct Interface { unsigned id; const char* name; unsigned version[6]; void* functions[80]; };
  static const auto build = +[](const char** id) -> unsigned long { *id = "v9.9.stand-in"; return 0; };
  static Interface interface{6, "stand-in", {2, 20, 0, 5, 20, 0}, {}};
  interface.functions[4] = reinterpret_cast<void*>(build);
  static const void* provider = &interface;
  *providers = &provider;
  *count = 1;
  return 0;
}
"""


def sdk(folder: Path) -> Path:
    """A folder laid out like an official SDK, with libraries that only say who they are."""
    libraries = folder / "lib" / "x86_64-linux-clang"
    libraries.mkdir(parents=True)
    source = folder / "stand_in.cpp"
    source.write_text(STAND_IN)
    for name in ("libQnnHtp.so", "libQnnSystem.so"):
        options = ["-std=c++17", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
        subprocess.run(["g++", *options, str(source), "-o", str(libraries / name)], check=True)
    return folder


def ask(probe: str, **environment: str) -> str:
    """What a line of Python prints, in a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-c", probe],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout


def test_an_official_sdk_is_used_as_it_is(tmp_path: Path) -> None:
    root = sdk(tmp_path)
    probe = (
        "from zoexport.core import qnn as q\nfrom zoexport.targets.executorch.qnn import lower\n"
        "import os\n"
        "with q.lowering() as found: root = os.environ['QNN_SDK_ROOT']\n"
        "mapped = {line.split()[-1] for line in open('/proc/self/maps') if 'Qnn' in line}\n"
        "import json; print(json.dumps([found.source, root, q.build_id(), sorted(mapped)]))"
    )
    source, used, build, mapped = json.loads(ask(probe, QNN_SDK_ROOT=str(root)))
    folder = root / "lib" / "x86_64-linux-clang"
    assert (used, build) == (str(root), "v9.9.stand-in")
    assert source == f"QNN_SDK_ROOT={root}"
    assert mapped == [str(folder / name) for name in ("libQnnHtp.so", "libQnnSystem.so")]


@needs_qnn
def test_a_module_that_is_loaded_afterwards_can_throw() -> None:
    """ExecuTorch loads the library for all of the process; matplotlib's font module throws as it is imported."""
    probe = (
        "from zoexport.core import qnn as q\n"
        "import ctypes; library = str(q.load().folder / 'libQnnHtp.so')\n"
        "ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)\n"
        "import matplotlib.backends.backend_agg; print('thrown and caught')"
    )
    assert ask(probe).strip().endswith("thrown and caught")


@needs_qnn
def test_the_package_is_used_through_the_proxy() -> None:
    probe = (
        "from zoexport.core import qnn as q\n"
        "print(q.build_id()); import torch\n"  # importing torch afterwards must not crash
        "print(*(line.split()[-1] for line in open('/proc/self/maps') if 'libQnnHtp.so' in line))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "QNN_SDK_ROOT"}
    answer = subprocess.run(
        [sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=True
    )
    library = qnn.find()
    assert isinstance(library, QnnLibrary) and library.root is None
    *_, build, mapped = answer.stdout.strip().splitlines()
    assert build.startswith("v2.")
    assert {str(library.proxy), str(library.folder / "libQnnHtp.so")} == set(mapped.split())


def test_without_libraries_both_ways_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    monkeypatch.setattr(qnn, "_PACKAGE", "no_such_package_of_qnn")
    with pytest.raises(ConfigError) as caught:
        plan(None, "android-npu", {})
    message = str(caught.value)
    assert "QNN_SDK_ROOT" in message and "zoexport[android-npu]" in message
    assert "licence" in message and "\n" not in message.strip()


def test_the_message_waits_for_no_import(tmp_path: Path) -> None:
    """Nothing slow is loaded before: the message comes at once."""
    probe = (
        "import sys; from zoexport.cli.main import run\n"
        "code = run(['compile', 'x', '--target', 'android-npu', '-o', sys.argv[1]])\n"
        "print(code, *(name for name in ('torch', 'executorch') if name in sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", probe, str(tmp_path / "bundle")],
        env={**os.environ, "QNN_SDK_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    code, *loaded = answer.stdout.split()
    assert int(code) != 0 and loaded == []
    assert f"QNN_SDK_ROOT={tmp_path} has no" in answer.stderr
    assert not (tmp_path / "bundle").exists()


def test_an_sdk_without_libraries_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path))
    problem = qnn.find()
    assert isinstance(problem, Problem) and str(tmp_path) in problem.reason


@needs_qnn
def test_settings_that_the_npu_cannot_run() -> None:
    for settings, message in (
        ({"soc": "SM865O"}, "SM8650"),
        ({"soc": "SM8750,SM865O"}, "SM8650"),
        ({"soc": "SM8350"}, "no floating-point"),
        ({"compute": "fp32"}, "fp16"),
        ({"weights": "fp32", "activations": "int16"}, "weights=int8"),
        ({"weights": "int4", "activations": "int8"}, "int16"),
        ({"weights": "int4", "activations": "int16", "scale_steps": False}, "scale_steps"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan("prge", "android-npu", settings)
    with pytest.raises(ConfigError, match="has no choice of soc"):
        plan("prge", "android-cpu", {"soc": "SM8650"})
    chosen = plan(None, "android-npu", {}).config
    assert (chosen.soc, chosen.compute, chosen.activations) == ("SM8650", "fp16", "fp32")
    assert not chosen.scale_steps
    assert plan("prge", "android-npu", {"activations": "int16"}).config.scale_steps


@needs_qnn
def test_soc_auto_is_the_chip_of_the_connected_phone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    phones = install_phones(tmp_path, monkeypatch)
    add_phone(phones, SERIAL, soc="SM8550")
    assert plan("prge", "android-npu", {"soc": "auto"}).config.soc == "SM8550"
    add_phone(phones, SERIAL, soc="MT6991")
    with pytest.raises(ConfigError, match="soc=MT6991: found ExecuTorch's QNN backend knows"):
        plan("prge", "android-npu", {"soc": "auto"})
    shutil.rmtree(phones / SERIAL)
    with pytest.raises(DeviceError, match="no phone"):
        plan("prge", "android-npu", {"soc": "auto"})


@needs_qnn
def test_doctor_says_which_and_which_version() -> None:
    checks = {check["name"]: check for check in examine()["checks"]}
    assert "v2." in checks["Qualcomm QNN"]["found"]
    assert "onnxruntime-qnn" in checks["Qualcomm QNN"]["found"]
    assert checks["target android-npu"]["status"] == "ok"
