"""Flower's programs as children of this process: where they are, what they are given, and that they end with it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoexport.core import trust
from zoexport.core.children import die_with_parent
from zoexport.core.children import ended as ended_with
from zoexport.core.errors import ConfigError, ZoExportError
from zoexport.federated import flower

CONNECTION = "zoexport"
"""What Flower's configuration calls our SuperLink."""
START_SECONDS = 120.0
_POLL = 0.5


@dataclasses.dataclass(frozen=True)
class Access:
    """How the server is reached, and who may.

    Attributes:
        host, port: what it listens on.
        ca: the certificate of the authority. certificate, key: the server's own, PEM.
        nodes: a folder with a public key ``NAME.pub`` for each client.
    """

    host: str
    port: int
    ca: Path
    certificate: Path
    key: Path
    nodes: Path

    def keys(self) -> list[Path]:
        """The clients' public keys, by name.

        Raises:
            ConfigError: a file or the keys are missing.
        """
        for path in (self.ca, self.certificate, self.key):
            readable(path)
        found = sorted(self.nodes.glob("*.pub"))
        if not found:
            raise ConfigError(
                f"--nodes {self.nodes}",
                found="no public key",
                expected="a file NAME.pub for each client that may take part",
                fix="Make keys as docs/federated.md says, and copy the public halves there.",
            )
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
            fix="Correct the path; docs/federated.md says how to make them.",
        ) from error


@contextlib.contextmanager
def superlink(state: Path, access: Access, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Flower's server, with TLS, and open to nodes whose keys are registered only."""
    command = [
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--host", access.host),
        *("--port", str(access.port)),
        *("--ssl-ca-certfile", str(access.ca.resolve())),
        *("--ssl-certfile", str(access.certificate.resolve())),
        *("--ssl-keyfile", str(access.key.resolve())),
    ]
    with process("flower-superlink", command, state / "superlink.log", home) as started:
        yield started


@contextlib.contextmanager
def process(
    name: str, arguments: list[str], log: Path, home: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """One of Flower's programs, its output in a file; it is dead when the block is left."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            [_program(name), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_environment(home),
            preexec_fn=die_with_parent,
        )
        with ended_with(started):
            try:
                yield started
            finally:
                # It ends its own children where it is asked to end.
                started.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(10)


def _program(name: str) -> str:
    """A program of this environment, whatever the PATH says."""
    return str(Path(sys.executable).with_name(name))


def _environment(home: Path) -> dict[str, str]:
    """With Flower's home in our folder, and our package and its programs where Flower's processes look for them."""
    programs = str(Path(sys.executable).parent)
    root = str(Path(__file__).resolve().parents[2])
    return {
        **os.environ,
        **flower.QUIET,
        **trust.environment(),
        "FLWR_HOME": str(home.resolve()),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
    }


def flwr_command(home: Path, *arguments: str) -> dict[str, Any]:
    """What a command of Flower's says as JSON; ``success`` is False where it failed."""
    found = subprocess.run(
        [_program("flwr"), *arguments, "--format", "json"],
        env=_environment(home),
        capture_output=True,
        text=True,
    )
    with contextlib.suppress(ValueError):
        return dict(json.loads(found.stdout[found.stdout.index("{") :]))
    lines = (found.stderr or found.stdout).strip().splitlines()
    return {"success": False, "error-message": lines[-1] if lines else "no message"}


def register(home: Path, keys: list[Path], link: subprocess.Popen[bytes], state: Path) -> None:
    """Register with the SuperLink which keys may take part, under which names; waits until it answers."""
    end = time.monotonic() + START_SECONDS
    for key in keys:
        path = str(key.resolve())
        while True:
            found = flwr_command(
                home, "supernode", "register", path, CONNECTION, "--name", key.stem
            )
            if found.get("success"):
                break
            if link.poll() is not None or time.monotonic() > end:
                raise ZoExportError(
                    "Flower's SuperLink",
                    found=f"no registration of {key.name} ({found.get('error-message')})",
                    expected="it to start, and take the key",
                    fix=f"See {state / 'superlink.log'}; check port, certificates and key.",
                )
            time.sleep(_POLL)


def free_port() -> int:
    """A port of this machine that nothing listens on now."""
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
