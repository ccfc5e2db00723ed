"""Adapters of other tools, masks and descriptions: they fit the bundle or are refused with a message."""

from __future__ import annotations

if __name__ == "__main__":
    import atheris  # noqa: F401

import warnings

import numpy as np

from tests.fuzz.python_target import check_error, folder, instrumented, main, parts

with instrumented():
    from zoexport.adapters import FORMATS, AdapterSettings, read_settings
    from zoexport.core.errors import ConfigError, StateError
    from zoexport.core.mask import read_mask

warnings.simplefilter("ignore", RuntimeWarning)  # values that overflow are refused after that
FOLDER = folder()
MODULE = "model.layers.0.self_attn.q_proj"
SHAPES = {f"lora_A.{MODULE}": (3, 2), f"lora_B.{MODULE}": (2, 4)}
SETTINGS = AdapterSettings(2, 4.0, "org/base", ("q_proj",))
FILES = {"peft": "adapter_model.safetensors", "mlx": "adapters.safetensors"}


def adapter(name: str, config: bytes, tensors: bytes) -> None:
    (FOLDER / "adapter_config.json").write_bytes(config)
    (FOLDER / FILES[name]).write_bytes(tensors)
    try:
        slots = FORMATS[name].read(FOLDER, SHAPES, SETTINGS)
    except (ConfigError, StateError) as error:
        check_error(error)
        return
    for slot, shape in SHAPES.items():
        assert slots[slot].shape == shape and slots[slot].dtype == np.float32
        assert np.isfinite(slots[slot]).all()


def settings(config: bytes) -> None:
    (FOLDER / "adapter_config.json").write_bytes(config)
    try:
        found = read_settings(FOLDER)
    except StateError as error:
        check_error(error)
        return
    assert found.rank > 0 and np.isfinite(found.alpha / found.rank)
    assert all(isinstance(name, str) for name in found.target_modules)


def mask(content: bytes) -> None:
    path = FOLDER / "a.mask"
    path.write_bytes(content)
    try:
        found = read_mask(path)
    except ConfigError as error:
        check_error(error)
        return
    for name, places in found.places.items():
        rows, columns = found.facts.shapes[name]
        assert places.numel() == 0 or 0 <= int(places.min()) <= int(places.max()) < rows * columns


def run(data: bytes) -> None:
    """One input: its first byte says what it is."""
    kind, rest = data[:1], data[1:]
    if kind == b"\x00":
        adapter("peft", *parts(rest, 2))
    elif kind == b"\x01":
        adapter("mlx", *parts(rest, 2))
    elif kind == b"\x02":
        settings(rest)
    else:
        mask(rest)


if __name__ == "__main__":
    main(run)
