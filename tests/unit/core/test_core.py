"""core: errors, the registry, and files that are whole or absent."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zoexport.core import errors, files
from zoexport.core.errors import ConfigError, ZoExportError, first_line, nearest

# ---- errors -----------------------------------------------------------------------------------------------------


def test_a_message_says_where_what_was_found_what_was_expected_and_what_to_do() -> None:
    error = ConfigError("setting 'x'", found="0", expected="more than 0", fix="Give more.")
    assert str(error) == "setting 'x': found 0; expected more than 0. Give more."
    assert error.as_dict() == {
        "where": "setting 'x'",
        "found": "0",
        "expected": "more than 0",
        "fix": "Give more.",
    }


def test_every_error_is_of_the_family_and_has_an_exit_code_that_is_not_zero() -> None:
    family = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert len(family) >= 10
    for kind in family:
        assert issubclass(kind, ZoExportError)
        assert 0 < kind.exit_code < 256


def test_nearest_names_what_was_meant_and_nothing_else() -> None:
    assert nearest("lora.rnak", ["lora.r", "lora.alpha"]) == " Did you mean 'lora.r'?"
    assert nearest("zzz", ["lora.r"]) == ""


def test_first_line_of_an_error_without_a_message_is_its_type() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"


# ---- registry ---------------------------------------------------------------------------------------------------


# ---- files ------------------------------------------------------------------------------------------------------


def test_sha256_is_that_of_the_content(tmp_path: Path) -> None:
    content = os.urandom((1 << 20) + 17)
    (tmp_path / "file").write_bytes(content)
    assert files.sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "made" / "file"
    with files.atomic_file(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"

    def interrupted() -> None:
        with files.atomic_file(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder"

    def interrupted() -> None:
        with files.atomic_folder(path) as temporary:
            (temporary / "half").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []
    with files.atomic_folder(path) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "file").write_text("whole")
        assert not path.exists()
    assert (path / "sub" / "file").read_text() == "whole"
    assert os.listdir(tmp_path) == ["folder"]


def test_a_folder_that_is_there_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("old")

    def write(*, replace: bool) -> None:
        with files.atomic_folder(path, replace=replace) as temporary:
            (temporary / "new").write_text("new")

    with pytest.raises(ConfigError, match=r"already there.*force=True"):
        write(replace=False)
    assert os.listdir(path) == ["old"]
    write(replace=True)
    assert os.listdir(path) == ["new"]
    assert os.listdir(tmp_path) == ["folder"]


def test_a_replacement_that_fails_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("old")

    def fail() -> None:
        with files.atomic_folder(path, replace=True) as temporary:
            (temporary / "new").write_text("new")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ConfigError, match="No space left on device"):
        fail()
    assert (path / "old").read_text() == "old"
    assert os.listdir(tmp_path) == ["folder"]


def _write_file(path: Path) -> None:
    with files.atomic_file(path) as temporary:
        temporary.write_text("content")


def _write_folder(path: Path) -> None:
    with files.atomic_folder(path) as temporary:
        (temporary / "file").write_text("content")


@pytest.mark.parametrize("write", [_write_file, _write_folder])
def test_a_place_that_cannot_be_written_is_one_clear_error(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    # A file where a folder is needed refuses everyone, root included.
    (tmp_path / "blocker").write_text("a file")
    with pytest.raises(ConfigError, match=r"output .*Nothing was written") as caught:
        write(tmp_path / "blocker" / "output")
    assert caught.value.exit_code == 2
    assert os.listdir(tmp_path) == ["blocker"]


@pytest.mark.parametrize("write", [_write_file, _write_folder])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_to_full(path: Path, text: str) -> int:
        with open("/dev/full", "w") as full:
            return full.write(text)

    monkeypatch.setattr(Path, "write_text", write_to_full)
    with pytest.raises(ConfigError, match="No space left on device"):
        write(tmp_path / "output")
    assert os.listdir(tmp_path) == []
