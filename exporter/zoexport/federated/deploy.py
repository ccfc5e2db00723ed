"""``federate server`` and ``federate client``: Flower's processes, started and configured.

The server is Flower's SuperLink, with TLS and authentication of its nodes, and a run of our app on it. A client is a
SuperNode. Who started them ends them; a server that is started again goes on from its folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.children import python, runs
from zoexport.core.errors import StateError, ZoExportError, rebuilt
from zoexport.core.files import atomic_file, private_folder, write_json
from zoexport.core.progress import Progress
from zoexport.federated import apps, flower, flower_app, front, models
from zoexport.federated import report as pages
from zoexport.federated.coordinator import Patience
from zoexport.federated.cost import flops_per_step
from zoexport.federated.evaluation import reading_of
from zoexport.federated.guard import Guard
from zoexport.federated.privacy import Privacy
from zoexport.federated.processes import (
    CONNECTION,
    START_SECONDS,
    Access,
    Link,
    Registry,
    flwr_command,
    free_port,
    process,
    readable,
    superlink,
    wait_for,
)
from zoexport.federated.settings import terms_of
from zoexport.federated.simulate import ended_rounds, summary
from zoexport.federated.store import Store
from zoexport.federated.supernode import FOREIGN_APP
from zoexport.federated.terms import Terms
from zoexport.session import Bundle

_POLL = 0.5
_RESTARTS = 3
_AROUND = 4 << 20
"""Bytes of Flower's own messages, at most."""
_SHORT_RUNS, _SHORT_SECONDS, _PAUSE = 8, 60.0, 2.0
"""A client gives up after so many connections that each lasted so little, with a pause between."""


def serve(
    bundle: Bundle,
    *,
    state: Path,
    access: Access,
    sample: int,
    rounds: int,
    steps: int,
    algorithm: str | None,
    settings: Mapping[str, str],
    test: Path | None,
    patience: Patience,
    guard: Guard,
    report: Callable[[Mapping[str, Any]], None],
    page: Path | None,
    progress: Progress,
) -> dict[str, Any]:
    """Run a federation of real clients until it has ``rounds`` rounds.

    Args:
        state: the federation's folder; one that has rounds goes on.
        access: how the server is reached, and who may.
        progress: called with what happens before the first round.

    The others are those of :func:`simulate.simulate`.

    Returns:
        The keys of ``federate --json`` (docs/federation.md).

    Raises:
        ZoExportError: something cannot be used, or too few clients answered.
    """
    flower.prepare()
    keys = access.keys()
    terms = terms_of(bundle, algorithm, steps, settings)
    with Store.opened(state, terms, sample, bundle.path) as store:
        shown = store.version()
    home = _write_app(state)
    job: dict[str, Any] = {
        "bundle": str(bundle.path.resolve()),
        "trust": bundle.trust.keys,
        "rounds": rounds,
        "test": None if test is None else str(test.resolve()),
        "patience": dataclasses.asdict(patience),
        "guard": dataclasses.asdict(guard),
        "nodes": str(access.nodes.resolve()),
    }
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(superlink(state, home))
        _write_connection(home, link)
        registry = Registry(home, keys, link, state / "superlink.log")
        progress("waiting for Flower", None)
        registry.update()
        outside = stack.enter_context(
            front.serving(
                host=access.host,
                port=access.port,
                certificate=access.certificate,
                key=access.key,
                ca=access.ca,
                keys=keys,
                inner=link.address,
                inner_certificate=link.certificate,
                largest=_largest_call(bundle, terms),
                log=state / "front.log",
            )
        )
        progress(f"listening on {access.host}:{access.port}", None)
        progress("counting operations", None)
        job["flops"] = flops_per_step(bundle.manifest, terms)
        progress(f"waiting for {sample} clients", None)
        for _ in range(_RESTARTS + 1):
            token = _start(state, home, job)
            shown, done = _follow(store, token, link, outside, registry, shown, rounds, report)
            if done:
                break
            progress("the server's app was killed; starting it again", None)
        else:
            raise StateError(
                f"state {state}",
                found=f"an app that ended {_RESTARTS + 1} times without a word",
                expected="it to run its rounds",
                fix=f"See {state / 'superlink.log'}; run again to go on.",
            )
    if page is not None:
        pages.write(page, state, ended_rounds(store, rounds))
    return summary(store, rounds)


def take_part(
    bundle: Bundle,
    *,
    data: Path,
    state: Path,
    server: str,
    ca: Path,
    key: Path,
    privacy: Privacy | None,
    progress: Progress,
) -> None:
    """Be a client until the process is ended.

    Args:
        bundle: the same bundle as the server's.
        data: examples as JSON Lines. They are tokenized once; neither they nor their tokens leave this machine.
        state: a folder for the model and the round that runs.
        server: HOST:PORT.
        ca: the certificate of the server's authority.
        key: this client's private key, in OpenSSH's format.
        privacy: what uploads have to satisfy, or None.
        progress: called with what is being done.

    Raises:
        ZoExportError: something cannot be used, or the server does not take this client.
    """
    flower.prepare()
    for path in (ca, key):
        readable(path)
    if privacy is not None:
        progress(f"the privacy budget pays for {privacy.uploads()} uploads", None)
    private_folder(state)
    examples = state / "examples.jsonl"
    bundle.write_tokens(data, examples, progress=progress, **reading_of(bundle, "full"))
    config = state / "node.toml"
    values = dict(zip(apps.NODE_KEYS, (bundle.path, examples, state), strict=True))
    with atomic_file(config) as temporary:
        lines = [f"{name} = {json.dumps(str(path.resolve()))}\n" for name, path in values.items()]
        lines.append(f"{apps.TRUST} = {json.dumps(' '.join(bundle.trust.keys))}\n")
        if privacy is not None:
            given = json.dumps(dataclasses.asdict(privacy))
            lines.append(f"{apps.PRIVACY} = {json.dumps(given)}\n")
        temporary.write_text("".join(lines), encoding="utf-8")
    program, environment = python("zoexport.federated.supernode")
    command = [
        *program,
        *("--superlink", server),
        *("--root-certificates", str(ca.resolve())),
        *("--auth-supernode-private-key", str(key.resolve())),
        *("--node-config", str(config.resolve())),
    ]
    log, short = state / "supernode.log", 0
    # Flower's process ends if its key is not (yet) registered, as after a server restart.
    while short < _SHORT_RUNS:
        progress(f"waiting for {server}", None)
        wait_for(server)
        progress(f"taking part at {server}", None)
        began = time.monotonic()
        port = ("--port", str(free_port()))
        with process([*command, *port], log, state / "flower", environment) as started:
            started.wait()
        if started.returncode == FOREIGN_APP:
            raise ZoExportError(
                f"server {server}",
                found="an app that is not zoexport's, which it sent to be run here",
                expected="the app of this release; nothing else is run",
                fix=f"Use the same zoexport and flwr on all sides, or leave that server; see {log}.",
            )
        short = short + 1 if time.monotonic() - began < _SHORT_SECONDS else 0
        time.sleep(_PAUSE)
    raise ZoExportError(
        f"server {server}",
        found=f"{_SHORT_RUNS} connections that ended at once",
        expected="a server that knows this client's key, and whose certificate --ca has signed",
        fix=f"See {log}; give the server {key}.pub, or correct --ca.",
    )


def _write_app(state: Path) -> Path:
    """Flower's home with the app that it is given."""
    home = state.resolve() / "flower"
    for name, text in flower_app.FILES.items():
        with atomic_file(home / "app" / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return home


def _write_connection(home: Path, link: Link) -> None:
    """Write the address of our SuperLink for Flower's commands."""
    lines = [
        f'[superlink]\ndefault = "{CONNECTION}"\n',
        f"[superlink.{CONNECTION}]",
        f'address = "{link.address}"',
        f"root-certificates = {json.dumps(str(link.certificate))}\n",
    ]
    with atomic_file(home / "config.toml") as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")


def _largest_call(bundle: Bundle, terms: Terms) -> int:
    """Bytes of a client's call: an upload of all values, or of all scalars, and what Flower puts around it."""
    values = len(models.pack(models.initial(bundle)))
    return values + 4 * terms.steps * (1 + terms.scalars) + _AROUND


def _start(state: Path, home: Path, job: Mapping[str, Any]) -> str:
    """Begin a run of our app; returns what it will sign with."""
    token = secrets.token_hex(8)
    path = state.resolve() / apps.JOB
    write_json(path, {**job, "token": token, "server": os.getpid()})
    given = f"job={json.dumps(str(path))}"
    found = flwr_command(home, "run", str(home / "app"), CONNECTION, "--run-config", given)
    if not found.get("success"):
        raise ZoExportError(
            "Flower's SuperLink",
            found=f"a run that did not start ({found.get('error-message')})",
            expected="it to run zoexport's app",
            fix=f"See {state / 'superlink.log'}.",
        )
    return token


def _follow(
    store: Store,
    token: str,
    link: Link,
    outside: threading.Thread,
    registry: Registry,
    shown: int,
    rounds: int,
    report: Callable[[Mapping[str, Any]], None],
) -> tuple[int, bool]:
    """Report rounds as they appear on disk until the run ends; False if its process is gone."""
    started = time.monotonic()
    while True:
        ended = _told(store.folder / apps.ENDED, token)
        version = store.version()
        for number in range(shown, min(version, rounds)):
            report({**store.round(number), **store.notes(number)})
        shown = max(shown, version)
        if ended is not None:
            if ended["error"] is not None:
                raise rebuilt(ended["error"])
            return shown, True
        ended_at = link.process.poll()
        if ended_at is not None or not outside.is_alive():
            raise ZoExportError(
                "Flower's SuperLink" if outside.is_alive() else "the proxy before it",
                found=f"that it ended (status {ended_at})",
                expected="it to run until the last round",
                fix=f"See {store.folder / 'superlink.log'}; run again to go on.",
            )
        registry.update()
        running = _told(store.folder / apps.RUNNING, token)
        late = running is None and time.monotonic() - started > START_SECONDS
        if late or (running is not None and not runs(running["pid"])):
            return shown, _told(store.folder / apps.ENDED, token) is not None
        time.sleep(_POLL)


def _told(path: Path, token: str) -> dict[str, Any] | None:
    """Return the content that the run with this token wrote into a file, or None."""
    with contextlib.suppress(OSError, ValueError):
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return content if content["token"] == token else None
    return None
