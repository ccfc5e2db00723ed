"""``federate simulate``: many clients on this machine, in Flower's simulation engine."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.cores import usable_cores
from zoexport.core.errors import ZoExportError
from zoexport.core.progress import Progress
from zoexport.core.trust import Trust
from zoexport.federated import flower, shards
from zoexport.federated import report as pages
from zoexport.federated.client import Client
from zoexport.federated.coordinator import Coordinator, Patience
from zoexport.federated.cost import flops_per_step
from zoexport.federated.evaluation import Evaluator, reading_of
from zoexport.federated.guard import Guard
from zoexport.federated.privacy import Privacy
from zoexport.federated.settings import terms_of
from zoexport.federated.store import Store
from zoexport.session import Bundle, Dataset

_START_SECONDS = 120.0
_RUNNING = threading.Lock()


def simulate(
    bundle: Bundle,
    *,
    data: Path,
    clients: int,
    sample: int,
    rounds: int,
    steps: int,
    algorithm: str | None,
    settings: Mapping[str, str],
    division: str,
    state: Path | None,
    test: Path | None,
    patience: Patience,
    guard: Guard,
    privacy: Privacy | None,
    report: Callable[[Mapping[str, Any]], None],
    page: Path | None,
    progress: Progress,
) -> dict[str, Any]:
    """Simulate a federation until it has ``rounds`` rounds.

    Args:
        data: examples as JSON Lines, divided over ``clients`` as ``division`` says (:func:`shards.divided`).
        sample: clients that a round asks.
        steps: of a client in a round.
        algorithm: a key of :data:`terms.ALGORITHMS`, or None for the one of the bundle's kind.
        settings: of ``train --set``.
        state: the federation's folder; None keeps nothing.
        test: examples that every version is evaluated on.
        patience: how long a round waits. guard: what a round may do to the model.
        privacy: what each client's uploads have to satisfy, or None.
        report: called with each round once it is on disk.
        page: a folder for a report with curves.
        progress: called with what happens before the first round.

    Returns:
        The keys of ``federate --json`` (docs/federation.md).

    Raises:
        ZoExportError: something cannot be used, or too few clients answered.
    """
    flower.prepare()
    if privacy is not None:
        progress(f"each privacy budget pays for {privacy.uploads()} uploads", None)
    terms = terms_of(bundle, algorithm, steps, settings)
    progress("dividing the data", None)
    divided = shards.divided(data, clients, division, terms.seed)
    with contextlib.ExitStack() as stack:
        folder = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zoexport-")))
        store = stack.enter_context(Store.opened(folder, terms, sample, bundle.path))
        _write_shards(bundle, data, divided, terms.loss, folder, progress)
        evaluator = None
        if test is not None:
            evaluator = stack.enter_context(Evaluator.over(bundle, test, terms.loss, progress))
        progress("counting operations", None)
        flops = flops_per_step(bundle.manifest, terms)
        progress("starting Flower's simulation", None)
        _run(
            bundle,
            folder,
            clients,
            privacy,
            lambda transport: Coordinator(
                store,
                bundle,
                transport,
                patience=patience,
                guard=guard,
                evaluate=evaluator,
                flops=flops,
                report=report,
            ).run(rounds),
        )
        result = summary(store, rounds)
        if page is not None:
            pages.write(page, folder, ended_rounds(store, rounds))
    return result if state else {**result, "model": None, "state": None}


def summary(store: Store, rounds: int) -> dict[str, Any]:
    """Summarize the first ``rounds`` rounds of a federation from its folder."""
    found = ended_rounds(store, rounds)
    last = found[-1]
    return {
        "algorithm": store.terms.algorithm,
        "rounds": rounds,
        "losses": [one["loss"] for one in found],
        "evaluations": [one["evaluation"]["loss"] for one in found if "evaluation" in one],
        "accuracies": [one["evaluation"]["accuracy"] for one in found if "evaluation" in one],
        "bytes_up": sum(one["bytes_up"] for one in found),
        "bytes_down": sum(one["bytes_down"] + one.get("sync_bytes_down", 0) for one in found),
        "upload_largest": max((size for one in found for size in one["uploads"]), default=0),
        "refused": sum(len(one["refused"]) for one in found),
        "unchanged": sum(not one["clients"] for one in found),
        "flops": None if last["flops"] is None else sum(one["flops"] for one in found),
        "digest": last["digest"],
        "model": str(store.folder / "models" / f"model-{rounds}.safetensors"),
        "state": str(store.folder),
    }


def ended_rounds(store: Store, rounds: int) -> list[dict[str, Any]]:
    """Return the records of the first ``rounds`` rounds of a federation."""
    return [{**store.round(number), **store.notes(number)} for number in range(rounds)]


def _write_shards(
    bundle: Bundle,
    data: Path,
    divided: list[list[int]],
    loss: str,
    folder: Path,
    progress: Progress,
) -> None:
    """Each client's tokens, as ``folder/shards/<client>.jsonl``."""
    with tempfile.TemporaryDirectory(prefix="zoexport-") as temporary:
        tokens = Path(temporary) / "examples.jsonl"
        bundle.write_tokens(data, tokens, progress=progress, **reading_of(bundle, loss))
        shards.write(tokens, divided, folder / "shards")


@functools.lru_cache(maxsize=1)
def _client(path: Path, trust: Trust, folder: Path, number: int, privacy: Privacy | None) -> Client:
    def examples(client: int, loss: str) -> Dataset:
        dataset = Dataset()
        dataset.load(folder / "shards" / f"{client}.jsonl")
        return dataset

    bundle = Bundle.open(path, trust=trust)
    return Client(bundle, examples, folder / "clients" / str(number), privacy=privacy)


def _handle(
    path: Path, trust: Trust, folder: Path, privacy: Privacy | None, content: bytes
) -> bytes:
    """Run a virtual client; the server's request determines its number."""
    from zoexport.federated.protocol import Request

    number = Request.unpack(content).client
    return _client(path, trust, folder, number, privacy).handle(content)


def _run(
    bundle: Bundle,
    folder: Path,
    clients: int,
    privacy: Privacy | None,
    serve: Callable[[flower.FlowerTransport], None],
) -> None:
    """Run Flower's simulation with our apps until ``serve`` returns."""
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    given = (bundle.path.resolve(), bundle.trust, folder.resolve(), privacy)
    raised: list[BaseException] = []
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]  # Flower does not annotate it
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(flower.FlowerTransport(grid, _nodes(grid, clients)))
        except BaseException as error:  # Flower would wrap it
            raised.append(error)

    with _RUNNING, _environment():
        try:
            run_simulation(
                server,
                flower.answering(lambda content, _: _handle(*given, content)),
                num_supernodes=clients,
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {
                        "num_cpus": min(usable_cores(), clients),
                        "include_dashboard": False,
                        "log_to_driver": False,
                    },
                },
            )
        except Exception as error:
            if raised:
                raise raised[0] from None
            raise ZoExportError(
                "Flower's simulation",
                found=f"a failure ({type(error).__name__}: {error})",
                expected="all rounds",
                fix="Report the traceback (--debug). The same --state continues.",
            ) from error
    if raised:
        raise raised[0]


def _nodes(grid: Any, clients: int) -> Callable[[], Mapping[int, int]]:
    """Client k is the k-th of Flower's virtual nodes, whose numbers are new in every simulation."""

    def nodes() -> Mapping[int, int]:
        end = time.monotonic() + _START_SECONDS
        while len(found := sorted(grid.get_node_ids())) < clients and time.monotonic() < end:
            time.sleep(0.1)
        return dict(enumerate(found))

    return nodes


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Ray's workers find our package where this process does, and one thread each leaves the cores to them."""
    import sys

    changed = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
    }
    before = {key: os.environ.get(key) for key in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
