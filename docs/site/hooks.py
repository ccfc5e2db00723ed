"""Hooks of MkDocs: files outside of docs/, references made from the code, tabs, and pictures for dark mode."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from languages import app_reference, c_reference  # MkDocs puts this folder on the path
from mkdocs.structure.files import File, InclusionLevel

from zoexport.core.config import fields
from zoexport.methods import methods

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_INSIDE = re.compile(r"(?:[-*]|\d+\.) | {1,3}\S")
"""An item of a list, and a line that continues one; four spaces begin another paragraph of it."""
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>~?([^<]*)</code>")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)#\s]+)\)")
_DARK = "@media (prefers-color-scheme: dark)"
_FENCE = r"( *)```{}\n((?:(?!\{}```).*\n)*)\{}```\n"
_PAIR = re.compile("^" + _FENCE.format("sh", 1, 1) + "\n" + _FENCE.format("python", 3, 1), re.M)
"""Two fenced blocks with a blank line between: shell, then Python."""


def on_config(config: Any) -> Any:
    """Replace patterns in the navigation by the pages that match."""
    for section in config.nav:
        for pages in section.values():
            for pattern in [one for one in pages if str(one).endswith("*.md")]:
                found = sorted(Path(config.docs_dir).glob(pattern))
                place = pages.index(pattern)
                pages[place : place + 1] = [
                    one.relative_to(config.docs_dir).as_posix() for one in found
                ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures outside of docs/ that pages link to, and dark variants of drawings."""
    for file in [file for file in files if file.src_uri.endswith(".svg")]:
        content = file.content_string
        if _DARK in content:
            dark = file.src_uri.replace(".svg", "-dark.svg")
            files.remove(file)
            for name, media in ((file.src_uri, "@media not all"), (dark, "@media all")):
                files.append(File.generated(config, name, content=content.replace(_DARK, media)))
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages()]
    waiting += [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        if _place(page) not in files.src_uris:
            file = File.generated(config, _place(page), abs_src_path=str(page))
            file.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(file)
        if page.suffix != ".md":
            continue
        for target in _targets(page):
            if target.is_file() and target.suffix in (".md", ".png", ".svg") and target not in seen:
                seen.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Insert references, and adapt links, pictures, lists and pairs of code blocks to the site."""
    source = Path(page.file.abs_src_path)
    here = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match[1]))
        place = _place(target)
        if place in files.src_uris:
            return f"]({posixpath.relpath(place, here or '.')}{match[2] or ''})"
        return match[0]

    def shown(match: re.Match[str]) -> str:
        alt, path = match.groups()
        stem, suffix = posixpath.splitext(path)
        if posixpath.normpath(posixpath.join(here, f"{stem}-dark{suffix}")) not in files.src_uris:
            return match[0]
        return f"![{alt}]({path}#only-light)![{alt}]({stem}-dark{suffix}#only-dark)"

    for mark, make in _MADE.items():
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    markdown = _PICTURE.sub(shown, _LINK.sub(moved, markdown))
    return _PAIR.sub(_tabs, _with_lists(markdown))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Show Sphinx's roles in docstrings as code, and add the place of the page's source."""
    source = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()
    # Not repo_url: the theme would fetch a repository's figures when a page is viewed.
    repository = os.environ.get("ZOEXPORT_REPOSITORY", "").rstrip("/")
    if repository:
        line = f'<a href="{repository}/edit/main/{source}">Edit this page</a>'
    else:
        line = f"Source of this page: <code>{source}</code>"
    # What mkdocs-click writes for an option without a default.
    html = html.replace("<code>Sentinel.UNSET</code>", "")
    return _ROLE.sub(r"<code>\1</code>", html) + f'\n<p class="source">{line}</p>'


def _tabs(match: re.Match[str]) -> str:
    """Return the two blocks as tabs."""
    indent, shell, _, python = match.groups()
    parts = []
    for title, language, code in (("CLI", "sh", shell), ("Python", "python", python)):
        block = f"{indent}```{language}\n{code}{indent}```\n"
        lines = [f"    {line}" if line else "" for line in block.split("\n")]
        begin = "===!" if title == "CLI" else "==="  # not a third tab of the pair before
        parts.append(f'{indent}{begin} "{title}"\n\n' + "\n".join(lines))
    return "\n".join(parts)


def _with_lists(markdown: str) -> str:
    """Insert a blank line before each list that follows a paragraph; GitHub does not need it."""
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        before = lines[-1] if lines else ""
        if not fenced and _ITEM.match(line) and before.strip() and not _INSIDE.match(before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _within_docs(path: Path) -> bool:
    return path.is_relative_to(ROOT / "docs")


def _place(path: Path) -> str:
    """Return a file's path in the site: relative to docs/, or to the repository if it is outside."""
    base = ROOT / "docs" if _within_docs(path) else ROOT
    place = path.relative_to(base).as_posix()
    # The site's first page is docs/index.md.
    return "repository/README.md" if place == "README.md" and base == ROOT else place


def _targets(page: Path) -> Iterator[Path]:
    """Return the files that a page links to."""
    for match in _LINK.finditer(page.read_text("utf-8")):
        target = Path(os.path.normpath(page.parent / match[1]))
        if target.is_relative_to(ROOT):
            yield target


def _settings_tables() -> str:
    """Return tables of each method's settings."""
    parts = []
    for name in methods.names():
        method = methods.get(name)
        lines = [
            f"## {name}",
            "",
            f"{method.summary}.",
            "",
            "| key | is | values | default | also at train |",
        ]
        lines.append("| --- | --- | --- | --- | --- |")
        for key, (field, info) in fields(method.config).items():
            values = ", ".join(f"`{one}`" for one in info.choices)
            if info.above is not None:
                values = f"above {info.above:g}"
            if info.at_least is not None:
                values = f"at least {info.at_least:g}"
            default = "depends" if field.default in (None, "") else f"`{field.default}`"
            train = "yes" if info.runtime else ""
            lines.append(f"| `{key}` | {info.help} | {values} | {default} | {train} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


_INCLUDE = ROOT / "runtime_ops/include/zoexport"
_KOTLIN = ROOT / "android_app/session/src/main/kotlin/zoexport/session"
_MADE = {
    "<!-- settings -->": _settings_tables,
    "<!-- c -->": lambda: c_reference(_INCLUDE / "session.h", _INCLUDE / "job.h"),
    "<!-- kotlin -->": lambda: app_reference("kotlin", _KOTLIN),
    "<!-- swift -->": lambda: app_reference("swift", ROOT / "ios_app/ZoSession/Sources/ZoSession"),
}
