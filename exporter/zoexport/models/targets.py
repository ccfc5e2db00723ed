"""Target modules of adapters: ``lora.target_modules`` and ``lora.layers_to_transform``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from zoexport.core.errors import ConfigError, nearest
from zoexport.models.quantizable import is_router

if TYPE_CHECKING:
    from torch import nn

    from zoexport.core.lora_scaling import LoraScaling

_ATTENTION = re.compile(r"att(entio)?n")
_AFFIXES = re.compile(r"^(to_|c_|w_?)|(_?proj(ection)?|_?lin(ear)?|_layer)$")
_QUERY = {"q", "query"}
_VALUE = {"v", "value"}
_FUSED = {"qkv", "query_key_value", "attn"}


def linear_names(model: nn.Module) -> list[str]:
    """Return the paths of all linear layers except the output head, in the model's order.

    For a multimodal model, only those of its language model.
    """
    from torch import nn

    head = _head(model)
    root = _text_root(model)
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and f"{path}.".startswith(root)
    ]


def adapter_targets(
    model: nn.Module,
    targets: str,
    layers: str = "all",
    weights: Container[str] | None = None,
    ranks: LoraScaling | None = None,
) -> list[str]:
    """Return the paths of the target modules, in the model's order.

    Args:
        model: causal language model whose linear layers are ``nn.Linear``.
        targets: ``attention`` (query and value projections, or the fused one), ``all-linear`` (see
            :func:`is_left_out`), or names separated by commas, each matching a whole path or its end after a dot, as
            in PEFT.
        layers: ``all``, ``last:K`` for the K last decoder layers, or their numbers from 0, separated by commas.
        weights: names of the weights that the captured model multiplies with; other layers, such as
            cross-attention, are skipped. None: all layers.
        ranks: ranks of the adapters; None if other parameters are trained.

    Raises:
        ConfigError: a name matches nothing, attention projections are not recognizable by their names, or the model
            has fewer layers.
    """
    linears = [
        path for path in linear_names(model) if weights is None or f"{path}.weight" in weights
    ]
    if targets.strip() == "all-linear":
        # If the rank is too large for every layer, its own message is better than an empty list.
        chosen = [path for path in linears if not is_left_out(model, path, ranks)] or linears
    elif targets.strip() == "attention":
        chosen = _attention(linears)
    else:
        chosen = _named(model, linears, targets)
    kept = _in_layers(model, chosen, layers)
    if not kept:
        raise ConfigError(
            "settings 'lora.target_modules' and 'lora.layers_to_transform'",
            found=f"no layer that is both {targets!r} and in {layers!r}",
            expected="at least one layer to adapt",
            fix="Choose other targets, or more layers.",
        )
    return kept


def is_left_out(model: nn.Module, path: str, ranks: LoraScaling | None) -> bool:
    """Return whether ``all-linear`` leaves out a layer.

    It leaves out routers of experts, and layers with fewer inputs or outputs than the rank: their
    adapter would be larger than their weight (Gemma 3n mixes four streams).
    """
    weight: Any = model.get_parameter(f"{path}.weight")
    narrow = ranks is not None and min(weight.shape) < ranks.rank_of(path)
    return narrow or is_router(model, path)


def _head(model: Any) -> Any:
    find = getattr(model, "get_output_embeddings", None)
    return find() if find is not None else None


def _text_root(model: Any) -> str:
    """Return the path prefix of the language model, with a final dot; empty for a text model."""
    config = getattr(model, "config", None)
    if config is None or config.get_text_config() is config:
        return ""
    decoder = model.get_decoder()
    return next((f"{path}." for path, module in model.named_modules() if module is decoder), "")


def _leaves(linears: list[str]) -> list[str]:
    return sorted({path.rpartition(".")[2] for path in linears})


def _attention(linears: list[str]) -> list[str]:
    """Return the query and value projections, recognized by their names.

    ``self_attn.q_proj``, ``attn.to_q``, ``attention.self.query`` and ``attention.wq`` are queries, ``attn.Wqkv``,
    ``attn.c_attn`` and ``self_attention.query_key_value`` are fused.
    """
    chosen: list[str] = []
    found: dict[str, set[str]] = defaultdict(set)
    for path in linears:
        parent, _, leaf = path.rpartition(".")
        # BERT-like models have `attention.self` and `attention.output`.
        block = parent.removesuffix(".self").rpartition(".")[2]
        if not _ATTENTION.search(block.lower()):
            continue
        role = _role(leaf)
        if role:
            chosen.append(path)
            found[parent].add(role)
    unclear = [p for p, roles in found.items() if roles not in ({"fused"}, {"query", "value"})]
    if not chosen or unclear:
        place = f"in {unclear[0]!r} only {sorted(found[unclear[0]])}" if unclear else "none"
        raise ConfigError(
            "setting 'lora.target_modules=attention'",
            found=f"no query and value projections that their names show ({place})",
            expected="names of linear layers: " + ", ".join(_leaves(linears)),
            fix="Give names instead, such as --set lora.target_modules=NAME,NAME.",
        )
    return chosen


def _role(leaf: str) -> str:
    meaning = _AFFIXES.sub("", leaf.lower())
    if meaning in _QUERY:
        return "query"
    if meaning in _VALUE:
        return "value"
    return "fused" if meaning in _FUSED else ""


def _named(model: nn.Module, linears: list[str], targets: str) -> list[str]:
    names = [name.strip() for name in targets.split(",") if name.strip()]
    if not names:
        raise ConfigError(
            "setting 'lora.target_modules'",
            found=repr(targets),
            expected="attention, all-linear, or names of linear layers: "
            + ", ".join(_leaves(linears)),
            fix="Give at least one name.",
        )
    chosen: set[str] = set()
    for name in names:
        matches = [path for path in linears if f".{path}".endswith(f".{name}")]
        if not matches:
            raise _no_match(model, linears, name)
        chosen.update(matches)
    return [path for path in linears if path in chosen]


def _no_match(model: nn.Module, linears: list[str], name: str) -> ConfigError:
    known = _leaves(linears)
    modules = [module for path, module in model.named_modules() if f".{path}".endswith(f".{name}")]
    if not modules:
        found = f"no layer called {name!r}"
    elif modules[0] is _head(model):
        found = f"{name!r}, the output head"
    else:
        found = (
            f"{name!r}, a {type(modules[0]).__name__} and not a linear layer of the language model"
        )
    return ConfigError(
        "setting 'lora.target_modules'",
        found=found,
        expected="attention, all-linear, or names of linear layers: " + ", ".join(known),
        fix=f"Correct the name.{nearest(name, [*known, 'attention', 'all-linear'])}",
    )


def _in_layers(model: nn.Module, chosen: list[str], layers: str) -> list[str]:
    layers = layers.strip()
    if layers == "all":
        return chosen
    stack, size = decoder_stack(model, chosen)
    if last := re.fullmatch(r"last:(\d+)", layers):
        kept = list(range(size - int(last[1]), size))
    elif re.fullmatch(r"\d+(\s*,\s*\d+)*", layers):
        kept = [int(number) for number in layers.split(",")]
    else:
        raise ConfigError(
            "setting 'lora.layers_to_transform'",
            found=repr(layers),
            expected="all, last:K such as last:4, or numbers such as 0,1",
            fix="Write --set lora.layers_to_transform=last:K.",
        )
    if not kept or min(kept) < 0 or max(kept) >= size:
        raise ConfigError(
            "setting 'lora.layers_to_transform'",
            found=layers,
            expected=f"layers of the {size} that the model has, which are numbered from 0",
            fix="Choose among these, or all.",
        )
    return [
        path
        for path in chosen
        if path.startswith(stack) and int(path[len(stack) :].split(".")[0]) in kept
    ]


def decoder_stack(model: nn.Module, chosen: list[str]) -> tuple[str, int]:
    """Return the path, with a final dot, and length of the module list of the decoder layers.

    It is the outermost list above most of the modules ``chosen``; experts, for example, are lists
    inside it.
    """
    from torch import nn

    lists = {path: len(m) for path, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    counts: dict[str, int] = defaultdict(int)
    for path in chosen:
        parts = path.split(".")
        prefixes = (".".join(parts[:end]) for end in range(1, len(parts)))
        outermost = next((prefix for prefix in prefixes if prefix in lists), None)
        if outermost is not None:
            counts[outermost] += 1
    if not counts:
        raise ConfigError(
            "setting 'lora.layers_to_transform'",
            found="no list of decoder layers in the model",
            expected="layers in an nn.ModuleList",
            fix="Use lora.layers_to_transform=all.",
        )
    stack = max(counts, key=lambda path: counts[path])
    return f"{stack}.", lists[stack]
