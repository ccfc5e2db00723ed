"""Android's API as Java declarations, for type-checking the app's Kotlin without an SDK.

The package chaquopy-stubs-android has API 36 as Python stubs. Of the classes that the sources import, their
superclasses and those that their members name, Java sources are made, which kotlinc reads: declarations alone, nothing
that runs. Of what a method gives, Python's stubs say ``int`` for ``long`` too: the app's few such are listed here.
Resources (``R``) are made from ``res/``.
"""

from __future__ import annotations

import ast
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from zoexport.core.fetch import Package

PACKAGE = Package(
    "chaquopy-stubs-android",
    "36.20260406",
    "5e18511ccb7ae519d8c4643408cf16262fa5f20eb1d1a7e97cfe28de16e12008",
)
_LONGS = {
    ("android.os.StatFs", "getAvailableBytes"),
    ("android.app.ActivityManager.MemoryInfo", "availMem"),
    ("android.app.ActivityManager.MemoryInfo", "threshold"),
}
_PRIMITIVES = {
    "java.jint": "int",
    "java.jlong": "long",
    "java.jshort": "short",
    "java.jbyte": "byte",
    "java.jfloat": "float",
    "java.jdouble": "double",
    "java.jboolean": "boolean",
    "java.jchar": "char",
}
_PLAIN = {"int": "int", "float": "float", "bool": "boolean", "str": "String", "None": "void"}
# Java's own classes are kotlinc's, from the JDK.
_OUTSIDE = ("java.", "javax.")


@dataclass
class _Class:
    """A class of the stubs; ``name`` with dots between packages and classes."""

    name: str
    package: str
    node: ast.ClassDef
    nested: dict[str, _Class] = field(default_factory=dict)

    @property
    def bases(self) -> list[str]:
        return [ast.unparse(base) for base in self.node.bases]


class Stubs:
    """The Python stubs in a folder."""

    def __init__(self, folder: Path) -> None:
        self.classes: dict[str, _Class] = {}
        for path in sorted(folder.glob("android-stubs/**/__init__.pyi")):
            package = ".".join(("android", *path.parent.relative_to(folder).parts[1:]))
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    self._add(package, package, node)

    def _add(self, package: str, within: str, node: ast.ClassDef) -> _Class:
        found = _Class(f"{within}.{node.name}", package, node)
        self.classes[found.name] = found
        for inner in node.body:
            if isinstance(inner, ast.ClassDef):
                found.nested[inner.name] = self._add(package, found.name, inner)
        return found

    def resolved(self, name: str, package: str) -> str | None:
        """The full name of a class that a file of ``package`` calls ``name``; None: not of Android."""
        for candidate in (name, f"{package}.{name}"):
            if candidate in self.classes:
                return candidate
        return None

    def is_interface(self, name: str) -> bool:
        """Whether nothing constructs it, and all that it extends are interfaces too.

        A class without a public constructor looks the same; the difference is none to who only calls it.
        """
        found = self.classes[name]
        if any(_shows_a_class(part) for part in found.node.body):
            return False
        for base in found.bases:
            base = re.sub(r"\[.*", "", base)
            known = self.resolved(base, found.package)
            if known is not None and not self.is_interface(known):
                return False
            if known is None and base.startswith("java.") and base != "java.lang.Object":
                return not base.endswith(("Exception", "Error", "Enum", "Reader", "Thread"))
        return True

    def kept(self, wanted: Iterable[str]) -> set[str]:
        """Classes to write for the imports ``wanted``: those, what they extend and contain, and what they name."""
        kept = set(self._closed(name for name in wanted if name in self.classes))
        for _ in range(2):  # what a member gives, and what is asked of that
            named = {
                known
                for name in kept
                for part in ast.walk(self.classes[name].node)
                if isinstance(part, ast.Attribute | ast.Name)
                and (known := self.resolved(ast.unparse(part), self.classes[name].package))
            }
            kept = set(self._closed(kept | named))
        return kept

    def _closed(self, names: Iterable[str]) -> Iterator[str]:
        """With superclasses, and the whole of every outermost class."""
        waiting, seen = list(names), set()
        while waiting:
            found = self.classes[waiting.pop()]
            if found.name in seen:
                continue
            seen.add(found.name)
            yield found.name
            outer = found.name.rpartition(".")[0]
            if outer in self.classes:
                waiting.append(outer)
            waiting += [inner.name for inner in found.nested.values()]
            for base in found.bases:
                known = self.resolved(re.sub(r"\[.*", "", base), found.package)
                if known is not None:
                    waiting.append(known)

    def write(self, folder: Path, wanted: Iterable[str]) -> int:
        """Write the Java sources; how many."""
        kept = self.kept(wanted)
        outermost = sorted(name for name in kept if name.rpartition(".")[0] not in self.classes)
        for name in outermost:
            found = self.classes[name]
            path = folder.joinpath(*found.package.split("."), f"{found.node.name}.java")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                f"package {found.package};\n{_Java(self, kept).declaration(found, False)}\n"
            )
        return len(outermost)


def _shows_a_class(part: ast.stmt) -> bool:
    """A constructor, or a field of its own, which an interface has none of."""
    if isinstance(part, ast.FunctionDef):
        return part.name == "__init__"
    return isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation)


class _Java:
    """Writes classes of the stubs as Java; members that name what is not kept are left out."""

    def __init__(self, stubs: Stubs, kept: set[str]) -> None:
        self._stubs = stubs
        self._kept = kept

    def declaration(self, found: _Class, inner: bool) -> str:
        interface = self._stubs.is_interface(found.name)
        extended, implemented = [], []
        for base in found.bases:
            name = self._type(base, found)
            if name is None or name in ("java.lang.Object", "Object") or base.startswith("typing"):
                continue
            known = self._stubs.resolved(re.sub(r"\[.*", "", base), found.package)
            is_interface = (
                self._stubs.is_interface(known)
                if known
                else "Enum" not in name and "Exception" not in name
            )
            (implemented if is_interface else extended).append(name)
        if any("Enum" in name for name in extended):
            extended = []
        words = f"public {'static ' if inner else ''}"
        words += "interface " if interface else "class "
        words += found.node.name + _parameters(found)
        if interface and implemented:
            words += " extends " + ", ".join(implemented)
        if not interface and extended:
            words += " extends " + extended[0]
        if not interface and implemented:
            words += " implements " + ", ".join(implemented)
        body = [self.declaration(one, True) for one in found.nested.values()]
        seen: set[str] = set()
        for part in found.node.body:
            for line in self._member(part, found, interface):
                key = line.partition(" throws")[0]
                if key not in seen:
                    seen.add(key)
                    body.append(line)
        return words + " {\n" + "\n".join(body) + "\n}"

    def _member(self, part: ast.stmt, found: _Class, interface: bool) -> Iterator[str]:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            text = ast.unparse(part.annotation)
            static = text.startswith("typing.ClassVar[")
            kind = self._type(text[len("typing.ClassVar[") : -1] if static else text, found)
            if (found.name, part.target.id) in _LONGS:
                kind = "long"
            if kind is not None:
                value = " = " + _default(kind) if static else ""
                yield f"public {'static final ' if static else ''}{kind} {part.target.id}{value};"
        elif isinstance(part, ast.FunctionDef):
            static = any(ast.unparse(one) == "staticmethod" for one in part.decorator_list)
            given = self._arguments(part, found, static)
            result = self._type(ast.unparse(part.returns) if part.returns else "None", found, part)
            if (found.name, part.name) in _LONGS:
                result = "long"
            if given is None or result is None:
                return
            if part.name == "__init__":
                yield f"public {found.node.name}({given}) {{ }}"
                return
            variables = _variables(found, part)
            ended = " { throw new RuntimeException(); }"
            abstract = any(one.arg.startswith("arg") for one in part.args.posonlyargs[1:]) or (
                interface and not static and not _has_names(part)
            )
            if interface and not static:
                words = "" if abstract or len(part.args.posonlyargs) <= 1 else "default "
                yield f"{words}{variables}{result} {part.name}({given}){ended if words else ';'}"
            else:
                yield f"public {'static ' if static else ''}{variables}{result} {part.name}({given}){ended}"

    def _arguments(self, part: ast.FunctionDef, found: _Class, static: bool) -> str | None:
        positional = [*part.args.posonlyargs, *part.args.args]
        named = positional if static else positional[1:]
        words = []
        for number, argument in enumerate(named):
            kind = self._type(ast.unparse(argument.annotation or ast.Name("None")), found, part)
            if kind is None:
                return None
            words.append(f"{kind} a{number}")
        if part.args.vararg is not None and part.args.vararg.annotation is not None:
            kind = self._type(ast.unparse(part.args.vararg.annotation), found, part)
            if kind is None:
                return None
            words.append(f"{kind}... rest")
        return ", ".join(words)

    def _type(
        self, text: str, found: _Class, function: ast.FunctionDef | None = None
    ) -> str | None:
        """A type as Java has it; None where it is not kept."""
        parts = [part for part in re.split(r" \| (?![^\[]*\])", text) if part != "None"] or ["None"]
        for part in parts:
            if part in _PRIMITIVES:
                return _PRIMITIVES[part]
        text = parts[0]
        if text in _PLAIN:
            return _PLAIN[text]
        if text.startswith("java.chaquopy.JavaArray["):
            inner = self._type(text[len("java.chaquopy.JavaArray[") : -1], found, function)
            return None if inner is None else f"{inner}[]"
        if text.startswith("typing.Type["):
            inner = self._type(text[len("typing.Type[") : -1], found, function)
            return (
                None if inner is None else f"Class<{'?' if inner == 'java.lang.Object' else inner}>"
            )
        if "__" in text and "[" not in text:
            return text.rpartition("__")[2]
        outer, bracket, inside = text.partition("[")
        if bracket:
            inner = [self._type(one, found, function) for one in _split(inside[:-1])]
            name = self._type(outer, found, function)
            if name is None or None in inner:
                return None
            return f"{name}<{', '.join(_boxed(one) for one in inner if one)}>"
        if text.startswith(_OUTSIDE):
            return text
        known = self._stubs.resolved(text, found.package)
        if known is not None:
            return known if known in self._kept else None
        return None


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _boxed(kind: str) -> str:
    return {"int": "Integer", "boolean": "Boolean", "long": "Long", "float": "Float"}.get(
        kind, kind
    )


def _default(kind: str) -> str:
    return {"boolean": "false", "String": '""'}.get(
        kind, "0" if kind in _PLAIN.values() or kind == "long" else "null"
    )


def _has_names(part: ast.FunctionDef) -> bool:
    return any(not one.arg.startswith("arg") for one in part.args.posonlyargs[1:])


def _parameters(found: _Class) -> str:
    for base in found.bases:
        if base.startswith("typing.Generic["):
            names = [one.rpartition("__")[2] for one in _split(base[len("typing.Generic[") : -1])]
            return f"<{', '.join(names)}>"
    return ""


def _variables(found: _Class, part: ast.FunctionDef) -> str:
    """Type variables of a method, which the stubs prefix with its name."""
    names = sorted(
        {
            one.id.rpartition("__")[2]
            for one in ast.walk(part)
            if isinstance(one, ast.Name) and one.id.startswith(f"_{part.name}_")
        }
    )
    return f"<{', '.join(names)}> " if names else ""


def imports(sources: Iterable[Path]) -> set[str]:
    """The classes of Android that Kotlin sources import, or name whole."""
    found: set[str] = set()
    for source in sources:
        text = source.read_text("utf-8")
        found.update(re.findall(r"^import (android\.[\w.]+)", text, re.MULTILINE))
        found.update(re.findall(r"\bandroid\.R\b", text))
    return found


def write_resources(res: Path, package: str, folder: Path) -> None:
    """``R`` of the resources in ``res``, as Java."""
    kinds: dict[str, set[str]] = {"drawable": {path.stem for path in (res / "drawable").glob("*")}}
    for path in sorted(res.glob("values/*.xml")):
        for element in ElementTree.parse(path).getroot():
            kinds.setdefault(element.tag, set()).add(element.attrib["name"])
    inner = "\n".join(
        f"public static final class {kind} {{ "
        + " ".join(f"public static final int {name} = 0;" for name in sorted(names))
        + " }"
        for kind, names in sorted(kinds.items())
    )
    path = folder.joinpath(*package.split("."), "R.java")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"package {package};\npublic final class R {{\n{inner}\n}}\n")
