"""Flower's SuperLink and SuperNodes as processes of this machine, through the command line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.federated import models
from zoexport.federated.aggregate import Replayer
from zoexport.federated.protocol import Reply, Trajectory
from zoexport.federated.store import read_federation
from zoexport.federated.terms import Terms
from zoexport.session import Bundle, Session, no_programs

ROOT = Path(__file__).parents[2]
NAMES = ("ann", "bob", "eve")
OUTSIDE = "127.0.0.2"
"""Another address of loopback, which stands for the one that others reach."""


def make_keys(folder: Path) -> Path:
    """Made by the commands of docs/federation.md; the server's certificate has :data:`OUTSIDE` too."""
    page = (ROOT / "docs" / "federation.md").read_text("utf-8")
    found = re.search(r"<!-- keys -->\n```sh\n(.*?)```", page, re.DOTALL)
    assert found
    commands = found[1].replace("IP:127.0.0.1", f"IP:127.0.0.1,IP:{OUTSIDE}")
    subprocess.run(["bash", "-ec", commands], cwd=folder, check=True, capture_output=True)
    return folder


def make_data(folder: Path) -> dict[str, Path]:
    """Each client's own."""
    words = ["a", "film", "good", "bad", "the", "was", "it", "long"]
    found = {}
    for number, name in enumerate(NAMES):
        generator = np.random.default_rng(number)
        lines = [{"text": " ".join(generator.choice(words, 6))} for _ in range(8)]
        found[name] = folder / f"{name}.jsonl"
        found[name].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(faults: Path | None, hooks: Path | None = None) -> dict[str, str]:
    path = [str(ROOT / "exporter"), str(ROOT)]
    extra = {}
    if hooks is not None:
        path.insert(0, str(hooks))
    if faults is not None:
        path.insert(0, str(ROOT / "tests" / "support" / "faulty"))
        extra["ZOEXPORT_TEST_FAULTS"] = str(faults)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **extra}


class Federation:
    """A server and clients as processes of this machine."""

    def __init__(
        self,
        folder: Path,
        bundle: Path,
        keys: Path,
        *,
        host: str = "127.0.0.1",
        nodes: Path | None = None,
    ) -> None:
        self.folder, self.bundle, self.keys, self.host = folder, bundle, keys, host
        self.nodes = nodes or keys / "nodes"
        self.port = free_port()

    @contextlib.contextmanager
    def client(
        self,
        name: str,
        data: Path,
        *,
        key: Path | None = None,
        ca: Path | None = None,
        faults: Path | None = None,
        options: tuple[str, ...] = (),
    ) -> Iterator[subprocess.Popen[bytes]]:
        line = ["client", self.bundle, "--data", data, "--state", self.folder / name]
        line += ["--server", f"{self.host}:{self.port}", "--ca", ca or self.keys / "ca.crt"]
        line += ["--key", key or self.keys / f"{name}.key"]
        with self._started(name, [*line, *options], faults) as process:
            yield process

    @contextlib.contextmanager
    def _started(
        self, name: str, line: list[Any], faults: Path | None, hooks: Path | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "zoexport", "federate", *map(str, line), "--debug"]
        with (self.folder / f"{name}.out").open("ab") as output:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=output, env=environment(faults, hooks)
            )
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                if process.stdout:
                    process.stdout.close()

    @contextlib.contextmanager
    def server(
        self,
        *,
        rounds: int,
        sample: int = 3,
        timeout: int = 60,
        faults: Path | None = None,
        hooks: Path | None = None,
        options: tuple[str, ...] = (),
    ) -> Iterator[subprocess.Popen[bytes]]:
        line = ["server", self.bundle, "--state", self.folder / "server", "--port", self.port]
        line += ["--host", self.host, "--nodes", self.nodes, "--ca", self.keys / "ca.crt"]
        line += ["--certificate", self.keys / "server.pem", "--key", self.keys / "server.key"]
        line += ["--sample", sample, "--rounds", rounds, "--timeout", timeout, "--json"]
        with self._started("server-process", [*line, *options], faults, hooks) as process:
            yield process

    def result(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        output, _ = process.communicate(timeout=seconds)
        log = (self.folder / "server-process.out").read_text()
        assert process.returncode == 0, f"{output.decode()}\n{log[-4000:]}"
        found: dict[str, Any] = json.loads(output)
        return found

    def rounds(self) -> list[dict[str, Any]]:
        paths = sorted((self.folder / "server" / "rounds").glob("*/round.json"))
        return [json.loads(path.read_text()) for path in paths]

    def terms(self) -> Terms:
        content = dict(read_federation(self.folder / "server")["terms"])
        content.pop("sample")
        return Terms.of(content)

    def compare_last_round(self) -> int:
        """Each client's own state folder against the replay of what it sent; how many there were."""
        terms, found = self.terms(), self.rounds()
        number = len(found) - 1
        folder = self.folder / "server"
        before = models.initial(Bundle.open(self.bundle))
        if number:
            content = (folder / "models" / f"model-{number}.safetensors").read_bytes()
            before = models.unpack(content, models.sizes_of(before), "")
        numbers = json.loads((folder / "clients.json").read_text())
        compared = 0
        for name, client in numbers.items():
            if client not in found[number]["clients"]:
                continue
            (state,) = (self.folder / name).glob("round-*")
            reply = Reply.unpack(
                (folder / "rounds" / f"{number:06d}" / f"reply-{client}.bin").read_bytes()
            )
            trajectory = Trajectory.unpack(reply.body, terms.steps, terms.scalars)
            seed = terms.client_seed(number, client)
            replayed = Replayer(Bundle.open(self.bundle)).model(before, seed, trajectory, terms)
            with Session.open(self.bundle, engine=no_programs, verify=False) as session:
                session.attach(state, read_only=True)
                assert session.info.steps == terms.steps
                for slot, values in replayed.items():
                    assert session.read_slot(slot).tobytes() == values.tobytes()
            compared += 1
        return compared


def wait_for(what: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what.exists():
        assert time.monotonic() < end, f"no {what}"
        time.sleep(0.2)
