"""Detection of causal and masked language models, and the transformers classes that load them.

optimum's ``TasksManager`` gives the library of a folder, the task of a model class, and the class
that loads the models of a task. It is called only with folders and classes, never with hub ids, so
it needs no network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoexport.core import outside
from zoexport.core.errors import ModelError, ModelPhases, first_line
from zoexport.core.tasks import CAUSAL, FEATURES, MASKED, task_of
from zoexport.models.quiet import quiet

_CONFIG = "config.json"
_PIPELINE = "model_index.json"
"""Configuration file of diffusers models."""
_TRANSFORMERS = "transformers"
_LIBRARIES = {_TRANSFORMERS, "sentence_transformers"}
"""Libraries whose folders can be loaded; sentence_transformers wraps a transformers model."""


def language_config(folder: Path, where: str) -> Any:
    """Return the configuration of the language model in a folder.

    The model's own code is never run.

    Args:
        folder: Hugging Face directory; only its configuration is read.
        where: name of the model, for messages.

    Raises:
        ModelError: the folder contains no model, a model of another library, or no language model;
            or transformers does not support the model type or cannot read the file.
    """
    found = next((name for name in (_CONFIG, _PIPELINE) if (folder / name).is_file()), None)
    if found is None:
        raise ModelError(
            f"model {where}",
            found="a directory without config.json",
            expected="a Hugging Face model directory: config.json, model.safetensors, tokenizer.json",
            fix="Name the folder that holds config.json, or a .gguf file inside it.",
        )
    content = read_json(folder / found)
    with quiet(verbose=False), ModelPhases(where, f"reading {found}").explained():
        library = _library(folder, where, content)
        config = _read_config(folder, content, library)
        check_language_model(where, config, content, library)
    return config


def _library(folder: Path, where: str, content: dict[str, Any]) -> str:
    """Return the library that loads a folder: transformers or one built on it.

    Raises:
        ModelError: another library is needed.
    """
    from optimum.exporters.tasks import TasksManager

    library = str(TasksManager.infer_library_from_model(str(folder)))
    if library not in _LIBRARIES:
        # optimum would ask the hub for the task of such a folder; its table lists the library's few
        # tasks.
        tasks = " or ".join(TasksManager._LIBRARY_TO_TASKS_TO_MODEL_LOADER_MAP[library])
        name = content.get("architecture") or content.get("_class_name") or "model"
        raise ModelError(
            f"model {where}",
            found=f"the {name} of the library {library}, for the task {tasks}",
            expected=_expected(),
            fix="Choose a language model.",
        )
    return library


def _read_config(folder: Path, content: dict[str, Any], library: str) -> Any:
    import transformers

    try:
        return transformers.AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # validation of a configuration raises many types
        own = " with code of its own" if "auto_map" in content else ""
        raise ModelError(
            f"model file {folder / _CONFIG}",
            found=f"the model type {content.get('model_type')!r}{own}, for which the library {library} has no task"
            f" ({first_line(error)})",
            expected=f"{_expected()}, known to transformers {transformers.__version__}",
            fix="Use a model of a released architecture; code inside model folders is not run.",
        ) from error


def check_language_model(
    where: str, config: Any, content: dict[str, Any], library: str = _TRANSFORMERS
) -> None:
    """Check that a model is a causal or masked language model with unquantized weights.

    Args:
        where: name of the model, for the message.
        config: configuration of transformers. content: raw config.json, empty for a GGUF file.
        library: library that loads the model.

    Raises:
        ModelError: the model is unsupported; the message names task, library and architecture.
    """
    with quiet(verbose=False):
        task = _task(config)
        encoder = _is_encoder(config)
    declared = _declared_name(config)
    architecture = declared or type(config).__name__.removesuffix("Config")
    two_parts = getattr(config, "is_encoder_decoder", False)
    masked = task == MASKED
    if two_parts or not (masked or (task == CAUSAL and not encoder)):
        kind = "an encoder" if encoder else "no causal language model"
        kind = "an encoder and a decoder" if two_parts else kind
        raise ModelError(
            f"model {where}",
            found=f"the architecture {architecture} (model type {config.model_type!r}), {kind}: "
            f"{f'the task {task}' if task else 'no task that optimum knows'} of the library {library}",
            expected=f"{_expected()} (Llama, Qwen, Gemma, Mistral, Phi, OPT, GPT-2, ...; BertForMaskedLM,"
            " RobertaForMaskedLM, ...)",
            fix="Choose a model for text generation, or one that fills masks and declares that.",
        )
    if masked:
        _check_padding(where, architecture, config)
    _refuse_quantized(where, content)


def _expected() -> str:
    return (
        f"the task {CAUSAL} of the library {_TRANSFORMERS}, by a decoder-only model, or {MASKED}, by an encoder whose"
        " config.json declares its head"
    )


def auto_class(config: Any) -> Any:
    """Return the class of transformers that loads a language model: an auto class if it knows the configuration."""
    from optimum.exporters.tasks import TasksManager

    own = _only_declared(config)
    if own is not None:
        return own
    return TasksManager.get_model_class_for_task(_task(config), model_type=config.model_type)


def model_class(config: Any) -> tuple[Any, Any]:
    """Return the class of a configuration's language model, and the configuration for it."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if _task(config) == MASKED:
        return MODEL_FOR_MASKED_LM_MAPPING[type(config)], config
    own = _only_declared(config)
    if own is not None:
        return own, config
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if _of_text(kind, config):
        # Same as AutoModelForCausalLM for the text model of a multimodal configuration.
        config = config.get_text_config()
    return kind, config


def _only_declared(config: Any) -> Any | None:
    """Return the declared class if no auto class has the configuration: a multimodal model's text model alone."""
    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        return None
    return getattr(transformers, _declared_name(config), None)


def _task(config: Any) -> str | None:
    """Return the task of a configuration's declared class, else of its class in transformers."""
    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    causal = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    kind: Any = getattr(transformers, _declared_name(config), None)
    if not isinstance(kind, type):
        body = MODEL_MAPPING.get(type(config), None)
        kind = body if causal is None or _is_encoder(config) else causal
    task = None if kind is None else task_of(kind)
    if causal is None or kind is None:
        return task
    # Multimodal classes are listed there first, a model without head can be loaded with a tied
    # head, and transformers loads the text model out of some multimodal models (Qwen3.5).
    headless = task == FEATURES and not _is_encoder(config)
    inside = _of_text(causal, config) and kind.can_generate()
    return CAUSAL if kind is causal or headless or inside else task


def _of_text(kind: Any, config: Any) -> bool:
    """Return whether a class has the text part of a multimodal configuration as its own."""
    return kind.config_class is config.sub_configs.get("text_config")


def _declared_name(config: Any) -> str:
    return (getattr(config, "architectures", None) or [""])[0]


def _is_encoder(config: Any) -> bool:
    """Return whether attention is bidirectional; BERT-like models are also listed as causal."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING

    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)


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


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a model's folder.

    Raises:
        ModelError: the file is unreadable or contains no JSON object.
    """
    try:
        content = outside.parse(path.read_bytes(), constants=True)
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
