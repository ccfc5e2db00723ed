"""What MkDocs is told of this repository: files outside of docs/ that pages link to, and tables made from the code."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from zoexport.core.config import fields
from zoexport.methods import methods

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_INSIDE = re.compile(r"(?:[-*]|\d+\.) |\s")
"""An item of a list, and a line that belongs to one."""
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):<code>~?([^<]*)</code>")
_SETTINGS, _NOTEBOOK = "<!-- settings -->", "<!-- notebook -->"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures outside of docs/ that pages link to, and those that these link to."""
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages()]
    waiting += [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        if _place(page) not in files.src_uris:
            files.append(File.generated(config, _place(page), abs_src_path=str(page)))
        if page.suffix != ".md":
            continue
        for target in _targets(page):
            if target.is_file() and target.suffix in (".md", ".png", ".svg") and target not in seen:
                seen.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files as the site has them: by their place there."""
    source = Path(page.file.abs_src_path)
    here = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match[1]))
        place = _place(target)
        if place in files.src_uris:
            return f"]({posixpath.relpath(place, here or '.')}{match[2] or ''})"
        return match[0]

    made = {_SETTINGS: _settings_tables, _NOTEBOOK: _notebook}
    for mark, make in made.items():
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return _with_lists(_LINK.sub(moved, markdown))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Sphinx's roles in docstrings as code."""
    return _ROLE.sub(r"<code>\1</code>", html)


def _with_lists(markdown: str) -> str:
    """A blank line before each list that follows a paragraph at once, which GitHub takes without."""
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
    """Where the site has a file: docs/ at its top, with what lies beside docs/."""
    base = ROOT / "docs" if _within_docs(path) else ROOT
    place = path.relative_to(base).as_posix()
    # The site's first page is docs/index.md.
    return "repository/README.md" if place == "README.md" and base == ROOT else place


def _targets(page: Path) -> Iterator[Path]:
    """The files that a page's links lead to."""
    for match in _LINK.finditer(page.read_text("utf-8")):
        target = Path(os.path.normpath(page.parent / match[1]))
        if target.is_relative_to(ROOT):
            yield target


def _notebook() -> str:
    """The cells of the notebook, without its title."""
    content = json.loads((ROOT / "docs" / "notebooks" / "first-run.ipynb").read_text("utf-8"))
    parts = []
    for cell in content["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
    return "\n\n".join(parts).replace("# A first run, from Python\n", "", 1)


def _settings_tables() -> str:
    """Each method's settings, with values, default, and whether training takes them too."""
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
