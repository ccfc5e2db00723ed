"""The comparisons that an accelerator makes: arms, each with rates of its own, over one set of examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from research.support.arms import ALL_WEIGHTS, Arm, estimators, split, unsplit

CHOSEN, RANDOM = "corpus", "random"
"""Values of the setting ``mask``: masks of a prepared folder."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Arms over one set of examples.

    Attributes:
        task: ``films``, sentences with two choices; ``text``, every next token of news reports.
        common: settings of all arms.
        steps: of a run; of arms with other operations a step as many as make the first arm's operations.
        points: how often a run is evaluated. seeds: of noise and order.
    """

    task: str
    common: Mapping[str, str]
    arms: tuple[Arm, ...]
    steps: int
    points: int = 4
    seeds: tuple[int, ...] = (0, 1, 2)


_FILMS = {
    "loss": "choices",
    "max_length": "64",
    "batch_size": "4",
    "num_queries": "4",
    "activations": "fp32",
}
_TEXT = {
    "loss": "full",
    "max_length": "256",
    "batch_size": "1",
    "lora.target_modules": "all-linear",
    "lora.r": "16",
    "weights": "int4",
}


def _adapters(label: str, rates: tuple[float, ...], **settings: str) -> Arm:
    named = {key.replace("__", "."): value for key, value in settings.items()}
    method = named.pop("method", "prge")
    # By layers, as the head then computes labels alone, whatever is trained.
    common = {"weights": "int4", "eps": "1e-3", "granularity": "layer"}
    return Arm(label, method, {**common, **named}, rates)


def _steps(
    rates: tuple[float, ...], signs: tuple[float, ...], adam: tuple[float, ...]
) -> tuple[Arm, ...]:
    """Estimators and updates over the same adapters."""
    fzoo = {"method": "fzoo", "num_queries": "7"}
    muon = tuple(30 * rate for rate in rates)
    return (
        _adapters("P-RGE", rates, num_queries="4"),
        _adapters("FZOO", signs, **fzoo),
        _adapters(
            "P-RGE, A of activations", rates, num_queries="4", lora__init_weights="activations"
        ),
        _adapters("FZOO, A of activations", signs, lora__init_weights="activations", **fzoo),
        _adapters("P-RGE, Adam", adam, num_queries="4", optimizer="adam"),
        _adapters("P-RGE, momentum", rates, num_queries="4", optimizer="momentum"),
        _adapters("P-RGE, Muon", muon, num_queries="4", optimizer="muon"),
        _adapters("MeZO, q = 1", rates, method="mezo", num_queries="1"),
    )


_RATES = (2e-3, 5e-3, 1e-2, 2e-2)


def _queries(count: int, rates: tuple[float, ...]) -> Arm:
    """So many of as few rows as make 16 with them."""
    settings = {"num_queries": str(count), "batch_size": str(16 // count)}
    return _adapters(f"q = {count}, B = {16 // count}", rates, **settings)


_WEIGHTS = (5e-6, 1e-5, 2e-5)


COMPARISONS = {
    "steps-text": Comparison(
        "text",
        _TEXT,
        (
            *_steps((1e-3, 2e-3, 5e-3, 1e-2), (1e-3, 2e-3, 5e-3, 1e-2), (3e-4, 1e-3, 3e-3, 1e-2)),
            Arm("MeBP", "mebp", {"lr_scheduler_type": "constant"}, (2e-4, 5e-4, 1e-3)),
        ),
        steps=240,
        points=12,
    ),
    "senszoq": Comparison(
        "films",
        _FILMS,
        (
            Arm(
                "SensZOQ",
                "senszoq",
                {"weights": "int4", "eps": "1e-3", "mask": CHOSEN},
                (5e-5, 1e-4, 2e-4, 4e-4),
            ),
            Arm(
                "random weights",
                "senszoq",
                {"weights": "int4", "eps": "1e-3", "mask": RANDOM},
                (5e-2, 1e-1, 2e-1, 4e-1),
            ),
            _adapters("LoRA, query and value", _RATES),
            # The paper's baseline: all linear layers, r = 8, alpha = 16.
            _adapters(
                "LoRA, all linear layers",
                (1e-3, 2e-3, 5e-3, 1e-2),
                lora__target_modules="all-linear",
                lora__r="8",
            ),
            Arm("all weights", "mezo", ALL_WEIGHTS, _WEIGHTS),
        ),
        steps=400,
    ),
    "steps-films": Comparison(
        "films", _FILMS, _steps(_RATES, _RATES, (3e-4, 1e-3, 3e-3, 1e-2)), steps=200
    ),
    "queries": Comparison(
        "films",
        _FILMS,
        (
            _queries(1, (2e-4, 5e-4, 1e-3, 2e-3, 5e-3)),
            _queries(4, _RATES),
            _queries(16, (5e-3, 1e-2, 2e-2, 4e-2, 8e-2)),
        ),
        steps=400,
    ),
    # FedSPZO's estimator, of one client.
    "split": Comparison(
        "films",
        {key: value for key, value in _FILMS.items() if key != "num_queries"},
        (
            unsplit(2, _WEIGHTS),
            *(split(perturbations, _WEIGHTS) for perturbations in ("1,4", "2,2", "2,4")),
            unsplit(1, _WEIGHTS),
            unsplit(4, _WEIGHTS),
        ),
        steps=400,
        points=8,
    ),
    # A step of INT8 is an eighteenth of one of INT4, so rates in grid steps are as much larger, squared.
    "quzo-int8": Comparison(
        "films", _FILMS, estimators("8", (1, 3, 10), eps="1"), steps=100, points=2
    ),
    "quzo-int4": Comparison(
        "films", _FILMS, estimators("4", (1e-3, 3e-3, 1e-2), eps="0.5"), steps=100, points=2
    ),
}
