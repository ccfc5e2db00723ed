"""The app that Flower is given: a few lines that call zoexport, the same on all sides, so that clients know it.

The server registers it with its SuperLink; a client makes it too, and takes no other (``supernode``).
"""

from __future__ import annotations

import hashlib
import io
import zipfile

PACKAGE = "zoexport_federation"
_LARGEST = 1 << 16
_PROJECT = f"""[project]
name = "zoexport-federation"
version = "1.0.0"
description = "zoexport's federated training"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "zoexport"
fab-format-version = 0

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server:app"
clientapp = "{PACKAGE}.client:app"

[tool.flwr.app.config]
job = ""
"""
#: Paths and texts.
FILES = {
    "pyproject.toml": _PROJECT,
    f"{PACKAGE}/__init__.py": '"""What Flower gives its processes; zoexport does the work."""\n',
    f"{PACKAGE}/server.py": "from zoexport.federated import apps\n\napp = apps.server()\n",
    f"{PACKAGE}/client.py": "from zoexport.federated import apps\n\napp = apps.client()\n",
}


def our_hash() -> str:
    """:func:`content_hash` of our app, built as the server's Flower builds it."""
    from flwr.cli.build import build_fab_from_files

    built, _ = build_fab_from_files({name: text.encode() for name, text in FILES.items()})
    return content_hash(built)


def content_hash(fab: bytes) -> str:
    """SHA-256 over the names and contents of an app's files.

    Not over the archive, whose bytes depend on the compressor of the machine that made it.

    Raises:
        ValueError: no archive, a name twice, or more than an app like ours has.
    """
    found = hashlib.sha256()
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as archive:
            entries = sorted(archive.infolist(), key=lambda entry: entry.filename)
            names = [entry.filename for entry in entries]
            if len(set(names)) != len(names) or len(names) > 2 * len(FILES):
                raise ValueError("names twice, or too many")
            if sum(entry.file_size for entry in entries) > _LARGEST:
                raise ValueError("larger than our app")
            for entry in entries:
                content = archive.read(entry)
                found.update(f"{len(entry.filename)} {entry.filename} {len(content)}\n".encode())
                found.update(content)
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    return found.hexdigest()
