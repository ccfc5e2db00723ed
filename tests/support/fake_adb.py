"""An ``adb`` whose phones are folders: ``$FAKE_PHONES/<serial>`` is a phone's root.

Commands of its shell run on this machine, with the phone's paths in place of /data/local/tmp and /sdcard. What
``getprop`` says is in ``<serial>/properties.json``; ``<serial>/state`` is another state than "device".
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

STORAGE = ("/data/local/tmp", "/sdcard")
PHONES = Path(os.environ["FAKE_PHONES"])


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def there(phone: Path, text: str) -> str:
    for path in STORAGE:
        text = text.replace(path, f"{phone}{path}")
    return text


def devices() -> None:
    say("List of devices attached")
    for phone in sorted(PHONES.iterdir()):
        state = phone / "state"
        said = state.read_text() if state.exists() else "device"
        say(
            f"{phone.name}       {said} usb:1-1 product:fake model:Fake_Phone device:fake transport_id:1"
        )
    say("")


def shell(phone: Path, command: str) -> int:
    if command.startswith("getprop "):
        properties = json.loads((phone / "properties.json").read_text())
        say(properties[command.split()[1]])
        return 0
    return subprocess.run(["sh", "-c", there(phone, command)], cwd=phone).returncode


def copy(source: str, target: Path) -> int:
    if source.endswith("/."):
        if not Path(source).is_dir():
            sys.stderr.write(
                f"adb: error: cannot stat '{source}': No such file or directory" + "\n"
            )
            return 1
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
    say(f"{source}: 1 file pushed")
    return 0


def main(arguments: list[str]) -> int:
    if arguments[0] == "devices":
        devices()
        return 0
    assert arguments[0] == "-s", arguments
    phone, verb, rest = PHONES / arguments[1], arguments[2], arguments[3:]
    if (phone / "broken").exists():
        sys.stderr.write("adb: device offline" + "\n")
        return 1
    if verb == "shell":
        return shell(phone, " ".join(rest))
    source, target = rest
    if verb == "push":
        return copy(source, Path(there(phone, target)))
    assert verb == "pull"
    return copy(there(phone, source), Path(target))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
