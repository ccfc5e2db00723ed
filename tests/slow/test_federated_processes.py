"""Flower's SuperLink and SuperNodes as processes on loopback, with TLS and authentication, and what goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import smollm2
from tests.support.compiled import Compiler
from zoexport.data.samples import Samples
from zoexport.federated import models
from zoexport.federated.aggregate import Replayer
from zoexport.federated.protocol import Reply, Trajectory
from zoexport.federated.store import read_federation
from zoexport.federated.terms import Terms
from zoexport.session import Session, no_programs

pytestmark = [pytest.mark.slow, pytest.mark.federation]
ROOT = Path(__file__).parents[2]
NAMES = ("ann", "bob", "eve")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the commands of docs/federated.md."""
    folder = tmp_path_factory.mktemp("keys")
    page = (ROOT / "docs" / "federated.md").read_text("utf-8")
    found = re.search(r"<!-- keys -->\n```sh\n(.*?)```", page, re.DOTALL)
    assert found
    subprocess.run(["bash", "-ec", found[1]], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each client's own."""
    folder = tmp_path_factory.mktemp("data")
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


def environment(faults: Path | None) -> dict[str, str]:
    path = [str(ROOT / "exporter"), str(ROOT)]
    extra = {}
    if faults is not None:
        path.insert(0, str(ROOT / "tests" / "support" / "faulty"))
        extra["ZOEXPORT_TEST_FAULTS"] = str(faults)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **extra}


class Federation:
    """A server and clients as processes of this machine."""

    def __init__(self, folder: Path, bundle: Path, keys: Path) -> None:
        self.folder, self.bundle, self.keys = folder, bundle, keys
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
    ) -> Iterator[subprocess.Popen[bytes]]:
        line = ["client", self.bundle, "--data", data, "--state", self.folder / name]
        line += ["--server", f"127.0.0.1:{self.port}", "--ca", ca or self.keys / "ca.crt"]
        line += ["--key", key or self.keys / f"{name}.key"]
        with self._started(name, line, faults) as process:
            yield process

    @contextlib.contextmanager
    def _started(
        self, name: str, line: list[Any], faults: Path | None
    ) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "zoexport", "federate", *map(str, line), "--debug"]
        with (self.folder / f"{name}.out").open("ab") as output:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=output, env=environment(faults)
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
        options: tuple[str, ...] = (),
    ) -> Iterator[subprocess.Popen[bytes]]:
        line = ["server", self.bundle, "--state", self.folder / "server", "--port", self.port]
        line += ["--nodes", self.keys / "nodes", "--ca", self.keys / "ca.crt"]
        line += ["--certificate", self.keys / "server.pem", "--key", self.keys / "server.key"]
        line += ["--sample", sample, "--rounds", rounds, "--timeout", timeout, "--json"]
        with self._started("server-process", [*line, *options], faults) as process:
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
        before = models.initial(self.bundle)
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
            replayed = Replayer(self.bundle).model(before, seed, trajectory, terms)
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


def upload_bound(terms: Terms) -> int:
    return 8 * terms.steps * terms.scalars + 1000


@pytest.mark.parametrize(
    ("method", "settings"),
    [("prge", {"queries": 2}), ("spzo", {"split": "layer:1", "perturbations": "2,2"})],
)
def test_three_clients_three_rounds(
    compiler: Compiler,
    keys: Path,
    tiny_data: Mapping[str, Path],
    tmp_path: Path,
    method: str,
    settings: dict[str, Any],
) -> None:
    federation = Federation(tmp_path, compiler.bundle("llama", method, **settings), keys)
    with contextlib.ExitStack() as stack:
        for name in NAMES:
            stack.enter_context(federation.client(name, tiny_data[name]))
        server = stack.enter_context(federation.server(rounds=3, options=("--steps", "4")))
        result = federation.result(server, 900)
    assert result["rounds"] == 3 and result["refused"] == 0
    assert result["upload_largest"] <= upload_bound(federation.terms())
    assert all(found["clients"] == [0, 1, 2] for found in federation.rounds())
    assert federation.compare_last_round() == 3


@pytest.mark.network
@pytest.mark.parametrize(
    ("method", "settings"), [("prge", {"queries": 1, "seq_len": 32, "batch": 2})]
)
def test_three_clients_train_smollm2(
    keys: Path, samples: Samples, tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    bundle, _ = smollm2.compiled("--target", "host", "--method", method, *given)
    federation = Federation(tmp_path, bundle, keys)
    lines = samples.train.read_text("utf-8").splitlines(keepends=True)
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(NAMES):
            data = tmp_path / f"{name}.jsonl"
            data.write_text("".join(lines[50 * number : 50 * number + 50]), encoding="utf-8")
            stack.enter_context(federation.client(name, data))
        options = ("--steps", "2", "--set", "loss=choices")
        server = stack.enter_context(federation.server(rounds=3, timeout=200, options=options))
        result = federation.result(server, 900)
    assert result["rounds"] == 3 and result["refused"] == 0
    assert result["upload_largest"] <= upload_bound(federation.terms())
    assert federation.compare_last_round() == 3


def test_every_fault_of_a_client(
    compiler: Compiler, keys: Path, tiny_data: Mapping[str, Path], tmp_path: Path
) -> None:
    """Two honest clients and one that does something else wrong in every round; all rounds end."""
    federation = Federation(tmp_path, compiler.bundle("llama", "prge", queries=2), keys)
    plan = ["", "nan", "huge", "stale", "bundle", "twice", "killed", ""]
    faults = tmp_path / "faults.json"
    faults.write_text(
        json.dumps({str(number): fault for number, fault in enumerate(plan) if fault})
    )
    mallory = tmp_path / "mallory.key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", mallory], check=True
    )
    with contextlib.ExitStack() as stack:
        for name in ("ann", "bob"):
            stack.enter_context(federation.client(name, tiny_data[name]))
        stack.enter_context(federation.client("eve", tiny_data["eve"], faults=faults))
        stack.enter_context(federation.client("mallory", tiny_data["eve"], key=mallory))
        server = stack.enter_context(
            federation.server(rounds=len(plan), timeout=20, options=("--steps", "3"))
        )
        result = federation.result(server, 1200)
    assert result["rounds"] == len(plan)
    found = federation.rounds()
    numbers = json.loads((tmp_path / "server" / "clients.json").read_text())
    assert set(numbers) == set(NAMES), "a key that nobody registered has no number"
    eve = numbers["eve"]
    reasons = {
        number: [entry["reason"] for entry in one["refused"] if entry["client"] == eve]
        for number, one in enumerate(found)
    }
    for number, word in {
        1: "not finite",
        2: "above the round's bound",
        3: "stale",
        4: "bundle ffff",
    }.items():
        assert any(word in reason for reason in reasons[number]), (number, reasons)
        assert eve not in found[number]["clients"]
    # What comes twice counts once.
    for number in (0, 5):
        assert eve in found[number]["clients"], (number, reasons)
    # The client that was killed after it had the request: its round ended, with it (asked again) or without.
    assert (tmp_path / "faults.json.killed-6").exists()
    for one in found:
        assert {numbers["ann"], numbers["bob"]} <= set(one["clients"])
        assert np.isfinite(one["loss"])
    assert federation.compare_last_round() == len(found[-1]["clients"]) >= 2
    log = (tmp_path / "server" / "superlink.log").read_text()
    assert "No SuperNode found with the given public key" in log


def test_a_server_that_is_killed(
    compiler: Compiler, keys: Path, tiny_data: Mapping[str, Path], tmp_path: Path
) -> None:
    """Its app between replies, its app after aggregation, and then all of it: the model is that of a calm run."""
    bundle = compiler.bundle("llama", "prge", queries=2)
    digests = {}
    for calm in (True, False):
        folder = tmp_path / ("calm" if calm else "killed")
        folder.mkdir()
        federation = Federation(folder, bundle, keys)
        faults = folder / "faults.json"
        faults.write_text(json.dumps({} if calm else {"reply 0": 2, "commit 1": 1}))
        with contextlib.ExitStack() as stack:
            for name in NAMES:
                stack.enter_context(federation.client(name, tiny_data[name]))
            options = ("--steps", "3")
            if not calm:
                with federation.server(rounds=4, faults=faults, options=options) as server:
                    wait_for(folder / "server" / "rounds" / "000002" / "reply-0.bin", 900)
                    server.kill()
                assert (folder / "faults.json.reply-0").exists()
                assert (folder / "faults.json.commit-1").exists()
            server = stack.enter_context(federation.server(rounds=4, options=options))
            digests[calm] = federation.result(server, 1200)["digest"]
        assert all(found["clients"] == [0, 1, 2] for found in federation.rounds())
        assert federation.compare_last_round() == 3
    assert digests[True] == digests[False]


def test_another_authority_is_no_server(
    compiler: Compiler, keys: Path, tiny_data: Mapping[str, Path], tmp_path: Path
) -> None:
    """A client whose authority has not signed the server's certificate sends it nothing."""
    federation = Federation(tmp_path, compiler.bundle("llama", "prge", queries=2), keys)
    other = tmp_path / "other"
    other.mkdir()
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 2 -subj /CN=x"
    )
    subprocess.run(
        [*command.split(), "-keyout", "ca.key", "-out", "ca.crt"],
        cwd=other,
        check=True,
        capture_output=True,
    )
    with (
        federation.server(rounds=1, sample=1, timeout=30) as server,
        federation.client("ann", tiny_data["ann"], ca=other / "ca.crt"),
    ):
        output, _ = server.communicate(timeout=600)
    assert server.returncode == 1
    assert "found 0 clients; expected at least 1" in json.loads(output)["error"]["message"]
    assert "Activated" not in (tmp_path / "server" / "superlink.log").read_text()
