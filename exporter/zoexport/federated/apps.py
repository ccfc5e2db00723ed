"""The apps of real processes: what Flower's ServerApp and ClientApp processes run.

Which files they read is stated by the ``job`` of the run's configuration (server), and by the node's (client): the
commands ``federate server`` and ``federate client`` write both (``deploy``).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.children import die_with
from zoexport.core.errors import ZoExportError, first_line
from zoexport.core.files import write_json
from zoexport.core.trust import Trust
from zoexport.federated import flower
from zoexport.federated.client import Client
from zoexport.federated.coordinator import Coordinator, Patience
from zoexport.federated.evaluation import Evaluator
from zoexport.federated.guard import Guard
from zoexport.federated.keys import NodeKeys
from zoexport.federated.privacy import Privacy
from zoexport.federated.store import Store, read_federation
from zoexport.federated.terms import Terms
from zoexport.session import Bundle, Dataset

JOB, RUNNING, ENDED, NUMBERS = "job.json", "running.json", "ended.json", "clients.json"
NODE_KEYS = ("bundle", "examples", "state")
PRIVACY = "privacy"
"""In a node's configuration: :class:`privacy.Privacy` as JSON, or nothing."""
TRUST = "trust"
"""There too: the keys of :class:`core.trust.Trust`, separated by blanks."""


def server() -> Any:
    """Return the ServerApp."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]  # Flower does not annotate it
    def main(grid: Grid, context: Context) -> None:
        run_job(Path(str(context.run_config["job"])), grid)

    return app


def client() -> Any:
    """Return the ClientApp."""
    return flower.answering(_answer)


def run_job(job: Path, grid: Any) -> None:
    """Run the rounds of a job and write the outcome next to the job file.

    Args:
        job: ``job.json`` in the federation's folder.
        grid: Flower's.
    """
    state, options = job.parent, json.loads(job.read_text("utf-8"))
    # Flower's processes between the server and this one do not end it: it would keep the folder's lock.
    die_with(options["server"])
    write_json(state / RUNNING, {"token": options["token"], "pid": os.getpid()})
    error: dict[str, str] | None = None
    try:
        _run(state, options, grid)
    except ZoExportError as failure:
        error = failure.with_type()
    except Exception as failure:
        error = ZoExportError(
            "the server's app",
            found=f"a defect ({type(failure).__name__}: {first_line(failure)})",
            expected="all rounds",
            fix="Report it. Start the server again to continue.",
        ).with_type()
        raise
    finally:
        write_json(state / ENDED, {"token": options["token"], "error": error})


def _run(state: Path, options: Mapping[str, Any], grid: Any) -> None:
    content = dict(read_federation(state)["terms"])
    sample = content.pop("sample")
    terms = Terms.of(content)
    bundle = Bundle.open(options["bundle"], trust=Trust(tuple(options["trust"])))
    patience = Patience(**options["patience"])
    with Store.opened(state, terms, sample, bundle.path) as store:
        nodes = nodes_of(grid, state, NodeKeys(Path(options["nodes"])), sample, patience.seconds)
        transport = flower.FlowerTransport(grid, nodes)
        with contextlib.ExitStack() as stack:
            evaluator = None
            if options["test"] is not None:
                evaluator = stack.enter_context(
                    Evaluator.over(bundle, Path(options["test"]), terms.loss, lambda *_: None)
                )
            Coordinator(
                store,
                bundle,
                transport,
                patience=patience,
                guard=Guard(**options["guard"]),
                evaluate=evaluator,
                flops=options["flops"],
                report=lambda _: None,  # who started this process reads the folder
            ).run(options["rounds"])


def nodes_of(
    grid: Any, state: Path, keys: NodeKeys, least: int, seconds: float
) -> Callable[[], Mapping[int, int]]:
    """Return the connected nodes by client number; wait ``seconds`` for ``least`` of them.

    A node is identified by its key in the operator's folder, not by its registered name; nodes
    without a key there are ignored. A client number belongs to the name of the key file and is
    stored in ``clients.json``, so it survives restarts of both sides.
    """

    def nodes() -> Mapping[int, int]:
        path = state / NUMBERS
        numbers: dict[str, int] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        known = len(numbers)
        end = time.monotonic() + seconds
        while True:
            known_keys = keys.current()
            there = {
                known_keys[node.public_key]: node.node_id
                for node in grid.get_nodes()
                if node.public_key in known_keys
            }
            if len(there) >= least or time.monotonic() > end:
                break
            time.sleep(0.5)
        for name in sorted(there):
            numbers.setdefault(name, len(numbers))
        if len(numbers) > known:
            write_json(path, numbers)
        return {numbers[name]: node for name, node in there.items()}

    return nodes


def _log(line: str) -> None:
    """Into Flower's log of this node."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _answer(content: bytes, context: Any) -> bytes:
    config = {key: Path(str(context.node_config[key])) for key in NODE_KEYS}

    def examples(_: int, loss: str) -> Dataset:
        dataset = Dataset()
        dataset.load(config["examples"])
        return dataset

    trust = Trust(tuple(str(context.node_config[TRUST]).split()))
    given = str(context.node_config.get(PRIVACY, ""))
    client = Client(
        Bundle.open(config["bundle"], trust=trust),
        examples,
        config["state"],
        privacy=Privacy.of(json.loads(given)) if given else None,
        report=lambda reason: _log(f"refused: {reason}"),
    )
    return client.handle(content)
