"""The locked versions are those that pyproject.toml asks for, each with a hash; ``make lock`` renews them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
#: Not in the file for development: make setup takes the one that TORCH names.
CHOSEN = "torch"


def asked(lines: list[str]) -> Iterator[Requirement]:
    """What pyproject.toml asks for, extras of its own in full."""
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            for extra in requirement.extras:
                yield from asked(PROJECT["optional-dependencies"][extra])
        else:
            yield requirement


def locked(name: str) -> dict[str, list[str]]:
    """Versions by package; each entry has hashes."""
    text = (ROOT / "requirements" / name).read_text("utf-8").replace("\\\n", " ")
    versions: dict[str, list[str]] = {}
    for line in filter(None, text.splitlines()):
        if not line.startswith("#"):
            entry, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
            assert hashes and all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes), entry
            package, version = entry.split(" ;")[0].split("==")
            versions.setdefault(canonicalize_name(package.split("[")[0]), []).append(version)
    return versions


@pytest.mark.parametrize("name", ["wheel.txt", "dev.txt"])
def test_what_is_asked_for_is_locked(name: str) -> None:
    lines = list(PROJECT["dependencies"])
    if name == "dev.txt":
        lines += PROJECT["optional-dependencies"]["dev"]
    versions = locked(name)
    assert (CHOSEN in versions) == (name == "wheel.txt")
    for requirement in asked(lines):
        found = versions.get(canonicalize_name(requirement.name), [])
        chosen = name == "dev.txt" and requirement.name == CHOSEN
        assert chosen or any(map(requirement.specifier.contains, found)), (
            f"{name}: {requirement} is not among {found}; run 'make lock'"
        )
