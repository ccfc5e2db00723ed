"""Bundles of tiny models, each compiled once for a whole test run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.masks import write_random_mask
from tests.support.tiny_models import save_tiny
from zoexport.build import compile_bundle
from zoexport.core.config import fields
from zoexport.methods import methods

SEQ = 24


class Compiler:
    """Compiles tiny models into ``folder`` and remembers what it has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[tuple[Any, ...], dict[str, Any]] = {}

    def model(self, name: str) -> Path:
        """The Hugging Face directory of a tiny model."""
        folder = self.folder / "models" / name
        return folder if folder.exists() else save_tiny(name, folder)

    def mask(self, name: str) -> Path:
        """A mask file of a tiny model, the chosen weights at random."""
        path = self.folder / "masks" / f"{name}.safetensors"
        return path if path.exists() else write_random_mask(self.model(name), path)

    def bundle(
        self, name: str, method: str = "prge", target: str = "host", **settings: Any
    ) -> Path:
        """The bundle of a tiny model; settings with ``__`` for a dot, beside a short sequence."""
        return Path(self.result(name, method, target, **settings)["bundle"])

    def result(
        self, name: str, method: str = "prge", target: str = "host", **settings: Any
    ) -> dict[str, Any]:
        """What compile said of :meth:`bundle`."""
        values: dict[str, Any] = {"seq_len": SEQ, "batch": 3, "weights": "fp32"}
        known = fields(methods.get(method).config)
        values |= {"lora.rank": 4} if "lora.rank" in known else {}
        values |= {"mask": self.mask(name)} if "mask" in known else {}
        values |= {key.replace("__", "."): value for key, value in settings.items()}
        key = (name, method, target, *sorted(values.items()))
        if key not in self.results:
            self.results[key] = compile_bundle(
                str(self.model(name)),
                method=method,
                target=target,
                output=self.folder / f"bundle-{len(self.results)}",
                settings={name: str(value) for name, value in values.items()},
                recipe=None,
                force=False,
                progress=lambda *_: None,
            )
        return self.results[key]
