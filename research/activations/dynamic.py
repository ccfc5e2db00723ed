"""What rounding inputs as they come costs zeroth order (``activations=int8``): losses, and differences of losses.

``python -m research.activations.dynamic PAGE`` rounds the inputs of SmolLM2's linear layers over INT4 weights with a
scale for 32 neighbours, of which none, some or all are rotated, and renews the part of the page between
``<!-- report-rounded-inputs -->`` and its end.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812, as everyone calls it
from torch import Tensor, nn

from research.support.command import Clock, renew_part
from zoexport import calibration, models
from zoexport.core import hadamard, int4
from zoexport.data import corpus
from zoexport.ir.product_ops import rounded_rows
from zoexport.passes.rotate_inputs import pays
from zoexport.tools.bench.output import markdown_table

MARK = "report-rounded-inputs"
MODEL = "smollm2-135m"
SEQ_LEN, ROWS, DIRECTIONS, RANK = 64, 4, 7, 16
EPS = (1e-2, 3e-3, 1e-3)

Round = Callable[[Tensor], Tensor]
Layers = Mapping[str, Any]
"""Linear layers by path."""
Adapters = Mapping[str, tuple[Tensor, Tensor]]
"""By layer A (K, r) and B (r, N), already times eps."""


WAYS: Mapping[str, Callable[[Mapping[str, float]], set[str]]] = {
    "nothing": lambda gains: set(),
    "what gains": lambda gains: {name for name in gains if _pays(name, gains)},
    "all": lambda gains: {*gains},
}
"""By what is rotated: of the layers' gains (``calibration.rotation_gains``), those layers."""


def _pays(name: str, gains: Mapping[str, float]) -> bool:
    """As the exporter decides, whose programs are shared by the layers of a name."""
    kind = name.rpartition(".")[2]
    return pays(gain for other, gain in gains.items() if other.rpartition(".")[2] == kind)


@contextlib.contextmanager
def computing(
    layers: Layers,
    turned: set[str],
    round_: Round,
    adapters: Adapters,
) -> Iterator[None]:
    """While this is open, layers have INT4 weights and rounded inputs; adapters beside them read inputs as they are."""

    def linear(layer: nn.Linear, weight: Tensor, turns: bool, beside: Any, x: Tensor) -> Tensor:
        y = F.linear(round_(hadamard.rotate_rows(x) if turns else x), weight, layer.bias)
        return y if beside is None else y + x @ beside[0] @ beside[1]

    for name, layer in layers.items():
        weight, turns = _int4(layer, name in turned), name in turned
        layer.forward = functools.partial(linear, layer, weight, turns, adapters.get(name))
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.forward


@functools.lru_cache(maxsize=512)
def _int4(layer: nn.Linear, turns: bool) -> Tensor:
    weight = layer.weight.detach()
    return int4.dequantize_int4(
        *int4.quantize_int4(hadamard.rotate_rows(weight) if turns else weight)
    )


def loss(model: nn.Module, batch: Tensor) -> float:
    """Mean cross-entropy of the tokens (rows, length)."""
    with torch.no_grad():
        logits = model(input_ids=batch, use_cache=False).logits[:, :-1]
        return float(F.cross_entropy(logits.flatten(0, 1).double(), batch[:, 1:].flatten()))


def directions(layers: Layers, eps: float, seed: int) -> Adapters:
    """A perturbation of LoRA's B, which is zero, on query and value: signs times eps."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, layer in layers.items():
        if name.endswith(("q_proj", "v_proj")):
            outputs, inputs = layer.weight.shape
            a = torch.randn(inputs, RANK, generator=torch.Generator().manual_seed(0)) / inputs**0.5
            signs = torch.randint(2, (RANK, outputs), generator=generator) * 2.0 - 1
            found[name] = a, eps * signs
    return found


def measured(
    model: nn.Module,
    layers: Layers,
    turned: set[str],
    way: str,
    batches: Sequence[Tensor],
) -> list[Any]:
    """A row of the table: the loss, what rounding changes of it, and of differences of losses along directions."""

    def losses(round_: Round, adapters: Adapters) -> list[float]:
        with computing(layers, turned, round_, adapters):
            return [loss(model, batch) for batch in batches]

    def plain(x: Tensor) -> Tensor:
        return x

    exact, rounded = losses(plain, {}), losses(rounded_rows, {})
    row: list[Any] = [
        way,
        f"{len(turned)} of {len(layers)}",
        f"{statistics.mean(exact):.3f}",
        f"{statistics.mean(rounded) - statistics.mean(exact):+.4f}",
    ]
    for eps in EPS:
        moved = [directions(layers, eps, seed) for seed in range(1, DIRECTIONS + 1)]
        signal = [losses(plain, one) for one in moved]
        noise = [
            [a - b for a, b in zip(losses(rounded_rows, one), before, strict=True)]
            for one, before in zip(moved, signal, strict=True)
        ]
        shares = [
            statistics.stdev(wrong) / statistics.stdev(right)
            for wrong, right in zip(
                zip(*noise, strict=True), zip(*signal, strict=True), strict=True
            )
        ]
        row.append(f"{statistics.mean(shares):.2f}")
    return row


def measure(name: str, clock: Clock) -> str:
    """The page's marked part for a model.

    Raises:
        ZoExportError: the model or the corpus cannot be had.
    """
    loaded = models.load(models.resolve(name))
    modules = models.adapter_targets(loaded.model, "all-linear", "all")
    layers = {path: loaded.model.get_submodule(path) for path in (*modules, "lm_head")}
    held_out = calibration.calibration_rows(loaded, SEQ_LEN, corpus.rows(SEQ_LEN).test)
    tokens = [row for row in held_out if len(row) == SEQ_LEN]
    batches = [torch.tensor(tokens[at : at + ROWS]) for at in range(0, len(tokens), ROWS)]
    table = []
    found = calibration.rotation_gains(loaded, SEQ_LEN)
    gains = {path: found[path] for path in layers if path in found}
    for way, chosen in WAYS.items():
        clock(f"measuring {way}", None)
        turned = chosen(gains)
        table.append(measured(loaded.model, layers, turned, way, batches))
        _int4.cache_clear()
    columns = [
        "rotated",
        "layers",
        "loss",
        "rounded",
        *(f"noise, eps {eps:g}" for eps in EPS),
    ]
    return "\n".join(
        [
            markdown_table(columns, table),
            "",
            f"- {loaded.name}, INT4 weights in groups of 32, its head among them; {len(batches)} batches of {ROWS} "
            f"held-out rows of the Brown corpus of {SEQ_LEN} tokens",
            "- rounded: what rounding adds to the loss; noise: what it changes of losses along directions, the "
            f"deviation of {DIRECTIONS}, over the deviation of these losses, mean of the batches; LoRA's B of rank "
            f"{RANK} on query and value, by signs",
            f"- torch {torch.__version__}",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return renew_part(arguments, "Rounded inputs.", MARK, MODEL, measure)


if __name__ == "__main__":
    sys.exit(main())
