"""An ``adb`` whose phones are folders: ``$FAKE_PHONES/<serial>`` is a phone's root.

Commands of its shell run on this machine, with the phone's paths in place of /data/local/tmp. What ``getprop`` says is
in ``<serial>/properties.json``; ``<serial>/state`` is another state than "device", and ``<serial>/environment.json``
holds variables of the shell. The app is installed where there is
``<serial>/data/user/0/<package>``: a broadcast to it imports by the session's library, as TrainingModel.importPushed
does, and prints what ``am`` prints; one that does not answer has a file ``killed`` there, and one that ships a
key ``trusted.pub``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

STORAGE = ("/data/local/tmp",)
APPS = "data/user/0"
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
    words = shlex.split(command)
    if words[:3] == ["pm", "list", "packages"]:
        for app in sorted((phone / APPS).glob("*")):
            if words[3] in app.name:
                say(f"package:{app.name}")
        return 0
    if words[:2] == ["am", "broadcast"]:
        return broadcast(phone, words[2:])
    own = phone / "environment.json"
    environment = os.environ | (json.loads(own.read_text()) if own.exists() else {})
    line = ["sh", "-c", there(phone, command)]
    return subprocess.run(line, cwd=phone, env=environment).returncode


def broadcast(phone: Path, words: list[str]) -> int:
    stopped, named, component, *extra = words
    assert (stopped, named) == ("--include-stopped-packages", "-n"), words
    package, _, receiver = component.partition("/")
    assert receiver == "zoexport.app.background.ImportReceiver"
    say(f"Broadcasting: Intent {{ flg=0x400020 cmp={component} (has extras) }}")
    app = phone / APPS / package
    if (app / "killed").exists():
        say("Broadcast completed: result=0")
        return 0
    kind, key, path = extra
    assert (kind, key) == ("--es", "file")
    file = Path(there(phone, path))
    # What another user of the phone may read.
    assert file.stat().st_mode & 0o004 and all(
        folder.stat().st_mode & 0o001 for folder in (file.parent, file.parent.parent)
    )
    code, data = imported(file, app)
    say(f'Broadcast completed: result={code}, data="{data}"')
    return 0


def imported(file: Path, app: Path) -> tuple[int, str]:
    from zoexport.core.errors import ZoExportError
    from zoexport.tools.packing import unpack

    target = app / "files" / "bundles" / file.stem
    target.parent.mkdir(parents=True, exist_ok=True)
    key = app / "trusted.pub"
    trust = [key] if key.exists() else None
    try:
        unpack(file, target, force=True, trust=trust, progress=lambda text, part: None)
    except ZoExportError as error:
        return 1, "\n".join(error.as_dict().values())
    return -1, str(target)


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
