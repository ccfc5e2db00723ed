"""``zoexport federate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zoexport.cli import options
from zoexport.cli.adapter import exporting, write_adapter
from zoexport.cli.console import emit, output_of_libraries, size, table
from zoexport.cli.groups import Verbs
from zoexport.cli.keys import json_keys
from zoexport.cli.rounds import Rounds
from zoexport.run.progress import Phases
from zoexport.run.results import Exported

if TYPE_CHECKING:
    from zoexport.api import Bundle
    from zoexport.core.trust import Trust
    from zoexport.data.sources import DataSource

F = TypeVar("F", bound=Callable[..., Any])


_SUMMARY = """
    algorithm: name of the algorithm
    rounds: number of rounds
    losses: mean loss of the clients' steps in each round; null if no client reports one
    evaluations, accuracies: loss and accuracy on --test after each round
    bytes_up, bytes_down: sizes of all messages, without Flower's framing
    upload_largest: largest upload of a client in a round, in bytes
    refused: number of refused replies
    unchanged: number of rounds without a new version
    flops: operations of all clients' steps, as 'plan' counts; null without the original model
    digest: SHA-256 of the newest version
    model, state: file of the newest version, and the folder; null without --state
"""


def _federation(function: F) -> F:
    """Add the options that server and simulation share."""
    for option in (
        click.option("--report", type=options.PATH, help="Folder for a report page with curves."),
        click.option(
            "--test",
            type=options.PATH,
            help="Examples on which each version is evaluated before it is accepted.",
        ),
        click.option(
            "--rise",
            type=click.FloatRange(min=0),
            default=0.25,
            show_default=True,
            help="Relative increase over the lowest test loss above which a version is rolled "
            "back.",
        ),
        click.option(
            "--aggregate",
            default="mean",
            show_default=True,
            help="Element-wise aggregation of clients' updates: mean, trimmed-mean or median.",
        ),
        click.option(
            "--clip",
            type=click.FloatRange(min=0, min_open=True),
            help="Maximum norm of a client's update; larger updates are scaled down to it.",
        ),
        click.option(
            "--clip-relative",
            type=click.FloatRange(min=0),
            default=3.0,
            show_default=True,
            help="Maximum norm as a multiple of the median norm of this and earlier rounds; 0: no "
            "limit.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=600.0,
            show_default=True,
            help="Seconds that a round waits for replies before it asks again or continues "
            "without them.",
        ),
        click.option(
            "--least",
            type=click.FloatRange(0, 1, min_open=True),
            default=0.5,
            show_default=True,
            help="Minimum share of sampled clients whose replies complete a round.",
        ),
        click.option(
            "--algorithm",
            help="Federated algorithm: replay (default), decomfl, fedzo or fedavg (default for "
            "first-order bundles).",
        ),
        click.option(
            "--steps",
            type=click.IntRange(min=1),
            default=10,
            show_default=True,
            help="Steps per client in a round.",
        ),
        click.option(
            "--rounds",
            type=click.IntRange(min=1),
            required=True,
            help="Total number of rounds; a state that has 3 of 10 is trained for 7 more.",
        ),
        click.option(
            "--sample",
            type=click.IntRange(min=1),
            required=True,
            help="Number of clients sampled per round.",
        ),
    ):
        function = option(function)
    return function


def _private(function: F) -> F:
    """Add the differential privacy options of clients."""
    for option in (
        click.option(
            "--dp-delta",
            type=click.FloatRange(0, 1, min_open=True, max_open=True),
            default=1e-5,
            show_default=True,
            help="Delta at which --dp-epsilon holds.",
        ),
        click.option(
            "--dp-epsilon",
            type=click.FloatRange(min=0, min_open=True),
            help="Privacy budget of all uploads; the client refuses once it is spent. Needed with "
            "--dp-noise.",
        ),
        click.option(
            "--dp-noise",
            type=click.FloatRange(min=0, min_open=True),
            help="Standard deviation of the noise on each uploaded number, in multiples of "
            "--dp-clip.",
        ),
        click.option(
            "--dp-clip",
            type=click.FloatRange(min=0, min_open=True),
            help="Maximum norm of an upload before noise. Needed with --dp-noise.",
        ),
    ):
        function = option(function)
    return function


@click.group(cls=Verbs)
def federate() -> None:
    """Train one model on the data of many clients, which never leave the clients.

    A client uploads the scalars of its steps, and the server replays them (docs/federation.md).

    \b
        zoexport federate simulate model.bundle --data train.jsonl --clients 100 \\
            --sample 10 --rounds 20
        zoexport federate server model.bundle --state fed --nodes keys --ca ca.crt \\
            --certificate server.pem --key server.key --sample 3 --rounds 20
        zoexport federate client model.bundle --data mine.jsonl --state me \\
            --server example.org:9092 --ca ca.crt --key me.key
    """


@federate.command()
@options.bundle
@options.data("test")
@click.option(
    "--clients", type=click.IntRange(min=1), required=True, help="Number of simulated clients."
)
@click.option(
    "--split",
    default="iid",
    show_default=True,
    help="Split of the data: iid, labels:ALPHA (Dirichlet by completion) or field:NAME.",
)
@click.option(
    "--state",
    type=options.PATH,
    help="Folder for the federation; the same command resumes from it.",
)
@_federation
@_private
@options.settings
@options.common
@json_keys(_SUMMARY)
def simulate(
    bundle: Bundle,
    data: DataSource,
    assignments: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Simulate clients of BUNDLE on this machine, in Flower's simulation engine.

    --set takes runtime settings, such as learning_rate, eps, seed, batch_size; each client runs
    --steps steps per round. The exit code is 1 if too few replies come or count.

    \b
        zoexport federate simulate model.bundle --data train.jsonl --clients 100 \\
            --sample 10 --rounds 20
        zoexport federate simulate model.bundle --data train.jsonl --clients 20 --sample 5 --rounds 50 \\
            --split labels:0.5 --test test.jsonl --state fed --report page --json
    """
    from zoexport.api.federate import simulate as run
    from zoexport.core.config import parse_assignments

    settings = parse_assignments(assignments)
    with output_of_libraries(), Rounds(as_json=as_json) as shown:
        found = run(bundle, data, settings=settings, progress=shown.phase, on_round=shown, **given)
    _emit(found.as_dict(), as_json=as_json)


@federate.command()
@options.bundle
@click.option("--state", type=options.PATH, required=True, help="Folder of the federation.")
@click.option(
    "--nodes",
    type=options.PATH,
    required=True,
    help="Folder with the clients' public keys, NAME.pub.",
)
@click.option("--ca", type=options.PATH, required=True, help="CA certificate, PEM.")
@click.option("--certificate", type=options.PATH, required=True, help="Server certificate, PEM.")
@click.option("--key", type=options.PATH, required=True, help="Private key of the server, PEM.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=9092, show_default=True)
@_federation
@options.settings
@options.common
@json_keys(_SUMMARY)
def server(
    bundle: Bundle,
    state: Path,
    nodes: Path,
    ca: Path,
    certificate: Path,
    key: Path,
    host: str,
    port: int,
    assignments: tuple[str, ...],
    timeout: float,
    least: float,
    report: Path | None,
    as_json: bool,
    aggregate: str,
    clip: float | None,
    clip_relative: float,
    rise: float,
    **others: Any,
) -> None:
    """Run the rounds of a federation of BUNDLE with real clients.

    Clients connect over TLS, and only those with a public key in --nodes may take part.
    docs/federation.md explains how to make keys and certificates. The same command resumes a server
    that was stopped. The exit code is 1 if too few replies come or count.

    \b
        zoexport federate server model.bundle --state fed --nodes keys --ca ca.crt \\
            --certificate server.pem --key server.key --host 0.0.0.0 \\
            --sample 3 --rounds 20 --set learning_rate=1e-3
    """
    from zoexport.core.config import parse_assignments
    from zoexport.federated import report as pages
    from zoexport.federated.coordinator import Patience
    from zoexport.federated.deploy import serve
    from zoexport.federated.guard import Guard
    from zoexport.federated.processes import Access

    guard = Guard(aggregate, clip, clip_relative or None, rise).checked()
    settings = parse_assignments(assignments)
    if report is not None:
        pages.check(report)
    with output_of_libraries(), Rounds(as_json=as_json) as shown:
        result = serve(
            bundle,
            state=state,
            access=Access(host, port, ca, certificate, key, nodes),
            settings=settings,
            patience=Patience(seconds=timeout, least=least),
            guard=guard,
            report=shown,
            page=report,
            progress=shown.phase,
            **others,
        )
    _emit(result, as_json=as_json)


@federate.command()
@options.bundle
@options.data()
@click.option("--state", type=options.PATH, required=True, help="Folder of this client.")
@click.option(
    "--server", "address", required=True, metavar="HOST:PORT", help="Address of the server."
)
@click.option("--ca", type=options.PATH, required=True, help="CA certificate, PEM.")
@click.option(
    "--key", type=options.PATH, required=True, help="Private key of this client, OpenSSH format."
)
@_private
@options.common
def client(
    bundle: Bundle,
    data: DataSource,
    state: Path,
    address: str,
    ca: Path,
    key: Path,
    dp_clip: float | None,
    dp_noise: float | None,
    dp_epsilon: float | None,
    dp_delta: float,
    as_json: bool,
) -> None:
    """Take part in a federation of BUNDLE, with data that stay here, until stopped.

    The server sends the tasks; Flower apps other than zoexport's are refused. docs/federation.md
    explains what a server learns from uploads and what --dp-noise changes. The exit code is 1 if
    the server does not accept this client or sends another app.

    \b
        ssh-keygen -t ecdsa -b 384 -N '' -f me.key   # the server gets me.key.pub as NAME.pub
        zoexport federate client model.bundle --data mine.jsonl --state me \\
            --server example.org:9092 --ca ca.crt --key me.key
    """
    from zoexport.data.sources import opened
    from zoexport.federated.deploy import take_part
    from zoexport.federated.privacy import Privacy

    privacy = Privacy.given(dp_clip, dp_noise, dp_epsilon, dp_delta)
    with (
        output_of_libraries(),
        Phases("federate", as_json=as_json) as phases,
        opened(data) as file,
    ):
        take_part(
            bundle,
            data=file,
            state=state,
            server=address,
            ca=ca,
            key=key,
            privacy=privacy,
            progress=phases,
        )


@federate.command()
@click.argument("run", metavar="RUN", type=options.PATH)
@click.option(
    "--bundle", type=options.PATH, help="Bundle, if it has moved since the federation began."
)
@options.trust
@exporting
@json_keys(Exported)
def export(run: Path, bundle: Path | None, trust: Trust | None, **given: Any) -> None:
    """Write the newest model of the federation in folder RUN as an adapter.

    RUN is the --state of 'federate server' or 'federate simulate'; 'eval', 'generate' and 'inspect'
    also accept it.

    \b
        zoexport federate export fed -o adapter
        zoexport federate export fed --format gguf -o adapter.gguf
    """
    from zoexport.api import Bundle
    from zoexport.federated.store import bundle_of

    write_adapter(Bundle.open(bundle or bundle_of(run), trust=trust), state=run, **given)


def _emit(result: Mapping[str, Any], *, as_json: bool) -> None:
    losses = [loss for loss in result["losses"] if loss is not None] or [float("nan")]
    rows = [
        ("loss", f"{losses[0]:.4f} in the first round, {losses[-1]:.4f} in the last"),
        ("sent", f"{size(result['bytes_up'])} up, {size(result['bytes_down'])} down"),
        ("refused", f"{result['refused']} replies, {result['unchanged']} rounds"),
    ]
    if result["evaluations"]:
        rows.insert(1, ("held out", f"{result['evaluations'][-1]:.4f}"))
    if result["state"]:
        rows.append(("model", result["model"]))
    lines = [f"Trained {result['rounds']} rounds with {result['algorithm']}.", *table(rows)]
    emit(result, lines, as_json=as_json)
