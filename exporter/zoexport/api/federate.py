"""Federated training (docs/federation.md): ``zoexport.federate.simulate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from zoexport.api import StrPath
from zoexport.api.verbs import AnyBundle, opened
from zoexport.core.progress import silent
from zoexport.data.sources import Data, as_file
from zoexport.run.progress import Shown, phases
from zoexport.run.results import Simulated


def simulate(
    bundle: AnyBundle,
    data: Data,
    *,
    clients: int,
    sample: int,
    rounds: int,
    steps: int = 10,
    split: str = "iid",
    state: StrPath | None = None,
    test: Data | None = None,
    algorithm: Literal["replay", "decomfl", "fedzo", "fedavg"] | None = None,
    settings: Mapping[str, Any] | None = None,
    timeout: float = 600.0,
    least: float = 0.5,
    aggregate: Literal["mean", "trimmed-mean", "median"] = "mean",
    clip: float | None = None,
    clip_relative: float = 3.0,
    rise: float = 0.25,
    dp_clip: float | None = None,
    dp_noise: float | None = None,
    dp_epsilon: float | None = None,
    dp_delta: float = 1e-5,
    report: StrPath | None = None,
    progress: Shown = False,
    on_round: Callable[[Mapping[str, Any]], None] = silent,
) -> Simulated:
    """Simulate clients on this machine, in Flower's simulation engine.

    Args:
        bundle: the bundle to train.
        data: examples (docs/formats.md, "Training data"), divided over the clients.
        clients: number of simulated clients. sample: number of clients sampled per round.
        rounds: total number of rounds; a state that has 3 of 10 is trained for 7 more.
        steps: steps per client in a round.
        split: ``iid``, ``labels:ALPHA`` (Dirichlet by completion) or ``field:NAME``.
        state: folder for the federation; the same call resumes from it. None keeps nothing.
        test: examples on which each version is evaluated before it is accepted.
        algorithm: federated algorithm; None: replay, or fedavg for first-order bundles.
        settings: runtime settings, such as ``{"learning_rate": 1e-3}``.
        timeout: seconds that a round waits for replies before it asks again or continues without them.
        least: minimum share of sampled clients whose replies complete a round.
        aggregate: element-wise aggregation of the clients' updates.
        clip: maximum norm of a client's update; larger updates are scaled down to it.
        clip_relative: maximum norm as a multiple of the median norm of this and earlier rounds; 0: no limit.
        rise: relative increase over the lowest test loss above which a version is rolled back.
        dp_clip, dp_noise, dp_epsilon, dp_delta: differential privacy of the uploads: maximum norm, standard deviation
            of the noise in multiples of it, and the budget.
        report: folder for a report page with curves.
        progress: see :func:`zoexport.compile`.
        on_round: called with the record of each round once it is on disk.

    Raises:
        ZoExportError: an input cannot be used, or too few clients answered.
    """
    from zoexport.federated import report as pages
    from zoexport.federated.coordinator import Patience
    from zoexport.federated.guard import Guard
    from zoexport.federated.privacy import Privacy
    from zoexport.federated.simulate import simulate as run

    guard = Guard(aggregate, clip, clip_relative or None, rise).checked()
    privacy = Privacy.given(dp_clip, dp_noise, dp_epsilon, dp_delta)
    page = None if report is None else Path(report)
    if page is not None:
        pages.check(page)
    with ExitStack() as stack:
        shown = stack.enter_context(phases("federate", progress))
        found = run(
            opened(bundle),
            data=stack.enter_context(as_file(data)),
            clients=clients,
            sample=sample,
            rounds=rounds,
            steps=steps,
            algorithm=algorithm,
            settings=settings or {},
            division=split,
            state=None if state is None else Path(state),
            test=None if test is None else stack.enter_context(as_file(test)),
            patience=Patience(seconds=timeout, least=least),
            guard=guard,
            privacy=privacy,
            report=on_round,
            page=page,
            progress=shown,
        )
    return Simulated.of(found)
