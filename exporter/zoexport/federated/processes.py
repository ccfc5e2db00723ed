"""Flower's programs as child processes: paths, arguments, and termination with this process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.children import die_with_parent
from zoexport.core.children import ended as ended_with
from zoexport.core.errors import ConfigError, ZoExportError
from zoexport.federated import flower, front
from zoexport.federated.keys import NodeKeys

CONNECTION = "zoexport"
"""What Flower's configuration calls our SuperLink."""
START_SECONDS = 120.0
_POLL = 0.5


@dataclasses.dataclass(frozen=True)
class Access:
    """Address of the server, and clients with access.

    Attributes:
        host, port: address that the server listens on.
        ca: certificate of the authority. certificate, key: the server's own, PEM.
        nodes: folder with a public key ``NAME.pub`` for each client.
    """

    host: str
    port: int
    ca: Path
    certificate: Path
    key: Path
    nodes: Path

    def keys(self) -> NodeKeys:
        """Return the clients' public keys.

        Raises:
            ConfigError: a file or the keys are missing or wrong.
        """
        for path in (self.ca, self.certificate, self.key):
            readable(path)
        found = NodeKeys(self.nodes)
        found.checked()
        return found


def readable(path: Path) -> None:
    """See that a file can be read.

    Raises:
        ConfigError: it cannot.
    """
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(
            str(path),
            found=error.strerror or str(error),
            expected="a key or certificate that can be read",
            fix="Correct the path; docs/federation.md says how to make them.",
        ) from error


@dataclasses.dataclass(frozen=True)
class Link:
    """Flower's SuperLink on loopback.

    Attributes:
        process: its process. address: HOST:PORT. certificate: its own, made for this start.
    """

    process: subprocess.Popen[bytes]
    address: str
    certificate: Path


@contextlib.contextmanager
def superlink(state: Path, home: Path) -> Iterator[Link]:
    """Flower's server, for this machine alone (``front``), with TLS, and open to registered nodes only."""
    certificate, key = front.own_certificate(home)
    port = free_port()
    command = [
        program("flower-superlink"),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--host", front.LOOPBACK),
        *("--port", str(port)),
        *("--ssl-ca-certfile", str(certificate)),
        *("--ssl-certfile", str(certificate)),
        *("--ssl-keyfile", str(key)),
    ]
    with process(command, state / "superlink.log", home) as started:
        yield Link(started, f"{front.LOOPBACK}:{port}", certificate)


@contextlib.contextmanager
def process(
    command: list[str], log: Path, home: Path, more: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """One of Flower's programs, its output in a file; it is dead when the block is left."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**_environment(home), **(more or {})},
            preexec_fn=die_with_parent,
        )
        with ended_with(started):
            try:
                yield started
            finally:
                # On SIGTERM it ends its own children.
                started.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(10)


def program(name: str) -> str:
    """Return the path of a program in this Python environment, regardless of PATH."""
    return str(Path(sys.executable).with_name(name))


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: FLWR_HOME, PATH and PYTHONPATH."""
    programs = str(Path(sys.executable).parent)
    root = str(Path(__file__).resolve().parents[2])
    return {
        **os.environ,
        **flower.QUIET,
        "FLWR_HOME": str(home.resolve()),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
    }


def flwr_command(home: Path, *arguments: str) -> dict[str, Any]:
    """Return the JSON output of a Flower command; ``success`` is False if it failed."""
    found = subprocess.run(
        [program("flwr"), *arguments, "--format", "json"],
        env=_environment(home),
        capture_output=True,
        text=True,
    )
    with contextlib.suppress(ValueError):
        return dict(json.loads(found.stdout[found.stdout.index("{") :]))
    lines = (found.stderr or found.stdout).strip().splitlines()
    return {"success": False, "error-message": lines[-1] if lines else "no message"}


class Registry:
    """Registers the folder's keys with the SuperLink, including keys added at run time."""

    def __init__(self, home: Path, keys: NodeKeys, link: Link, log: Path) -> None:
        self._home, self._keys, self._link, self._log = home, keys, link, log
        self._done: set[bytes] = set()

    def update(self) -> None:
        """Register keys that are new in the folder. One that is gone is refused by ``front`` before it gets here.

        Raises:
            ZoExportError: the SuperLink takes none.
        """
        for path in self._keys.paths():
            known = self._keys.current()
            for key in [key for key, name in known.items() if name == path.stem]:
                if key not in self._done:
                    self._register(path)
                    self._done.add(key)

    def _register(self, path: Path) -> None:
        end = time.monotonic() + START_SECONDS
        given = (str(path.resolve()), CONNECTION, "--name", path.stem)
        while True:
            found = flwr_command(self._home, "supernode", "register", *given)
            if found.get("success"):
                return
            if self._link.process.poll() is not None or time.monotonic() > end:
                raise ZoExportError(
                    "Flower's SuperLink",
                    found=f"no registration of {path.name} ({found.get('error-message')})",
                    expected="it to start, and take the key",
                    fix=f"See {self._log}.",
                )
            time.sleep(_POLL)


def free_port() -> int:
    """Return a port of this machine that nothing listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(server: str) -> None:
    """Wait until something listens at HOST:PORT: Flower's own pauses grow to half a minute.

    Raises:
        ConfigError: it is no HOST:PORT.
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"--server {server}",
            found="no HOST:PORT",
            expected="where 'zoexport federate server' listens",
            fix="Write it as example.org:9092.",
        )
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        time.sleep(_POLL)
