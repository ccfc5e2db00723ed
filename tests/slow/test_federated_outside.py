"""What of a federation's processes can be reached from outside, and what a server can make clients run."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.compiled import Compiler
from tests.support.federation_processes import OUTSIDE, ROOT, Federation, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.federation]


@pytest.fixture(scope="module")
def bundle(compiler: Compiler) -> Path:
    return compiler.bundle("llama", "prge", num_queries=2)


def all_routes() -> list[tuple[str, str]]:
    """Method and path of everything that Flower's SuperLink serves."""
    code = """
import json
from fastapi.routing import APIRoute, iter_route_contexts
from flwr.superlink.main import create_app
found = [(method, context.route.path) for context in iter_route_contexts(create_app().routes)
         if isinstance(context.route, APIRoute) for method in sorted(context.route.methods)]
print(json.dumps(found))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    found: list[tuple[str, str]] = json.loads(output.splitlines()[-1])
    return found


def listening(process: int) -> set[tuple[str, int]]:
    """The addresses at which a process and its descendants accept connections."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    every, left = set(), [process]
    while left:
        one = left.pop()
        every.add(one)
        left += children.get(one, [])
    inodes = set()
    for one in every:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{one}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(link))
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            address, port = fields[1].split(":")
            found.add((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            found.add((fields[1], 6))
    return found


def call(
    federation: Federation, method: str, path: str, headers: Mapping[str, str] | None = None
) -> int:
    """The status of a call from outside, by someone who has what everybody may have: the authority's certificate."""
    import http.client

    context = ssl.create_default_context(cafile=str(federation.keys / "ca.crt"))
    connection = http.client.HTTPSConnection(
        federation.host, federation.port, context=context, timeout=20
    )
    given = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    connection.request(method, path, body=b"", headers={**given, **(headers or {})})
    status = connection.getresponse().status
    connection.close()
    return status


def flwr(federation: Federation, home: Path, *arguments: str) -> bool:
    """Whether a command of Flower's succeeds against the server's outside address."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "x"\n[superlink.x]\n'
        f'address = "{federation.host}:{federation.port}"\n'
        f"root-certificates = {json.dumps(str(federation.keys / 'ca.crt'))}\n"
    )
    found = subprocess.run(
        [str(Path(sys.executable).with_name("flwr")), *arguments, "--format", "json"],
        env={**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return '"success": true' in found.stdout


def test_anonymous_calls_are_refused_and_clients_take_part(
    bundle: Path, keys: Path, tiny_data: Mapping[str, Path], tmp_path: Path
) -> None:
    federation = Federation(tmp_path, bundle, keys, host=OUTSIDE)
    other = tmp_path / "other.key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", other], check=True
    )
    app = tmp_path / "app"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            federation.server(rounds=2, sample=2, timeout=200, options=("--steps", "2"))
        )
        stack.enter_context(federation.client("ann", tiny_data["ann"]))
        wait_for(tmp_path / "server" / "job.json", 300)
        shutil.copytree(tmp_path / "server" / "flower" / "app", app)
        accepted, calls = [], all_routes()
        assert len(calls) > 60, "Control, Fleet and Runtime"
        for method, path in calls:
            status = call(federation, method, path)
            if status < 400:
                accepted.append((method, path, status))
        assert accepted == []
        # Who knows a client's public half, but not its key, is nobody either.
        from zoexport.federated.keys import NodeKeys

        pem = next(key for key, name in NodeKeys(keys / "nodes").checked().items() if name == "ann")
        claimed = {"flwr-public-key": base64.b64encode(pem).decode()}
        assert call(federation, "POST", "/v1/fleet/pull-messages", claimed) == 401
        assert not flwr(federation, tmp_path / "h", "supernode", "register", f"{other}.pub", "x")
        assert not flwr(federation, tmp_path / "h", "supernode", "list", "x")
        assert not flwr(federation, tmp_path / "h", "run", str(app), "x")
        reachable = {one for one in listening(server.pid) if one[0] != "127.0.0.1"}
        assert reachable == {(OUTSIDE, federation.port)}
        # The second client comes now: the rounds take both.
        stack.enter_context(federation.client("bob", tiny_data["bob"]))
        result = federation.result(server, 600)
    assert result["rounds"] == 2 and result["refused"] == 0
    assert all(found["clients"] == [0, 1] for found in federation.rounds())
    for folder in (tmp_path / "server", tmp_path / "ann", tmp_path / "bob"):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "server" / "flower" / "loopback.key").stat().st_mode & 0o777 == 0o600


def test_another_app_of_the_server_is_not_run(
    bundle: Path,
    keys: Path,
    tiny_data: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = Federation(tmp_path, bundle, keys)
    marker = tmp_path / "was run"
    monkeypatch.setenv("ZOEXPORT_TEST_MARKER", str(marker))
    hooks = ROOT / "tests" / "support" / "foreign_app"
    with (
        federation.server(rounds=1, sample=1, timeout=60, hooks=hooks),
        federation.client("ann", tiny_data["ann"], options=("--json",)) as client,
    ):
        output, _ = client.communicate(timeout=300)
    assert client.returncode == 1
    assert "an app that is not zoexport's" in json.loads(output)["error"]["found"]
    assert not marker.exists()


def test_a_key_that_is_taken_away_is_nobody(
    bundle: Path, keys: Path, tiny_data: Mapping[str, Path], tmp_path: Path
) -> None:
    """While the server runs; and one that is put there takes part."""
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    for name in ("ann", "bob"):
        shutil.copy(keys / "nodes" / f"{name}.pub", nodes)
    federation = Federation(tmp_path, bundle, keys, nodes=nodes)
    options = ("--steps", "2", "--least", "0.5")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            federation.server(rounds=3, sample=2, timeout=20, options=options)
        )
        for name in ("ann", "bob"):
            stack.enter_context(federation.client(name, tiny_data[name]))
        wait_for(tmp_path / "server" / "rounds" / "000000" / "round.json", 300)
        (nodes / "bob.pub").unlink()
        shutil.copy(keys / "nodes" / "eve.pub", nodes)
        revoked = time.time() + 2
        stack.enter_context(federation.client("eve", tiny_data["eve"]))
        federation.result(server, 900)
    numbers = json.loads((tmp_path / "server" / "clients.json").read_text())
    assert set(numbers) == {"ann", "bob", "eve"}
    last = federation.rounds()[-1]
    assert last["asked"] == sorted([numbers["ann"], numbers["eve"]])
    late = [
        path
        for path in (tmp_path / "server" / "rounds").glob(f"*/reply-{numbers['bob']}.bin")
        if path.stat().st_mtime > revoked
    ]
    assert late == []
    assert " 401 " in (tmp_path / "server" / "front.log").read_text()
