"""Bundles of tiny models, each compiled once (``tests.support.cache``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cache import cached
from tests.support.masks import write_random_mask
from tests.support.tiny_models import save_tiny
from zoexport.compiler.build import compile_bundle
from zoexport.core.config import fields
from zoexport.core.progress import Progress, silent
from zoexport.methods import methods

SEQ = 24


class Compiler:
    """Compiles tiny models and remembers what it has; a test that alters a bundle alters a copy."""

    def __init__(self) -> None:
        self.results: dict[tuple[Any, ...], dict[str, Any]] = {}

    def model(self, name: str) -> Path:
        """The Hugging Face directory of a tiny model."""
        folder, _ = cached({"model": name}, lambda folder: save_tiny(name, folder / name))
        return folder / name

    def mask(self, name: str) -> Path:
        """A mask file of a tiny model, the chosen weights at random."""
        file = f"{name}.safetensors"
        model = self.model(name)
        folder, _ = cached({"mask": name}, lambda folder: write_random_mask(model, folder / file))
        return folder / file

    def bundle(
        self, name: str, method: str = "prge", target: str = "host", **settings: Any
    ) -> Path:
        """The bundle of a tiny model; settings with ``__`` for a dot, beside a short sequence."""
        return Path(self.result(name, method, target, **settings)["bundle"])

    def result(
        self, name: str, method: str = "prge", target: str = "host", **settings: Any
    ) -> dict[str, Any]:
        """What compile said of :meth:`bundle`."""
        mask = {"mask": self.mask(name)} if "mask" in fields(methods.get(method).config) else {}
        key = (name, method, target, *sorted(settings.items()))
        if key not in self.results:
            _, self.results[key] = cached(
                {"bundle": name, "method": method, "target": target, "settings": mask | settings},
                lambda folder: compile_tiny(
                    self.model(name), folder / "bundle", method, target, **mask | settings
                ),
            )
        return self.results[key]


def compile_tiny(
    model: Path,
    output: Path,
    method: str = "prge",
    target: str = "host",
    *,
    verify: bool | None = False,
    progress: Progress = silent,
    **settings: Any,
) -> dict[str, Any]:
    """Compile a tiny model for a short sequence; settings with ``__`` for a dot.

    ``tests/parity/test_matrix.py`` verifies a bundle of every method, so that the others need not be.
    """
    values: dict[str, Any] = {
        "max_length": SEQ,
        "batch_size": 3,
        "weights": "fp32",
        "generate": False,
    }
    values |= {"lora.r": 4} if "lora.r" in fields(methods.get(method).config) else {}
    values |= {key.replace("__", "."): value for key, value in settings.items()}
    return compile_bundle(
        str(model),
        method=method,
        target=target,
        output=output,
        settings={name: str(value) for name, value in values.items()},
        recipe=None,
        force=False,
        verify=verify,
        progress=progress,
    )
