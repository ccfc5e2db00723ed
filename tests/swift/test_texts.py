"""What the iOS app says: every text of its sources is in every language's table, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support.hosts import ROOT

IOS = ROOT / "ios_app"
APP = IOS / "App"
SCREENS = sorted((APP / "Sources" / "Screens").glob("*.swift"))
WORDS = IOS / "ZoSession" / "Sources" / "ZoTraining" / "Words.swift"
TABLES = sorted((APP / "Sources").glob("*.lproj/Localizable.strings"))
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
#: Of no language: names of symbols and files, the app's own name, and texts that are only what a value says.
PLAIN = re.compile(r'systemImage: "[^"]*"|"zoexport"|"typed[.]jsonl"|"/"|""|"system"|"user"')


def keys(source: str) -> set[str]:
    """The literals of a screen, or those that are looked up, as keys of a table: what is put in is text."""
    return {re.sub(r"\\\((?:[^()]|\([^()]*\))*\)", "%@", text) for text in LITERAL.findall(source)}


def said() -> set[str]:
    """Every text of the app."""
    found = set()
    for path in SCREENS:
        found |= keys(PLAIN.sub("", without_comments(path)))
    for path in [WORDS, *(APP / "Sources").glob("*.swift")]:
        looked_up = re.findall(
            r'(?:words\(|localized: )("(?:[^"\\]|\\.)*")', without_comments(path)
        )
        found |= keys(" ".join(looked_up))
    return found


def without_comments(path: Path) -> str:
    return re.sub(r"^\s*///?.*$", "", path.read_text("utf-8"), flags=re.MULTILINE)


def table(path: Path) -> dict[str, str]:
    entries = {}
    for line in path.read_text("utf-8").splitlines():
        if line:
            found = re.fullmatch(r'"((?:[^"\\]|\\.)+)" = "((?:[^"\\]|\\.)+)";', line)
            assert found, line
            assert found[1] not in entries, line
            entries[found[1]] = found[2]
    return entries


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.stem)
def test_every_text_is_there_in_every_language(path: Path) -> None:
    other = table(path)
    assert set(other) == said()
    for key, text in other.items():
        assert holes(key) == holes(text), key


def holes(text: str) -> list[str]:
    return sorted(re.findall(r"%(?:\d[$])?([^ ]*?[@fd%])", text))


def test_the_app_says_which_languages_it_has() -> None:
    properties = yaml.safe_load((APP / "project.yml").read_text("utf-8"))["targets"]["Zoexport"][
        "info"
    ]
    languages = {"en", *(path.parent.stem for path in TABLES)}
    assert (
        set(properties["properties"]["CFBundleLocalizations"]) == languages and len(languages) > 1
    )


def test_what_is_put_into_a_text_is_text() -> None:
    """A number's place would be written %lld, %llu or %lf, as its type is, which nothing here can tell."""
    for path in SCREENS:
        for inserted in re.findall(r"\\\(((?:[^()]|\([^()]*\))*)\)", without_comments(path)):
            assert inserted.endswith((".formatted()", "Description")), inserted


def test_texts_are_found() -> None:
    found = keys(
        r'Section("Loss") { Text("\(a.formatted()) of \(b(1)) steps"); Label("No \"x\"") }'
    )
    assert found == {"Loss", "%@ of %@ steps", r"No \"x\""}
    assert {"Paused", "Loss", ", %.0f %% right", "%@ steps"} <= said()
