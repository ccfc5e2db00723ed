"""What stands between a federation and strangers: keys, the proxy, the app that clients take."""

from __future__ import annotations

import base64
import dataclasses
import io
import logging
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from zoexport.core.errors import ConfigError
from zoexport.federated import flower_app, front, keys
from zoexport.federated.apps import nodes_of
from zoexport.federated.keys import NodeKeys
from zoexport.federated.processes import free_port

starlette = pytest.importorskip("starlette")


def write_key(path: Path) -> bytes:
    """A new public key in a file; returned as nodes send it."""
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_EVERY", 0.0)


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no public key"):
        NodeKeys(tmp_path).checked()
    key = write_key(tmp_path / "ann.pub")
    assert NodeKeys(tmp_path).checked() == {key: "ann"}
    (tmp_path / "bob.pub").write_bytes((tmp_path / "ann.pub").read_bytes())
    with pytest.raises(ConfigError, match="the key of ann again"):
        NodeKeys(tmp_path).checked()
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    (tmp_path / "bob.pub").write_bytes(other.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(ConfigError, match="no ECDSA key"):
        NodeKeys(tmp_path).checked()


def test_the_folder_is_looked_at_while_the_server_runs(tmp_path: Path) -> None:
    ann = write_key(tmp_path / "ann.pub")
    found = NodeKeys(tmp_path)
    assert found.current() == {ann: "ann"}
    bob = write_key(tmp_path / "bob.pub")
    assert found.current() == {ann: "ann", bob: "bob"}
    (tmp_path / "ann.pub").unlink()
    (tmp_path / "eve.pub").write_text("no key")
    assert found.current() == {bob: "bob"}


@dataclasses.dataclass
class Node:
    node_id: int
    name: str
    public_key: bytes


class Grid:
    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes

    def get_nodes(self) -> tuple[Node, ...]:
        return self.nodes


def test_a_node_is_who_its_key_is(tmp_path: Path) -> None:
    """Not who it was registered as: another key under a known name is nobody."""
    nodes = tmp_path / "nodes"
    ann, bob = write_key(nodes / "ann.pub"), write_key(nodes / "bob.pub")
    mallory = write_key(tmp_path / "mallory.pub")
    grid = Grid(Node(11, "ann", ann), Node(12, "", bob), Node(13, "ann", mallory))
    asked = nodes_of(grid, tmp_path, NodeKeys(nodes), 2, 0.1)
    assert asked() == {0: 11, 1: 12}
    (nodes / "ann.pub").unlink()
    assert asked() == {1: 12}


# ---- the proxy -------------------------------------------------------------------------------------------------------


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[tuple[str, Path, list[Any]]]:
    """A server on loopback that answers everything, and says what it was asked."""
    import uvicorn

    asked: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked.append((scope["method"], scope["path"], dict(scope["headers"]), body))
        headers = [(b"content-type", b"application/x-protobuf"), (b"set-cookie", b"x=1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"answer to " + body})

    certificate, key = front.own_certificate(tmp_path)
    assert key.stat().st_mode & 0o777 == 0o600
    port = free_port()
    config = uvicorn.Config(
        app,
        host=front.LOOPBACK,
        port=port,
        lifespan="off",
        ws="none",
        log_level="critical",
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"{front.LOOPBACK}:{port}", certificate, asked
    server.should_exit = True
    thread.join(5)


@pytest.fixture
def silenced() -> Iterator[None]:
    """As the command line has it without --debug: warnings are not logged."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(before)


@pytest.mark.usefixtures("silenced")
def test_the_proxy_passes_on_what_clients_call(
    tmp_path: Path, inner: tuple[str, Path, list[Any]]
) -> None:
    import httpx

    address, certificate, asked = inner
    nodes = tmp_path / "nodes"
    ann = write_key(nodes / "ann.pub")
    (tmp_path / "outside").mkdir()
    outer, outer_key = front.own_certificate(tmp_path / "outside")
    port = free_port()
    given: dict[str, Any] = {
        "host": front.LOOPBACK,
        "port": port,
        "certificate": outer,
        "key": outer_key,
        "keys": NodeKeys(nodes),
        "inner": address,
        "inner_certificate": certificate,
        "largest": 1000,
        "log": tmp_path / "front.log",
    }
    mine = {front.KEY: base64.b64encode(ann).decode(), "flwr-signature": "s", "cookie": "no"}
    with (
        front.serving(ca=outer, **given),
        httpx.Client(
            base_url=f"https://{front.LOOPBACK}:{port}",
            verify=ssl.create_default_context(cafile=str(outer)),
        ) as client,
    ):
        for path in front.ROUTES:
            found = client.post(path, content=b"\x00body", headers=mine)
            assert (found.status_code, found.content) == (200, b"answer to \x00body")
            assert "set-cookie" not in found.headers
            method, reached, headers, body = asked.pop()
            assert (method, reached, body) == ("POST", path, b"\x00body")
            assert headers[b"flwr-signature"] == b"s" and b"cookie" not in headers
        stranger = write_key(tmp_path / "stranger.pub")
        refused = {
            "no key": client.post(front.ROUTES[0]),
            "another key": client.post(
                front.ROUTES[0], headers={front.KEY: base64.b64encode(stranger).decode()}
            ),
            "no base64": client.post(front.ROUTES[0], headers={front.KEY: "!"}),
            "two keys": client.post(
                front.ROUTES[0],
                headers=[
                    (front.KEY, mine[front.KEY]),
                    (front.KEY, base64.b64encode(stranger).decode()),
                ],
            ),
        }
        assert {name: one.status_code for name, one in refused.items()} == dict.fromkeys(
            refused, 401
        )
        for path in (
            "/",
            "/docs",
            "/v1/control/start-run",
            "/v1/runtime/acquire-task",
            "/v1/fleet/register-node",
            "/v1/fleet/unregister-node",
            "/v1/fleet/../control/start-run",
            "/v1/fleet//pull-messages",
            "/v1/fleet/pull-messages/",
            "/v1/fleet/%2e%2e/control/start-run",
        ):
            assert client.post(path, headers=mine).status_code == 404, path
        assert client.get(front.ROUTES[0], headers=mine).status_code == 405
        assert client.post(front.ROUTES[0], content=b"x" * 1001, headers=mine).status_code == 413
        assert asked == [], "nothing of that reached the server behind it"
        (nodes / "ann.pub").unlink()
        assert client.post(front.ROUTES[0], headers=mine).status_code == 401
    log = (tmp_path / "front.log").read_text()
    assert " 401 /v1/fleet/" in log and " 404 " in log and " 413 " in log
    with (
        pytest.raises(ConfigError, match="what clients with ca="),
        front.serving(ca=certificate, **given),
    ):
        pass


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    import socket

    certificate, key = front.own_certificate(tmp_path)
    with (
        socket.create_server((front.LOOPBACK, 0)) as taken,
        pytest.raises(ConfigError, match="a port that nothing listens on"),
        front.serving(
            host=front.LOOPBACK,
            port=taken.getsockname()[1],
            certificate=certificate,
            key=key,
            ca=certificate,
            keys=NodeKeys(tmp_path),
            inner="127.0.0.1:1",
            inner_certificate=certificate,
            largest=1,
            log=tmp_path / "log",
        ),
    ):
        pass


# ---- the app ---------------------------------------------------------------------------------------------------------


def archive(files: list[tuple[str, str]], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as found:
        for name, text in files:
            found.writestr(name, text)
    return content.getvalue()


def test_an_app_is_known_by_its_files() -> None:
    files = [("a.py", "1"), ("b.py", "2")]
    ours = flower_app.content_hash(archive(files))
    assert ours == flower_app.content_hash(archive(files[::-1], zipfile.ZIP_STORED))
    for other in ([("a.py", "2"), files[1]], files[:1], [*files, ("c.py", "")], [("a.py", "12")]):
        assert flower_app.content_hash(archive(other)) != ours
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = archive([*files, files[0]])
    for bad in (b"", b"PK", twice, archive([("big", "x" * (1 << 17))])):
        with pytest.raises(ValueError, match=r"."):
            flower_app.content_hash(bad)


PINNED = """
import sys
from types import SimpleNamespace
from zoexport.federated import flower_app, supernode

class Client:
    def GetFab(self, request):
        return SimpleNamespace(fab=SimpleNamespace(content=request))

supernode.pin(Client, flower_app.content_hash(bytes.fromhex(sys.argv[1])))
Client().GetFab(bytes.fromhex(sys.argv[2]))
print("taken")
"""


def test_a_client_ends_where_it_is_sent_another_app() -> None:
    ours, other = archive([("a.py", "1")]), archive([("a.py", "2")])

    def run(sent: bytes) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PINNED, ours.hex(), sent.hex()]
        return subprocess.run(command, capture_output=True, text=True)

    assert run(ours).stdout == "taken\n"
    for sent in (other, b"no archive"):
        found = run(sent)
        assert found.returncode == 76 and found.stdout == ""
        assert "refused: an app with hash" in found.stderr


def test_our_app_is_what_flower_builds_of_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.cli.build import build_fab_from_disk

    app = tmp_path / "zoexport-federation"
    for name, text in flower_app.FILES.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)
    assert flower_app.content_hash(build_fab_from_disk(app)) == flower_app.our_hash()
