"""What a disk may hold after the power went: calls that nothing has synced, lost or in another order.

A file's content is on the disk for sure once the file was synced, a name in a folder once the folder was. Of the rest
any part may be there. What was written to one page of a file goes with all that was written there later, as a page is
stored as it was at one moment; a file's length may be stored without its content, which then is zeros.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from tests.crash.points import PAGE, Call

_DATA = ("write", "truncate", "fallocate")
_NAMES = ("create", "rename", "unlink", "mkdir")
#: Subsets drawn for each moment, beside the regular ones.
DRAWN = 3


@dataclasses.dataclass(frozen=True)
class Image:
    """What is on the disk: the content of each file by its path below the root, and the folders."""

    files: tuple[tuple[str, bytes], ...]
    folders: tuple[str, ...]

    def write(self, folder: Path, mapped: dict[str, bytes]) -> None:
        """Lay the files out below ``folder``; ``mapped`` files were written by other means than calls."""
        for name in self.folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, content in self.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(mapped.get(path.name, content))


@dataclasses.dataclass
class _Event:
    """A call, with the file that it concerns rather than the file's name."""

    call: Call
    file: int
    zeros: bool = False


class Disk:
    """The calls of one run or several on the same folder, in order.

    Args:
        calls: of all processes.
        root: paths below it count.
        before: a folder like it with what was stored there before.
    """

    def __init__(self, calls: Sequence[Call], root: Path, before: Path | None = None) -> None:
        self.root = root
        self.events: list[_Event] = []
        paths = sorted(before.rglob("*")) if before is not None and before.exists() else []
        self.stored = {
            str(path.relative_to(before)): path.read_bytes() for path in paths if path.is_file()
        }
        self.folders = {str(path.relative_to(before)) for path in paths if path.is_dir()}
        names = {name: number for number, name in enumerate(self.stored, 1)}
        files = len(names)
        for call in calls:
            path = self._below(call.path)
            if path is None:
                continue
            if call.operation == "create":
                files += 1
                names[path] = files
            elif call.operation == "rename":
                second = self._below(call.second)
                assert second is not None
                names[second] = names.pop(path)
            known = names.get(self._below(call.second) or path, 0)
            if call.operation == "unlink":
                if path not in names:  # of a file without a name
                    continue
                names.pop(path)
            self.events.append(_Event(call, known))

    def _below(self, path: str) -> str | None:
        if not path or path.endswith(" (deleted)") or "XXXXXX" in path:
            return None
        return str(PurePosixPath(path).relative_to(self.root))

    def images(self, moment: int) -> Iterator[Image]:
        """What the disk may hold after the first ``moment`` calls."""
        happened = self.events[:moment]
        pending = [number for number in range(moment) if not self._is_stored(number, moment)]
        choose = random.Random(moment)
        names = {n for n in pending if self.events[n].call.operation in _NAMES}
        subsets: list[set[int]] = [set(), {*pending}, names, {*pending} - names]
        subsets += [{*pending} - {lost} for lost in pending] + [{kept} for kept in pending]
        subsets += [{n for n in pending if choose.random() < 0.5} for _ in range(DRAWN)]
        made: set[Image] = set()
        for zeros in (False, True):
            for subset in subsets:
                kept = [
                    dataclasses.replace(event, zeros=zeros and number in pending)
                    for number, event in enumerate(happened)
                    if number not in pending or number in self._with_pages(subset, pending)
                ]
                made.add(self._apply(kept))
        yield from sorted(made, key=repr)

    def sizes(self, moment: int, name: str) -> tuple[int, int]:
        """The bytes that a file had after the first ``moment`` calls, and how many of them were synced."""
        sizes = {number: len(c) for number, c in enumerate(self.stored.values(), 1)}
        names = {stored: number for number, stored in enumerate(self.stored, 1)}
        synced = dict(sizes)
        for event in self.events[:moment]:
            call, file = event.call, event.file
            path, second = self._below(call.path), self._below(call.second)
            if call.operation == "create" and path is not None:
                names[path] = file
            elif call.operation == "rename" and path is not None and second is not None:
                names[second] = names.pop(path)
            elif call.operation == "write":
                sizes[file] = max(sizes.get(file, 0), call.offset + call.size)
            elif call.operation == "truncate":
                sizes[file] = call.size
                synced[file] = min(synced.get(file, 0), call.size)
            elif call.operation == "sync":
                synced[file] = sizes.get(file, 0)
        file = names.get(name, 0)
        return sizes.get(file, 0), synced.get(file, 0)

    def _is_stored(self, number: int, moment: int) -> bool:
        """Whether a call's effect was synced by a later one."""
        event = self.events[number]
        for later in self.events[number + 1 : moment]:
            if later.call.operation != "sync":
                continue
            if event.call.operation in _DATA:
                if later.file == event.file:
                    return True
            elif event.call.operation == "sync" or self._folders(event) <= {later.call.path}:
                return True
        return event.call.operation == "sync"

    def _folders(self, event: _Event) -> set[str]:
        """The folders whose names a call changes."""
        paths = [event.call.path, *([event.call.second] if event.call.second else [])]
        return {str(PurePosixPath(path).parent) for path in paths}

    def _with_pages(self, subset: set[int], pending: list[int]) -> set[int]:
        """Without writes to a page of which an earlier one was lost."""
        kept = set(subset)
        lost: set[tuple[int, int]] = set()
        for number in pending:
            event = self.events[number]
            if event.call.operation not in _DATA:
                continue
            end = event.call.offset + max(event.call.size, 1)
            pages = {
                (event.file, page) for page in range(event.call.offset // PAGE, -(-end // PAGE))
            }
            if number not in kept or pages & lost:
                kept.discard(number)
                lost |= pages
        return kept

    def _apply(self, events: Sequence[_Event]) -> Image:
        contents = {number: bytearray(c) for number, c in enumerate(self.stored.values(), 1)}
        names = {name: number for number, name in enumerate(self.stored, 1)}
        folders = set(self.folders)
        for event in events:
            call, path = event.call, self._below(event.call.path)
            assert path is not None
            if call.operation == "mkdir":
                folders.add(path)
            elif call.operation == "create":
                names[path] = event.file
                contents.setdefault(event.file, bytearray())
            elif call.operation == "unlink":
                names.pop(path, None)
            elif call.operation == "rename":
                # Also where the old name was never stored: names of one file change together.
                names.pop(path, None)
                second = self._below(call.second)
                assert second is not None
                names[second] = event.file
                contents.setdefault(event.file, bytearray())
            elif call.operation == "truncate":
                content = contents.setdefault(event.file, bytearray())
                del content[call.size :]
                content.extend(bytes(call.size - len(content)))
            elif call.operation in ("write", "fallocate"):
                content = contents.setdefault(event.file, bytearray())
                end = call.offset + call.size
                content.extend(bytes(max(0, end - len(content))))
                if call.operation == "write" and not event.zeros:
                    content[call.offset : end] = call.written
        there = [
            (name, bytes(contents[file]))
            for name, file in sorted(names.items())
            if all(str(p) in folders for p in PurePosixPath(name).parents if str(p) != ".")
        ]
        return Image(tuple(there), tuple(sorted(folders)))
