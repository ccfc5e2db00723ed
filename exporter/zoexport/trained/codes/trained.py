"""The integers of quantized weights (docs/integers.md): those of linear layers, or of adapters beside them.

Settings have ``queries``, ``eps``, those of the perturbations, and the ``update_rule``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.adapters import FORMATS, adapter_format
from zoexport.core.features import Feature
from zoexport.core.settings import TrainingSettings
from zoexport.core.types import Pass
from zoexport.trained import kinds
from zoexport.trained.kind import MERGED, Bundle, Insertion, Output, Slots, Trained

if TYPE_CHECKING:
    import torch


def needs(_: TrainingSettings) -> dict[Feature, str]:
    """A product whose integers are perturbed as it reads them."""
    return {Feature.INTEGER_PRODUCTS: "the method"}


def of_layers(config: Any, targets: list[str]) -> Insertion:
    """The codes of the linear layers ``targets``."""
    return Insertion(families=_rounding(config, targets), quantized=(_training(config, targets),))


def of_adapters(config: Any, targets: list[str]) -> Insertion:
    """Adapters beside the linear layers ``targets``, as linear layers of their own, whose codes are int8."""
    from zoexport.passes.lora_linears import HALVES, lora_linears

    inject = Pass(
        "lora_linears",
        lambda graph: lora_linears(graph, targets, config.scaling, seed=config.seed),
        "finds weights by the model's names, which stages rename",
    )
    matrices = [f"{module}.{half}" for module in targets for half in HALVES]
    return Insertion(
        captured=(inject,),
        families=_rounding(config, targets),
        quantized=(_training(config, matrices),),
        int8=HALVES,
    )


def _rounding(config: Any, targets: list[str]) -> tuple[Pass, ...]:
    from zoexport.passes.round_activations import round_activations

    rounding = Pass(
        "round_activations",
        lambda graph: round_activations(
            graph, list(graph.activations or targets), graph.activations
        ),
        "finds layers by their weights, which stages bind",
    )
    return (rounding,) if config.rounds_inputs else ()


def _training(config: Any, modules: list[str]) -> Pass:
    from zoexport.passes.perturb_codes import perturb_codes

    return Pass(
        "perturb_codes",
        lambda graph: perturb_codes(
            graph,
            modules,
            queries=config.queries,
            eps=config.eps,
            bits=config.perturbation_bits,
            estimator=config.update_rule,
        ),
        "trains codes, which quantized stages bind",
    )


def for_reference(
    _: torch.nn.Module, bundle: Path, manifest: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """``scales.<parameter>``, (N, groups) or (N)."""
    from zoexport.trained.codes.files import scales_of

    return {f"scales.{name}": scales for name, scales in scales_of(bundle, manifest).items()}


def write(output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
    """Codes and scales, or the original model with what they stand for."""
    from zoexport.models import load_original
    from zoexport.trained.codes.files import set_dequantized, write_quantized
    from zoexport.trained.model_files import save_model

    parts = _parts(bundle, slots)
    if output.kind == "quantized":
        write_quantized(output.path, parts, bundle.manifest, replace=output.replace)
        return
    loaded = load_original(bundle.manifest, output.model)
    set_dequantized(loaded.model, parts)
    save_model(output, loaded)


def merge(model: torch.nn.Module, slots: Slots, bundle: Bundle) -> None:
    """What the codes stand for, as the weights."""
    from zoexport.trained.codes.files import set_dequantized

    set_dequantized(model, _parts(bundle, slots))


def write_adapters(output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
    """Codes and scales, or an adapter for PEFT, mlx-lm or llama.cpp."""
    from zoexport.trained.codes.files import adapters_of
    from zoexport.trained.lora.adapters import settings_of

    if output.kind == "quantized":
        write(output, slots, initial, bundle)
        return
    kind = adapter_format(output.kind, output.outtype)
    adapters = adapters_of(_parts(bundle, slots))
    kind.write(adapters, settings_of(bundle), output.path, replace=output.replace)


def merge_adapters(model: torch.nn.Module, slots: Slots, bundle: Bundle) -> None:
    """What the adapters add, in the weights that they are beside."""
    from zoexport.trained.codes.files import adapters_of
    from zoexport.trained.lora.adapters import add_to_weights, settings_of

    add_to_weights(model, adapters_of(_parts(bundle, slots)), settings_of(bundle))


def read(_: str, folder: Path, own: Slots, bundle: Bundle) -> Slots:
    """The codes of a folder of ``quantized``."""
    from zoexport.trained.codes.files import CODES, read_quantized

    codes = read_quantized(folder, _parts(bundle, own), bundle.manifest)
    return {f"{name}{CODES}": values.numpy() for name, values in codes.items()}


def _parts(bundle: Bundle, slots: Slots) -> Any:
    from zoexport.trained.codes.files import parts_of, scales_of

    return parts_of(scales_of(bundle.folder, bundle.manifest), slots)


_CODES = Trained(
    words="quantized weights",
    formats=("quantized", "hf", MERGED),
    readable=("quantized",),
    insertion=of_layers,
    write=write,
    merge=merge,
    read=read,
    needs=needs,
    for_reference=for_reference,
)
kinds.register("codes", _CODES)
kinds.register(
    "adapter codes",
    dataclasses.replace(
        _CODES,
        words="quantized adapters",
        formats=(*FORMATS, "quantized", MERGED),
        insertion=of_adapters,
        write=write_adapters,
        merge=merge_adapters,
    ),
)
