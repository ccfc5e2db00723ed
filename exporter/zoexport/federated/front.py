"""Proxy in front of Flower's SuperLink: only nodes with a key in the operator's folder may call.

The SuperLink serves three APIs at one address: Fleet for nodes, Control (``flwr run``, registering
nodes), open to anyone unless accounts are set up, and Runtime for its own processes. Therefore it
listens on loopback, and this proxy on the operator's address: it terminates TLS, forwards only the
paths of Fleet, and refuses unknown keys. The SuperLink checks that a caller owns its key.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import ipaddress
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.errors import ConfigError, ZoExportError, first_line
from zoexport.core.files import atomic_file
from zoexport.federated.keys import NodeKeys, fingerprint

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOOPBACK = "127.0.0.1"
#: API routes for nodes with a registered key, without registering and unregistering.
ROUTES = tuple(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
KEY = "flwr-public-key"
_PASSED = ("content-type", "accept")
_FLOWER = "flwr-"
_SECONDS = 60.0
_CONNECTIONS = 1024
_LOG_BYTES = 4 << 20


def app(inner: str, certificate: Path, keys: NodeKeys, largest: int) -> Starlette:
    """Return the proxy.

    Args:
        inner: HOST:PORT of the SuperLink on loopback. certificate: its own.
        keys: of clients.
        largest: bytes of a call.
    """
    import httpx
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    log = logging.getLogger(__name__)
    # The transport alone: a client would keep cookies, and follow redirects, of one caller for the next.
    transport = httpx.AsyncHTTPTransport(
        verify=ssl.create_default_context(cafile=str(certificate)),
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
    )
    waits = httpx.Timeout(_SECONDS).as_dict()

    def passed_to(path: str) -> Any:
        async def passed(request: Request) -> Response:
            key = _key(request)
            if key not in keys.current():
                log.error("401 %s key %s from %s", path, fingerprint(key), _caller(request))
                return Response("a key that is not registered", 401)
            content = bytearray()
            async for piece in request.stream():
                content += piece
                if len(content) > largest:
                    log.error("413 %s key %s", path, fingerprint(key))
                    return Response("too large", 413)
            headers = {
                name: value
                for name, value in request.headers.items()
                if name in _PASSED or name.startswith(_FLOWER)
            }
            call = httpx.Request(
                "POST",
                f"https://{inner}{path}",
                content=bytes(content),
                headers={**headers, "accept-encoding": "identity"},
                extensions={"timeout": waits},
            )
            try:
                found = await transport.handle_async_request(call)
                answer = await found.aread()
            except httpx.HTTPError as error:
                log.error("502 %s %s", path, type(error).__name__)
                return Response("no answer", 502)
            answered = {
                name: value
                for name, value in found.headers.items()
                if name == "content-type" or name.startswith(_FLOWER)
            }
            return Response(answer, found.status_code, answered)

        return passed

    async def refused(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        log.error("%d %s from %s", status, request.url.path[:80].encode(), _caller(request))
        return Response("nothing here", status)

    found = Starlette(
        routes=[Route(path, passed_to(path), methods=["POST"]) for path in ROUTES],
        exception_handlers={404: refused, 405: refused},
    )
    found.router.redirect_slashes = False
    return found


@contextlib.contextmanager
def serving(
    *,
    host: str,
    port: int,
    certificate: Path,
    key: Path,
    ca: Path,
    keys: NodeKeys,
    inner: str,
    inner_certificate: Path,
    largest: int,
    log: Path,
) -> Iterator[threading.Thread]:
    """Run the proxy in a thread of this process; it listens when the block is entered.

    Args:
        host, port: what it listens on. certificate, key: the server's, PEM; ``ca`` has signed them.
        keys, inner, inner_certificate, largest: of :func:`app`.
        log: a file for refused calls, a few MB at most.

    Raises:
        ConfigError: it cannot listen there, or clients would not take its certificate.
    """
    import uvicorn

    handler = RotatingFileHandler(log, maxBytes=_LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger(__name__)
    logger.setLevel(logging.ERROR)  # the command line silences warnings, which are libraries'
    logger.propagate = False
    logger.addHandler(handler)
    config = uvicorn.Config(
        app(inner, inner_certificate, keys, largest),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        timeout_graceful_shutdown=2,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--certificate {certificate}, --key {key}",
            found=f"no certificate and its key ({first_line(error)})",
            expected="PEM, as docs/federation.md makes them",
            fix="Correct the paths.",
        ) from error
    server = uvicorn.Server(config)
    with _listening(host, port) as listener:
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="front", daemon=True
        )
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.05)
            if not server.started:
                raise ZoExportError(
                    f"--host {host} --port {port}",
                    found="a proxy that did not start",
                    expected="it to listen",
                    fix=f"See {log}.",
                )
            _check_trusted(listener, ca, certificate)
            yield thread
        finally:
            server.should_exit = True
            thread.join(5)
            logger.removeHandler(handler)
            handler.close()


def own_certificate(folder: Path) -> tuple[Path, Path]:
    """A new certificate and key for loopback, for this start of the server; the key can be read by its user alone."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "zoexport loopback")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address(LOOPBACK))
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(identity, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    paths = folder / "loopback.pem", folder / "loopback.key"
    with atomic_file(paths[0]) as temporary:
        temporary.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].unlink(missing_ok=True)
    descriptor = os.open(paths[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return paths


def _key(request: Request) -> bytes:
    """Return a request's key; empty if it has two, as the SuperLink might read the other one."""
    named = request.headers.getlist(KEY)
    try:
        return base64.b64decode(named[0], validate=True) if len(named) == 1 else b""
    except (binascii.Error, ValueError):
        return b""


def _caller(request: Request) -> str:
    return request.client.host if request.client else "?"


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}",
            found=error.strerror or str(error),
            expected="an address of this machine, and a port that nothing listens on",
            fix="Choose others.",
        ) from error
    with listener:
        yield listener


def _check_trusted(listener: socket.socket, ca: Path, certificate: Path) -> None:
    """Check the certificate as a client does, without the host name, which may differ."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    try:
        context = ssl.create_default_context(cafile=str(ca))
        context.check_hostname = False
        with (
            socket.create_connection((host, port), timeout=10) as connection,
            context.wrap_socket(connection),
        ):
            pass
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--certificate {certificate}",
            found=f"what clients with --ca {ca} do not take ({first_line(error)})",
            expected="a certificate that this authority has signed, and that is valid now",
            fix="Sign it as docs/federation.md says, or correct --ca.",
        ) from error
