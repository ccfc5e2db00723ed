"""Code of the hosts outside of C++: what the tests compile needs no Android, and no host has rules of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APP = ROOT / "android_app"
FILES = sorted(path.relative_to(APP).as_posix() for path in APP.rglob("src/**/*.kt"))
#: Whose packages are on the class path of tests/kotlin.
MAY_IMPORT = ("java.", "org.json.", "kotlin.", "kotlinx.coroutines.", "zoexport.")
APPS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder, kind in (("android_app", "kt"), ("ios_app", "swift"))
    for path in (ROOT / folder).rglob(f"*.{kind}")
    if not {"build", ".build"} & set(path.parts)
)
#: Signs of rules that are the session's: of adapters' files, of records' keys, of labels, of limits.
RULES = re.compile(
    r"lora_[AB]|safetensors|base_model|\"choices\"|-100\b|ignore_index"
    r"|celsius *[<>]|battery *[<>]|[fF]reeBytes *[<>]|memoryBytes *[<>]"
)


@pytest.mark.parametrize("name", FILES)
def test_what_is_compiled_here_needs_no_framework(name: str) -> None:
    """Only the folders that tests/kotlin compiles are free of Android."""
    compiled = "/zoexport/session/" in name or "/zoexport/app/training/" in name
    imported = re.findall(r"^import (\S+)", (APP / name).read_text(), re.M)
    foreign = [entry for entry in imported if not entry.startswith(MAY_IMPORT)]
    assert not (compiled and foreign), foreign
    assert len(FILES) > 15


@pytest.mark.parametrize("name", APPS)
def test_rules_are_the_sessions(name: str) -> None:
    """No rule of tokens, labels, adapters or limits outside of C++."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", (ROOT / name).read_text("utf-8"), flags=re.DOTALL)
    # Messages about a caller's own arguments, in the bindings.
    code = code.replace("Give -100 where nothing is to be predicted.", "")
    assert RULES.findall(code) == [] and RULES.search(code) is None
