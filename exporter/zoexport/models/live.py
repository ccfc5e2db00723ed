"""Save models from Python programs in the cache, so that later commands can load them."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from zoexport.core.errors import ModelError
from zoexport.core.fetch import cache_dir
from zoexport.core.files import atomic_folder, sha256
from zoexport.models.saved import save_folder
from zoexport.models.source import ModelSource, resolve


def keep(model: Any, tokenizer: Any) -> ModelSource:
    """Save a live model and its tokenizer below the cache, under the digest of their files.

    It stays there because ``parity`` and the export of merged models load it again.

    Args:
        model: ``transformers.PreTrainedModel``; it is not changed.
        tokenizer: its tokenizer, a ``transformers.PreTrainedTokenizerBase``.

    Raises:
        ModelError: unsupported model or tokenizer, or the model is wrapped or quantized; nothing is
            saved.
    """
    where = f"model {type(model).__name__}"
    _check(where, model, tokenizer)
    name = _name(model)
    folder = cache_dir() / "models" / "live"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="saving-") as scratch:
        saved = Path(scratch) / name
        save_folder(model, tokenizer, saved)
        files = sorted(path for path in saved.rglob("*") if path.is_file())
        lines = "".join(f"{sha256(path)}  {path.relative_to(saved)}\n" for path in files)
        (Path(scratch) / "digest").write_text(lines, encoding="utf-8")
        kept = folder / sha256(Path(scratch) / "digest")[:16] / name
        if not kept.is_dir():
            with atomic_folder(kept, replace=True) as output:
                shutil.copytree(saved, output, dirs_exist_ok=True)
    source = resolve(str(kept))
    return dataclasses.replace(source, base=getattr(model, "name_or_path", "") or source.base)


def _check(where: str, model: Any, tokenizer: Any) -> None:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    if hasattr(model, "merge_and_unload"):
        raise ModelError(
            where,
            found="a model with adapters",
            expected="a transformers model; zoexport adds adapters of its own",
            fix="Compile model.merge_and_unload(), or the model below the adapters.",
        )
    if not isinstance(model, PreTrainedModel):
        raise ModelError(
            where,
            found=f"an object of {type(model).__module__}.{type(model).__qualname__}",
            expected="a name, a folder, a hub id, or a transformers.PreTrainedModel",
            fix="Load the model with transformers, or name its folder.",
        )
    if getattr(model, "hf_quantizer", None) is not None:
        raise ModelError(
            where,
            found="a quantized model",
            expected="floating-point weights; the setting weights quantizes them",
            fix="Load the model without a quantization_config.",
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ModelError(
            where,
            found="parameters on the meta device, which have no values",
            expected="a model with its weights",
            fix="Load the model without init_empty_weights, or name its folder.",
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        given = "no tokenizer" if tokenizer is None else f"a {type(tokenizer).__name__}"
        raise ModelError(
            where,
            found=f"a live model and {given}",
            expected="the model's tokenizer, a transformers.PreTrainedTokenizerBase",
            fix="Pass tokenizer=AutoTokenizer.from_pretrained(...).",
        )


def _name(model: Any) -> str:
    """Return the last part of the path or id of the model, or its class if it has neither."""
    found = str(getattr(model, "name_or_path", "") or "").rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", found).strip("-.") or type(model).__name__
