"""Train the integers of quantized weights (docs/noise.md), of linear layers or adapters.

Settings: ``num_queries``, ``eps``, those of the perturbations, and ``update_rule``.

``quantized`` is a folder with ``quantized_model.safetensors``: for every trained parameter ``<parameter>.codes`` and
``<parameter>.scales`` in the packing that ``quantized_config.json`` names (docs/formats.md). That file
also identifies the model.

``hf`` is a Hugging Face model: the original, in which every trained weight is scale times integer. Its other weights
are the original ones, not the bundle's quantized ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.adapters import FORMATS, adapter_format
from zoexport.adapters.files import refuse, write_json
from zoexport.core.features import Feature
from zoexport.core.files import atomic_folder
from zoexport.core.manifest import checked_file
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Pass
from zoexport.session import Bundle
from zoexport.trained import MERGED, Insertion, Output, Slots, Trained, kinds
from zoexport.trained.lora import add_to_weights, settings_of
from zoexport.trained.model_files import (
    check_model,
    model_of,
    read_description,
    read_tensors,
    save_model,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMAT = "zoexport-quantized/1"
CONFIG, WEIGHTS = "quantized_config.json", "quantized_model.safetensors"

CODES = ".codes"
Parts = Mapping[str, "tuple[Tensor, Tensor]"]
"""By parameter: codes uint8 (N, K/2) or int8 (N, K), and scales."""


def needs(_: TrainingSettings) -> dict[Feature, str]:
    """Require integer products, which perturb the weights while reading them."""
    return {Feature.INTEGER_PRODUCTS: "the method"}


def of_layers(config: Any, targets: list[str]) -> Insertion:
    """Train the quantized values of the linear layers ``targets``."""
    return Insertion(families=_rounding(config, targets), quantized=(_training(config, targets),))


def of_adapters(config: Any, targets: list[str]) -> Insertion:
    """Add adapters to ``targets`` as separate linear layers with int8 quantized values."""
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
            graph, list(graph.measured.activations or targets), graph.measured.activations
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
            queries=config.num_queries,
            eps=config.eps,
            bits=config.perturbation_bits,
            estimator=config.update_rule,
        ),
        "trains codes, which quantized stages bind",
    )


def for_reference(_: torch.nn.Module, bundle: Bundle) -> dict[str, torch.Tensor]:
    """Return ``scales.<parameter>``, (N, groups) or (N)."""
    return {f"scales.{name}": scales for name, scales in scales_of(bundle).items()}


def write(output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
    """Write quantized values and scales, or the original model with dequantized weights."""
    from zoexport.models import load_original

    parts = _parts(bundle, slots)
    if output.kind == "quantized":
        write_quantized(output.path, parts, bundle.manifest, replace=output.replace)
        return
    loaded = load_original(bundle.manifest, output.model)
    set_dequantized(loaded.model, parts)
    save_model(output, loaded)


def merge(model: torch.nn.Module, slots: Slots, bundle: Bundle) -> None:
    """Set the weights to the dequantized values."""
    set_dequantized(model, _parts(bundle, slots))


def write_adapters(output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
    """Write quantized values and scales, or an adapter for PEFT, mlx-lm or llama.cpp."""
    if output.kind == "quantized":
        write(output, slots, initial, bundle)
        return
    kind = adapter_format(output.kind, output.outtype)
    adapters = adapters_of(_parts(bundle, slots))
    kind.write(adapters, settings_of(bundle), output.path, replace=output.replace)


def merge_adapters(model: torch.nn.Module, slots: Slots, bundle: Bundle) -> None:
    """Merge the adapters into the adapted weights."""
    add_to_weights(model, adapters_of(_parts(bundle, slots)), settings_of(bundle))


def read(_: str, folder: Path, own: Slots, bundle: Bundle) -> Slots:
    """Read the quantized values of a ``quantized`` folder."""
    codes = read_quantized(folder, _parts(bundle, own), bundle.manifest)
    return {f"{name}{CODES}": values.numpy() for name, values in codes.items()}


def _parts(bundle: Bundle, slots: Slots) -> Any:
    return parts_of(scales_of(bundle), slots)


def write_quantized(
    folder: Path, parts: Parts, manifest: Mapping[str, Any], *, replace: bool = False
) -> None:
    """Write quantized values and scales atomically as a new folder.

    Raises:
        ConfigError: the folder exists and ``replace`` is off, or the place cannot be written.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for name, (codes, scales) in parts.items():
        tensors |= {f"{name}.codes": codes.contiguous(), f"{name}.scales": scales.contiguous()}
    with atomic_folder(folder, replace=replace) as output:
        (output / WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))
        config = {"format": FORMAT, "packing": manifest["packing"], **model_of(manifest)}
        write_json(output / CONFIG, config)


def set_dequantized(model: torch.nn.Module, parts: Parts) -> None:
    """Set the trained weights of a model to scale times integer."""
    for name, (codes, scales) in parts.items():
        model.get_parameter(name).data.copy_(_dequantized(codes, scales))


def read_quantized(folder: Path, parts: Parts, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the quantized values by parameter of a folder that :func:`write_quantized` wrote.

    Args:
        parts: values of the bundle; the file must have the same scales.

    Raises:
        StateError: files are missing or damaged, or belong to another model or quantization grid.
    """
    import torch

    path = folder / CONFIG
    check_model(path, read_description(path, FORMAT, "quantized"), manifest)
    tensors = read_tensors(folder / WEIGHTS, "quantized")
    codes = {}
    for name, (own, scales) in parts.items():
        theirs = tensors.get(f"{name}.codes")
        if (
            theirs is None
            or (theirs.dtype, theirs.shape) != (own.dtype, own.shape)
            or not _equal(tensors.get(f"{name}.scales"), scales)
        ):
            refuse(
                f"{folder / WEIGHTS}, {name}",
                found="no such weight" if theirs is None else "another shape, or other scales",
                expected=f"codes {tuple(own.shape)} on the bundle's own grid",
                fix="Use a bundle of the same model, weights and group_size.",
            )
        if theirs.dtype == torch.int8 and int(theirs.min()) < -127:
            refuse(
                f"{folder / WEIGHTS}, {name}",
                found="the code -128",
                expected="codes from -127 to 127",
                fix="Export it again.",
            )
        codes[name] = theirs
    return codes


def _equal(theirs: Tensor | None, own: Tensor) -> bool:
    import torch

    return theirs is not None and theirs.dtype == own.dtype and torch.equal(theirs, own)


def scales_of(bundle: Bundle) -> dict[str, Tensor]:
    """Read the scales of all trained parameters from a bundle's weights file."""
    from safetensors import safe_open

    manifest = bundle.manifest
    with (
        checked_file(bundle.path, manifest, manifest["weights"]["file"]) as path,
        safe_open(path, framework="pt") as file,
    ):
        return {
            name: file.get_tensor(f"{name}.scales")
            for slot in manifest["state"]
            if slot["role"] == "trainable"
            for name in [slot["name"].removesuffix(CODES)]
        }


def parts_of(scales: Mapping[str, Tensor], slots: Mapping[str, Any]) -> Parts:
    """Pair quantized values and scales; ``slots``: packed numpy arrays ``<parameter>.codes``."""
    import torch

    return {
        name: (torch.from_numpy(slots[f"{name}{CODES}"].copy()), scale)
        for name, scale in scales.items()
    }


def adapters_of(parts: Parts) -> dict[str, Any]:
    """Dequantize adapters to ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out)."""
    found = {}
    for name, (codes, scales) in parts.items():
        module, _, half = name.removesuffix(".weight").rpartition(".")
        found[f"{half}.{module}"] = _dequantized(codes, scales).T.contiguous().numpy()
    return found


def _dequantized(codes: Tensor, scales: Tensor) -> Tensor:
    import torch

    from zoexport.core import int4

    dequantize = int4.dequantize_int4 if codes.dtype == torch.uint8 else int4.dequantize_int8
    return dequantize(codes, scales)


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
