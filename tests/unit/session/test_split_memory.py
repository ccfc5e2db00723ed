"""What a first-order session holds in anonymous memory: nothing of the size of the adapter or the activations."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import bundles, split_bundles
from tests.support.bundles import stage_program, tensor_spec
from tests.support.sessions import make_dataset
from zoexport.core import manifest as manifests
from zoexport.session import Bundle, Session, Tensor, memory_usage

LAYERS, HIDDEN, RANK, ROWS, LENGTH, LABEL_ROWS = 4, 512, 512, 2, 256, 32
MEGABYTE = 1e6


def _programs() -> list[dict[str, Any]]:
    activation = (ROWS, LENGTH, HIDDEN)
    state = [
        tensor_spec("A", "state", "float32", HIDDEN, RANK),
        tensor_spec("B", "state", "float32", RANK, HIDDEN),
    ]
    given, taken = (tensor_spec(n, "activation", "float32", *activation) for n in "yx")
    row = tensor_spec("x", "activation", "float32", LABEL_ROWS, HIDDEN)
    labels = tensor_spec("labels", "label_tokens", "int64", LABEL_ROWS)
    scores = [
        tensor_spec(name, f"label_{name}", "float32", LABEL_ROWS)
        for name in ("logprobs", "is_argmax")
    ]
    table: list[tuple[str, list[Any], list[Any]]] = [
        ("embed.forward", [tensor_spec("tokens", "tokens", "int64", ROWS, LENGTH)], [given]),
        ("layer.forward", [taken, *state], [given]),
        (
            "layer.backward",
            [taken, *state, {**given, "name": "dy", "role": "output_gradient"}],
            [
                {**taken, "name": "dx", "role": "input_gradient"},
                *({**value, "role": "state_gradient"} for value in state),
            ],
        ),
        ("head.forward", [row, labels], scores),
        (
            "head.backward",
            [row, labels, tensor_spec("weights", "label_weights", "float32", LABEL_ROWS)],
            [*scores, {**row, "name": "dx", "role": "input_gradient"}],
        ),
    ]
    return [
        stage_program(family, None if family.startswith("head") else LENGTH, inputs, outputs)
        for family, inputs, outputs in table
    ]


def write_bundle(folder: Path) -> Path:
    """A bundle with an adapter of 8 MB; its programs compute nothing."""
    split_bundles.write_bundle(folder)
    manifest = Bundle.open(folder).manifest
    shapes = {
        f"{side}.{layer}": shape
        for layer in range(LAYERS)
        for side, shape in (("A", (HIDDEN, RANK)), ("B", (RANK, HIDDEN)))
    }
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    (folder / "adapter.safetensors").write_bytes(bundles.safetensors(tensors))
    layers = [
        {
            "name": f"layer.{layer}",
            "forward": "layer.forward",
            "backward": "layer.backward",
            "bind": {side: f"{side}.{layer}" for side in "AB"},
        }
        for layer in range(LAYERS)
    ]
    ends = [
        {"name": "embed", "forward": "embed.forward", "backward": None, "bind": {}},
        {"name": "head", "forward": "head.forward", "backward": "head.backward", "bind": {}},
    ]
    manifest |= {
        "programs": _programs(),
        "stages": [ends[0], *layers, ends[1]],
        "lengths": [LENGTH],
        "label_rows": LABEL_ROWS,
        "rows": ROWS,
        "max_labels": ROWS * LENGTH,
        "state": [
            bundles.slot(name, "trainable", number, "float32", shape, name)
            for number, (name, shape) in enumerate(shapes.items())
        ],
    }
    del manifest["bundle_id"]
    manifests.write(folder, manifest, [folder / name for name in manifest["files"]])
    return folder


def fill(_program: str, _inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    """Touches every byte of the outputs, as a program would."""
    for tensor in outputs.values():
        place = ctypes.c_char.from_buffer(tensor.data.cast("B"))
        ctypes.memset(ctypes.addressof(place), 0x3C, tensor.data.nbytes)


def test_anonymous_memory(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    examples: list[Any] = [([([1] * LENGTH, [2] * LENGTH)], 0) for _ in range(4)]
    with make_dataset(examples) as dataset, Session.open(bundle, engine=fill) as session:
        before = memory_usage()
        session.attach(tmp_path / "state")
        session.configure(batch_size=4, max_grad_norm=1.0)
        session.train(dataset, 3)
        session.evaluate(dataset)
        after = memory_usage()
    mapped = (after.rss_bytes - after.anonymous_bytes) - (before.rss_bytes - before.anonymous_bytes)
    # Two copies of values and two moments, and the gradients: 7 x 8 MB.
    assert mapped > 50 * MEGABYTE
    assert after.anonymous_bytes - before.anonymous_bytes < 2 * MEGABYTE
