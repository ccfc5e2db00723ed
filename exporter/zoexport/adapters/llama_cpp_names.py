"""What llama.cpp calls the layers of a transformers model, and in which order it keeps the rows of some of them.

The names are gguf's, which llama.cpp's own conversion takes too. The order is that conversion's: where llama.cpp
rotates neighbouring rows of a head (RoPE's "norm" type) and transformers its two halves, rows of queries and keys are
interleaved; where transformers fuses each head's query, key and value, all queries come first, then keys, then values.
An adapter adds to its layer's output, so the rows of its B are put in the same order.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from zoexport.core.errors import ConfigError, nearest

Order = Literal["query pairs", "key pairs", "fused groups"]
_PAIRS: Mapping[str, Order] = {"q_proj": "query pairs", "k_proj": "key pairs"}
_FUSED: Mapping[str, Order] = {"query_key_value": "fused groups"}


@dataclasses.dataclass(frozen=True)
class Heads:
    """How many heads attention has: of queries, and of keys and values."""

    queries: int
    keys: int


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A model class that llama.cpp runs.

    Attributes:
        name: of ``gguf.MODEL_ARCH``.
        orders: by the last part of a layer's path; the others keep their rows.
    """

    name: str
    orders: Mapping[str, Order] = dataclasses.field(default_factory=dict)


ARCHITECTURES: Mapping[str, Architecture] = {
    "BloomForCausalLM": Architecture("BLOOM", _FUSED),
    "Cohere2ForCausalLM": Architecture("COHERE2"),
    "CohereForCausalLM": Architecture("COMMAND_R"),
    "FalconForCausalLM": Architecture("FALCON", _FUSED),
    "GPT2LMHeadModel": Architecture("GPT2"),
    "GPTNeoXForCausalLM": Architecture("GPTNEOX", _FUSED),
    "Gemma2ForCausalLM": Architecture("GEMMA2"),
    "Gemma3ForCausalLM": Architecture("GEMMA3"),
    "Gemma3ForConditionalGeneration": Architecture("GEMMA3"),
    "GemmaForCausalLM": Architecture("GEMMA"),
    "GraniteForCausalLM": Architecture("GRANITE", _PAIRS),
    "LlamaForCausalLM": Architecture("LLAMA", _PAIRS),
    "MistralForCausalLM": Architecture("LLAMA", _PAIRS),
    "MptForCausalLM": Architecture("MPT"),
    "Olmo2ForCausalLM": Architecture("OLMO2"),
    "OlmoForCausalLM": Architecture("OLMO", _PAIRS),
    "Phi3ForCausalLM": Architecture("PHI3"),
    "PhiForCausalLM": Architecture("PHI2"),
    "Qwen2ForCausalLM": Architecture("QWEN2"),
    "Qwen3ForCausalLM": Architecture("QWEN3"),
    "SmolLM3ForCausalLM": Architecture("SMOLLM3", _PAIRS),
    "StableLmForCausalLM": Architecture("STABLELM"),
    "Starcoder2ForCausalLM": Architecture("STARCODER2"),
}
"""By transformers' class."""


def architecture(name: str) -> Architecture:
    """What llama.cpp makes of transformers' class ``name``.

    Raises:
        ConfigError: it does not run that class, or nobody has compared the two here.
    """
    if name not in ARCHITECTURES:
        raise ConfigError(
            "adapter format 'gguf'",
            found=f"a bundle of {name or 'an unknown architecture'}",
            expected="one of " + ", ".join(ARCHITECTURES),
            fix=f"Use --format merged, and the tool that converts it.{nearest(name, ARCHITECTURES)}",
        )
    return ARCHITECTURES[name]


def tensor_names(kind: Architecture, modules: list[str]) -> dict[str, str]:
    """The weights of adapted layers by their paths, such as ``blk.3.attn_q.weight``.

    Raises:
        ConfigError: llama.cpp has no such layer, or two of them are one.
    """
    import gguf

    # Of one block, so that a path that claims a large number costs nothing.
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.name], 1)
    found: dict[str, str] = {}
    for module in modules:
        # Of a model that sees images too, llama.cpp's is the language model alone.
        path = module.replace("language_model.", "", 1)
        number = re.search(r"\.(\d+)\.", path)
        first = path if number is None else f"{path[: number.start()]}.0.{path[number.end() :]}"
        known = names.get_name(first) or names.get_name(first.removeprefix("transformer."))
        if known is None or number is None or not known.startswith("blk.0."):
            raise _unnamed(kind, module, "no such layer")
        name = f"blk.{number[1]}.{known.removeprefix('blk.0.')}.weight"
        if name in found.values():
            raise _unnamed(kind, module, f"another layer at {name}")
        found[module] = name
    return found


def _unnamed(kind: Architecture, module: str, found: str) -> ConfigError:
    return ConfigError(
        "adapter format 'gguf'",
        found=f"the adapted layer {module}, for which llama.cpp's {kind.name.lower()} has {found}",
        expected="linear layers of its blocks",
        fix="Compile with other lora.target_modules, or use --format merged.",
    )


def row_order(
    kind: Architecture, module: str, shape: tuple[int, int], heads: Heads | None
) -> dict[str, int] | None:
    """In which order llama.cpp keeps the layer's outputs, as manifests say it (docs/bundle.md); None: as they are.

    Args:
        module: path of the layer. shape: its outputs and inputs.
        heads: of the model; needed where there is an order.

    Raises:
        ConfigError: the layer cannot be split into these heads.
    """
    order = kind.orders.get(module.rpartition(".")[2])
    if order is None:
        return None
    if heads is None:
        raise ConfigError(
            "adapter format 'gguf'",
            found="a bundle that does not say how many heads attention has, as zoexport 0.1 wrote them",
            expected=f"model.attention_heads in its manifest, for the rows of {module}",
            fix="Use --format peft, and llama.cpp's convert_lora_to_gguf.py.",
        )
    outputs, inputs = shape
    if order == "fused groups":
        found = _groups(outputs, inputs, heads.queries)
    else:
        count = heads.queries if order == "query pairs" else heads.keys
        found = None if outputs % (2 * count) else {"pairs": count}
    if found is None:
        raise ConfigError(
            f"adapted layer {module}",
            found=f"{outputs} outputs of {inputs} inputs",
            expected=f"as many for each of {heads.queries} heads of queries, {heads.keys} of keys",
            fix="Compile the model again; the bundle's manifest does not fit its slots.",
        )
    return found


def _groups(outputs: int, inputs: int, heads: int) -> dict[str, int] | None:
    """Groups of some heads' queries, a key and a value.

    Every head has a group of its own but in Falcon, where ``outputs`` tell how many groups there are.
    """
    width = inputs // heads
    groups, rest = divmod(outputs - inputs, max(2 * width, 1))
    if width * heads != inputs or rest or groups < 1 or heads % groups:
        return None
    return {"groups": groups, "width": width}


def rows_of(order: Mapping[str, int], outputs: int) -> NDArray[np.int64] | None:
    """Which of transformers' output rows each of llama.cpp's is, (outputs); None where the order is not of so many.

    The library writes files in this order (``gguf_writer.cpp``); here they are read.
    """
    if "pairs" in order:
        # The halves of each head interleaved: 0, d/2, 1, d/2 + 1, ... for d rows a head.
        if outputs % (2 * order["pairs"]):
            return None
        return np.arange(outputs).reshape(order["pairs"], 2, -1).swapaxes(1, 2).reshape(-1)
    groups, width = order["groups"], order["width"]
    if outputs % (groups * width) or outputs < 3 * groups * width:
        return None
    # All queries, all keys, all values.
    grouped = np.arange(outputs).reshape(groups, -1, width)
    return np.concatenate([part.reshape(-1) for part in np.split(grouped, [-2, -1], axis=1)])


def names_of(
    architecture_name: str, shapes: Mapping[str, tuple[int, int]], heads: Heads | None
) -> dict[str, Any]:
    """What llama.cpp calls a model and its adapted layers: ``model.llama_cpp`` of a manifest.

    Args:
        architecture_name: transformers' class. shapes: outputs and inputs of the adapted layers, by their paths.
        heads: of the model, where it is known.

    Returns:
        ``architecture``, and ``layers``: by path ``weight`` and, where its rows move, ``order``.

    Raises:
        ConfigError: llama.cpp has no name for the model or a layer, or the layer cannot be split into these heads.
    """
    import gguf

    kind = architecture(architecture_name)
    layers: dict[str, dict[str, Any]] = {}
    for module, weight in tensor_names(kind, list(shapes)).items():
        order = row_order(kind, module, shapes[module], heads)
        layers[module] = {"weight": weight, **({} if order is None else {"order": order})}
    name = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[kind.name]]
    return {"architecture": name, "layers": layers}
