"""Comments, docstrings and messages are plain English: none of the patterns that had to be read twice."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("exporter", "runtime_ops", "android_app", "ios_app")
COMMENTED = (".h", ".cpp", ".kt", ".swift", ".comp", ".glsl")
MESSAGES = ("help", "found", "expected", "fix", "reason", "summary")
PATTERNS = {
    "a fragment: start with the subject or a verb": re.compile(
        r"^(Of|With|Whose|Which|That|Those|What|Likewise|Where|Whether|How|As)\b(?! is\b| are\b| does\b)"
    ),
    "an old word": re.compile(
        r"\b(anew|likewise|thereof|whatever|whence|alike|(of|by|to) which)\b", re.IGNORECASE
    ),
    "'where' in place of 'if'": re.compile(
        r"\b(none where|where (there|it) (is|are|has|can|was)|where (None|none|missing|possible))\b"
    ),
    "a thing that speaks": re.compile(
        r"\b(program|file|manifest|state|bundle|graph|target|method|model)s? (says?|tells?|wants?|knows?)\b"
    ),
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The comments, docstrings and messages of a file, with their lines."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        # Blocks of comment lines are one text.
        lines = [re.match(r"\s*(?://+|\*|/\*+) ?(.*)", line) for line in source.splitlines()]
        for number, found in enumerate(lines, 1):
            if found and not (number > 1 and lines[number - 2]):
                block = [found[1]]
                for other in lines[number:]:
                    if not other:
                        break
                    block.append(other[1])
                yield number, " ".join(block)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""
        if isinstance(node, ast.keyword) and node.arg in MESSAGES:
            parts = (one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant))
            yield node.value.lineno, "".join(one for one in parts if isinstance(one, str))
    before = False
    for number, line in enumerate(source.splitlines(), 1):
        found = re.match(r"\s*#:? ?(.*)", line)
        if found and not before:
            yield number, found[1]
        before = found is not None


def problems(path: Path) -> Iterator[str]:
    for number, text in texts(path):
        for name, pattern in PATTERNS.items():
            if match := pattern.search(" ".join(text.split())):
                yield f"{path.relative_to(ROOT)}:{number}: {name}: {match[0]!r}"


def test_texts_are_plain_english() -> None:
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    files = [ROOT / name for name in listed if Path(name).suffix in (".py", *COMMENTED)]
    found = [one for path in files if path.is_file() for one in problems(path)]
    assert len(files) > 500 and not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["Of those that are left.", "Read it anew.", "None where there is none.", "It says so."]
)
def test_a_bad_text_is_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "a.py").write_text(f'"""{text}"""\n')
    (tmp_path / "a.cpp").write_text(f"// {text}\nint a;\n")
    (tmp_path / "b.cpp").write_text(f"// The file {text.lower()}\nint a;\n")
    bad = [one for name in ("a.py", "a.cpp") for one in problems(tmp_path / name)]
    if text == "It says so.":
        assert not bad
        (tmp_path / "a.py").write_text('"""The manifest says so."""\n')
        assert list(problems(tmp_path / "a.py"))
    else:
        assert len(bad) >= 2
