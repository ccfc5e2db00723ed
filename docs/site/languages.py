"""References of the C, Kotlin and Swift interfaces: public declarations with their comments, as Markdown.

The sources are formatted, so indentation is enough to find declarations: members are indented by four spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Entry:
    """Declarations that share a comment, or a section, with the declarations inside."""

    names: list[str]
    code: list[str]
    comment: str = ""
    members: list[Entry] = field(default_factory=list)
    is_property: bool = False


_KINDS = "class|object|interface|struct|enum|protocol|extension|fun|func|val|var|let|typealias|case"
_DECLARATION = re.compile(
    rf"(?:[a-z]+(?:\(set\))? )*?(?:(?:{_KINDS}) (?!class)(?:<.*?> )?`?([\w.]+|==)|(init|constructor)\(|(companion) )"
)
_CONTAINER = re.compile(r"\b(?:class|object|interface|struct|enum|protocol|extension) ")
_HIDDEN = re.compile(r"\b(?:private|internal|fileprivate|package) ")
_CONFORMANCE = re.compile(r"\b(?:init\(from decoder:|encode\(to |hash\(into |func$)")
"""Functions that a protocol of Swift's library requires; the operator of equality ends at its name."""
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S)


def c_reference(*headers: Path) -> str:
    """Return the types and functions of headers, by file and section."""
    sections = []
    for header in headers:
        text = header.read_text("utf-8")
        sections.append(Entry([header.name], [], _plain(text[: text.index("*/") + 2])))
        start, end = text.index('extern "C" {\n#endif') + 19, text.rindex("#ifdef __cplusplus")
        for block in re.split(r"\n\n(?=\S)", text[start:end].strip()):
            title = re.match(r"/\* -{4} (.*?) -+ \*/$", block)
            if title:
                sections.append(Entry([f"{header.name}: {title[1]}"], []))
            else:
                sections[-1].members += _c_entries(block)
    return _linked("\n\n".join(_pages(sections, "c", 2)))


def app_reference(language: str, folder: Path) -> str:
    """Return the public types of a folder's Kotlin or Swift files, those of training first."""
    files = folder.glob({"kotlin": "*.kt", "swift": "*.swift"}[language])
    entries = []
    for file in sorted(files, key=lambda one: (not one.name.startswith("Training"), one.name)):
        text = file.read_text("utf-8")
        entries += _entries(text.split("\n"), _masked(text).split("\n"), language == "kotlin")
    return "\n\n".join(_pages(entries, language, 2))


def _pages(entries: list[Entry], language: str, level: int, outer: str = "") -> Iterator[str]:
    """Return headings, declarations and comments; a member's anchor starts with its type's name."""
    seen = set()
    for one in entries:
        name = one.names[0] if one.names else ""
        place = f"{outer}.{name}" if outer and language != "c" else name
        if name and name not in seen:
            seen.add(name)
            title = ", ".join(dict.fromkeys(one.names)).replace("_", r"\_").replace("*", r"\*")
            anchor = re.sub(r"[^\w.]+", "-", place)
            yield f'{"#" * level} {title} {{ #{anchor} data-toc-label="{name}" }}'
        if one.code:
            yield f"```{language}\n" + "\n".join(one.code) + "\n```"
        if one.comment:
            yield one.comment
        yield from _pages(one.members, language, level + 1, place)


def _c_entries(block: str) -> list[Entry]:
    """Return the declarations of lines without a blank one between; a comment alone is text."""
    entries: list[Entry] = []
    comment, joined, masked = "", False, _masked(block)
    while block:
        if block.startswith("/*"):
            end, joined = block.index("*/") + 2, False
            comment = _plain(block[:end])
        else:
            depths = [masked[:at].count("{") - masked[:at].count("}") for at in range(len(block))]
            ends = (at for at in range(len(block)) if masked[at] == ";" and not depths[at])
            end = block.find("\n") % (len(block) + 1) if block[0] == "#" else next(ends) + 1
            if not joined:
                entries.append(Entry([], [], comment))
            comment, joined = "", True
            code = block[:end].removeprefix("ZO_API ")
            if "{" not in code and len(code) > 76:
                head, arguments = code.rsplit("(", 1)
                lines = re.split(r",\s+", arguments)
                code = f"{head}(\n    " + ",\n    ".join(lines)
            entries[-1].code.append(code)
            entries[-1].names += _c_names(code)
        skipped = len(block) - len(block[end:].lstrip())
        block, masked = block[skipped:], masked[skipped:]
    return [*entries, Entry([], [], comment)] if comment else entries


def _c_names(code: str) -> list[str]:
    """Return the name that code declares; an anonymous enum is named by its first constant."""
    if code.startswith("enum {"):
        first = re.findall(r"ZO_\w+", code)[0]
        return [] if first == "ZO_OK" else [re.sub(r"(?<=\w_)[A-Z]+$", "*", first)]
    code = re.sub(r"\{.*\}", "", code, flags=re.S)
    found = re.search(r"\(\*(\w+)\)\(|#define (\w+)|^[^(]*?(\w+)[(;]", code)
    return [name for name in found.groups() if name] if found else []


def _linked(text: str) -> str:
    """Return Markdown with links in place of names that have a heading."""
    known = set(re.findall(r"\{ #(zo_\w+) ", text))
    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith(("#", "```")):
            line = re.sub(
                r"(?<![`\w])(?:zo|ZO)_\w+\*?",
                lambda name: f"[`{name[0]}`](#{name[0]})" if name[0] in known else f"`{name[0]}`",
                line,
            )
        lines.append(line)
    return "\n".join(lines)


def _masked(text: str) -> str:
    """Return text with spaces in place of literals and comments."""
    return _LITERAL.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _plain(comment: str) -> str:
    """Return a comment as Markdown: without its marks, and with names in brackets as code."""
    marks = re.compile(r"^\s*(?:/\*+|\*(?!/)|///) ?|\s*\*/$")
    text = "\n".join(marks.sub("", line).rstrip() for line in comment.split("\n")).strip()
    text = re.sub(r"^- Parameter (\w+):", r"- `\1`:", text, flags=re.M)
    return re.sub(r"<(?=[\w/!])", "&lt;", re.sub(r"\[([\w.]+)\](?![(\[`])", r"`\1`", text))


def _entries(
    lines: list[str], masked: list[str], kotlin: bool, indent: int = 0, shown: bool = False
) -> list[Entry]:
    """Return the public declarations of lines that begin at ``indent``; ``shown``: all are public."""
    entries: list[Entry] = []
    comment: list[str] = []
    joined, at = False, 0
    while at < len(lines):
        line, first = lines[at], at
        at += 1
        if (
            line.startswith((" " * indent + "/// ", " " * indent + "/**"))
            or line == " " * indent + "///"
        ):
            joined = False
            while "/**" in line and "*/" not in lines[at - 1]:
                at += 1
            comment += lines[first:at]
            continue
        found = _DECLARATION.match(masked[first], indent) if not line[:indent].strip() else None
        if found is None:
            if not line:
                comment, joined = [], False
            continue
        # The signature ends at its body, at its value, or with its line.
        text, mask = line[indent:], masked[first][indent:]
        while (stop := _stop(mask)) is None and (
            _depth(mask) or mask.rstrip().endswith((",", ":"))
        ):
            text, mask, at = (
                f"{text}\n{lines[at][indent:]}",
                f"{mask}\n{masked[at][indent:]}",
                at + 1,
            )
        if stop is None and at < len(lines) and lines[at] == " " * indent + "{":
            text, mask, stop, at = text + " {", mask + " {", len(text) + 1, at + 1
        body = mask[stop:] if stop is not None else ""
        code, modifiers = text[:stop].rstrip(), found[0]
        container = "companion" in modifiers or _CONTAINER.search(modifiers) is not None
        inside = slice(at, at)
        if container and body.startswith("{") and "}" not in body:
            closed = next(
                n for n in range(at, len(lines)) if lines[n].startswith(" " * indent + "}")
            )
            inside, at = slice(at, closed), closed + 1
        public = kotlin or shown or re.search(r"\b(?:public|extension)\b", modifiers)
        if _HIDDEN.search(modifiers) or not public or _CONFORMANCE.search(code):
            comment, joined = [], False
            continue
        entry = Entry([next(filter(None, found.groups()))], [], _plain("\n".join(comment)))
        comment = []
        if not container:
            entry.is_property = re.search(r"\b(?:va[lr]|let|case) ", modifiers) is not None
            code = text if "typealias" in modifiers else code
            code = re.sub(r"\s+get\(\)$| by lazy.*| : this\(.*| internal\(set\)", "", code)
            if entry.is_property and body.startswith("{") and not kotlin:
                code += " { get throws }" if "get throws" in body else " { get }"
        elif "enum " in modifiers and "{" not in "".join(masked[inside]):
            end = (
                [one[indent:] for one in lines[inside]] + ["}"]
                if inside.stop > inside.start
                else []
            )
            code = "\n".join([text.rstrip(), *end])
        else:
            protocol = "protocol" in modifiers
            inner = _entries(lines[inside], masked[inside], kotlin, indent + 4, protocol)
            if "companion" in modifiers:
                entries += inner
                continue
            code, values = _constructor(code, mask) if kotlin else (code, [])
            plain = [one for one in inner if one.is_property and not one.comment]
            values += [line for one in plain for line in one.code]
            inner = [one for one in inner if one not in plain]
            if values:
                code += (
                    " {\n"
                    + "\n".join("    " + one.replace("\n", "\n    ") for one in values)
                    + "\n}"
                )
            entry.members = inner
            if "extension" in modifiers:
                entry.names = [f"extension {entry.names[0]}"]
                if not inner:
                    continue
        if joined and not entry.comment and not entry.members:
            entries[-1].names += entry.names
            entries[-1].code.append(code)
        else:
            entry.code = [code]
            entries.append(entry)
        joined = not entry.members
    return entries


def _depth(mask: str) -> int:
    return sum((one in "([") - (one in ")]") for one in mask)


def _stop(mask: str) -> int | None:
    """Return where a declaration's body or value begins."""
    return next((at for at, one in enumerate(mask) if one in "{=" and not _depth(mask[:at])), None)


def _constructor(code: str, mask: str) -> tuple[str, list[str]]:
    """Return a Kotlin class without a constructor that is not public, and the latter's properties."""
    found = re.search(r" (?:internal|private) constructor\(", code)
    if found is None:
        return code, []
    start = found.end()
    cuts = [
        at for at in range(start, len(code)) if mask[at] in ",)" and _depth(mask[start:at]) == 0
    ]
    end = next(at for at in cuts if mask[at] == ")")
    parts = [
        code[a:b].strip(", \n") for a, b in zip([start, *cuts], cuts, strict=False) if b <= end
    ]
    values = [
        re.sub(r" = .*", "", one, flags=re.S)
        for one in parts
        if re.match(r"(?:/\*.*\*/\s*)?val ", one, re.S)
    ]
    return code[: found.start()] + code[end + 1 :], [
        re.sub(r"\*/\s+", "*/\n", one) for one in values
    ]
