"""The one-way import rules, file sizes, and what no file may mention."""

from __future__ import annotations

import ast
import graphlib
import itertools
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "exporter" / "zoexport"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 800
#: What measures the product, beside it.
RESEARCH = "research"

#: A room, which is a folder or a file of the package's root -> the rooms that it may import beside itself. All of them
#: stand before it in this table, so that no imports make a circle. None: every room before it.
MAY_IMPORT: dict[str, set[str] | None] = {
    "core": set(),
    "ir": {"core"},
    "passes": {"core", "ir"},
    "targets": {"core", "ir"},
    "session": {"core"},
    "models": {"core"},
    "data": {"core", "session"},
    "calibration": {"core", "session", "models", "data"},
    "adapters": {"core", "session"},
    "trained": {"core", "passes", "session", "models", "adapters"},
    "methods": {"core", "ir", "passes", "models", "trained"},
    "testing": {"core", "session"},
    "compiler": None,
    "federated": {"core", "session", "methods"},
    "run": {"core", "session", "models", "data", "adapters", "trained", "methods", "federated"},
    "tools": None,
    "api": None,
    "": {"core", "session", "data", "run", "api"},  # what the package exports
    "cli": None,
    "__main__": {"cli"},
}
MOST_ROOMS = 20
#: These two find the entries that register themselves; nothing else at the top needs both.
JOIN_METHODS_AND_TARGETS = {"zoexport.compiler.plan", "zoexport.tools.describe"}


def module_name(path: Path, package: Path = PACKAGE) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, name: str, *, is_package: bool = False) -> Iterator[str]:
    """Every module of ours that a source imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")[: None if is_package else -1]
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            found = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (entry for entry in found if entry.split(".")[0] in ("zoexport", RESEARCH))


def room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def broken_rules(name: str, imported: set[str]) -> list[str]:
    """Why ``name`` may not import what it imports."""
    mine = room(name)
    earlier = itertools.takewhile(lambda other: other != mine, MAY_IMPORT)
    allowed = {mine, *(MAY_IMPORT[mine] or (earlier if MAY_IMPORT[mine] is None else ()))}
    problems = []
    for other in sorted(imported):
        if other.split(".")[0] == RESEARCH:
            problems.append(f"{name} imports {other}: the product does without {RESEARCH}")
        elif room(other) not in allowed:
            problems.append(f"{name} imports {other}: {mine} may import {sorted(allowed)}")
        elif mine in ("methods", "targets") and _siblings(name, other):
            problems.append(f"{name} imports {other}: a sibling of its own kind")
    joins = {"methods", "targets"} <= {room(other) for other in imported}
    if joins and name not in JOIN_METHODS_AND_TARGETS:
        problems.append(f"{name} joins methods and targets, which only build does")
    return problems


def _siblings(name: str, other: str) -> bool:
    """Whether they belong to two different methods, or to two different targets."""
    methods = {path.stem for path in (PACKAGE / "methods" / "reference").glob("[a-z]*.py")}
    methods &= {path.stem for path in (PACKAGE / "methods").glob("*.py")}
    entries = methods | {path.parent.name for path in (PACKAGE / "targets").rglob("target.py")}
    first, second = (
        next((part for part in module.split(".")[2:] if part in entries), None)
        for module in (name, other)
    )
    return None not in (first, second) and first != second


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_one_way(path: Path) -> None:
    name = module_name(path)
    found = set(imports(path.read_text("utf-8"), name, is_package=path.name == "__init__.py"))
    assert broken_rules(name, found) == []


def test_rooms_are_few_and_import_earlier_ones_only() -> None:
    rooms = list(MAY_IMPORT)
    assert {room(module_name(path)) for path in MODULES} == set(rooms)
    assert len(rooms) <= MOST_ROOMS
    for place, (name, allowed) in enumerate(MAY_IMPORT.items()):
        assert (allowed or set()) <= set(rooms[:place]), name


def test_no_modules_import_each_other() -> None:
    names = {module_name(path): path for path in MODULES}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        package = path.name == "__init__.py"
        found = imports(path.read_text("utf-8"), name, is_package=package)
        known = {one if one in names else one.rpartition(".")[0] for one in found}
        graph[name] = known & names.keys() - {name}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_the_wheel_holds_the_package_and_optimum_s_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel = project["tool"]["scikit-build"]["wheel"]
    # What optimum finds is a file of its namespace, and no package of ours.
    assert wheel["packages"] == ["exporter/zoexport", "exporter/optimum"]
    assert not list((PACKAGE.parent / "optimum").rglob("__init__.py"))
    shared = {f"graphs/{name}": f"zoexport/{name}" for name in ("schema", "recipes", "shapes")}
    assert wheel["force-include"] == shared
    assert not (PACKAGE / RESEARCH).exists()


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows or would add, so that a build folder does not count."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_source_file_is_too_long() -> None:
    sources = tracked("*.py", "*.h", "*.cpp", "*.c", "*.kt", "*.swift")
    assert len(sources) > 50
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in sources}
    too_long = {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MAX_LINES}
    assert too_long == {}


def test_no_file_names_a_registry_host_or_what_lies_outside_the_repository() -> None:
    # Spelled in pieces, so that this file does not contain them.
    forbidden = [
        ("/work", "/"),
        ("../sha", "red"),
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("download.py", "torch.org"),
        ("npmjs", ".org"),
        ("deb.deb", "ian.org"),
    ]
    found = []
    for path in tracked():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}: {''.join(word)}"
            for word in forbidden
            if "".join(word) in text
        ]
    assert found == []
