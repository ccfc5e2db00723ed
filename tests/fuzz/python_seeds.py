"""Seeds of the targets in Python: messages, lines, adapters and masks as the package writes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from tests.fuzz import fuzz_adapters, fuzz_messages
from tests.fuzz.python_target import joined
from zoexport.adapters import FORMATS
from zoexport.core.mask import Mask, MaskFacts, write_mask
from zoexport.federated import models
from zoexport.federated.protocol import (
    DONE,
    REFUSED,
    SYNC,
    TRAIN,
    Reply,
    Request,
    RoundScalars,
    Trajectory,
)


def seeds(work: Path) -> dict[str, dict[str, bytes]]:
    """By target and name; ``work`` is for files."""
    return {
        "messages": messages(),
        "adapters": adapters(work),
        "agreement": {
            "json": b'\x00{"a": [1, -2.5e-3, "\\ud83d\\ude00"], "b": {}}',
            "safetensors": b"\x01" + models.pack({"w": np.arange(4, dtype=np.float32)}),
        },
    }


def messages() -> dict[str, bytes]:
    """A request that trains, one that synchronizes, and replies of both kinds."""
    terms, model = fuzz_messages.SCALARS, fuzz_messages.MODEL
    one = Trajectory(np.ones(2, np.float32), np.full((2, 5), 0.5, np.float32))
    rounds = [RoundScalars(3, {9: one, 2: one}, "median", 0.5)]
    losses = np.ones(2, np.float32)
    values = models.pack_values(losses, model)

    def reply(body: bytes, digest: str = "d" * 64, status: str = DONE) -> bytes:
        return Reply(status, 4, 4, 7, terms.bundle, 4, digest, "", False, body).pack()

    return {
        "train": b"\x00" + Request(TRAIN, "fed", 4, 4, 7, terms.as_dict(), 3, None, rounds).pack(),
        "sync": b"\x00"
        + Request(SYNC, "fed", 4, 4, 7, terms.as_dict(), 3, b"state", rounds).pack(),
        "scalars": b"\x01" + reply(one.pack()),
        "refused": b"\x01" + reply(b"", "", REFUSED),
        "values": b"\x02" + reply(values, models.digest(model)),
    }


def adapters(work: Path) -> dict[str, bytes]:
    """An adapter of each format, a description, and a mask."""
    slots = {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for name, shape in fuzz_adapters.SHAPES.items()
    }
    found = {}
    for kind, name in enumerate(("peft", "mlx")):
        folder = work / f"adapter-{name}"
        FORMATS[name].write(slots, fuzz_adapters.SETTINGS, folder)
        config = (folder / "adapter_config.json").read_bytes()
        tensors = (folder / fuzz_adapters.FILES[name]).read_bytes()
        found[name] = bytes([kind]) + joined(config, tensors)
        if name == "peft":
            found["settings"] = b"\x02" + config
    facts = MaskFacts("random", "m", "0" * 64, "", "", 0, 0, 0.1, "model", 1, {"w": [3, 4]})
    write_mask(work / "a.mask", Mask(facts, {"w": torch.tensor([1, 5])}))
    found["mask"] = b"\x03" + (work / "a.mask").read_bytes()
    return found


#: Inputs that once ended in another error than zoexport's, or were taken by one reader alone.
def finds() -> dict[str, dict[str, bytes]]:
    """By target and name."""
    whole = messages()["train"][1:]
    line, _, parts = whole.partition(b"\n")
    mask = {"kind": "random", "model": "m", "model_sha256": "", "corpus": "", "corpus_sha256": ""}
    mask |= {"sequences": 0, "max_length": 0, "density": 0.1, "scope": "model", "seed": 1}

    def altered(old: bytes, new: bytes) -> bytes:
        assert old in line
        return b"\x00" + line.replace(old, new) + b"\n" + parts

    def mask_of(shapes: object) -> bytes:
        text = json.dumps({**mask, "shapes": shapes})
        header = {"__metadata__": {"format": "zoexport-mask/1", "facts": text}}
        content = json.dumps(header).encode()
        return b"\x03" + len(content).to_bytes(8, "little") + content

    def settings(**changes: object) -> bytes:
        content = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], **changes}
        return b"\x02" + json.dumps(content).encode()

    def tensors(header: bytes, data: bytes = b"") -> bytes:
        return b"\x01" + len(header).to_bytes(8, "little") + header + data

    one = b'"dtype":"U8","shape":[2],"data_offsets":'
    return {
        "messages": {
            "huge-limit": altered(b'"limit":0.5', b'"limit":1' + b"0" * 400),
            "limit-no-number": altered(b'"limit":0.5', b'"limit":NaN'),
            "negative-limit": altered(b'"limit":0.5', b'"limit":-1'),
            "names-of-clients": altered(b"[2,9]", b'"29"'),
        },
        "adapters": {
            "shapes-of-a-list": mask_of([]),
            "shape-of-a-text": mask_of({"w": "ab"}),
            "shape-of-one-size": mask_of({"w": [3]}),
            "rank-of-zero": settings(r=0),
            "names-that-are-none": settings(target_modules=[1, None]),
        },
        "agreement": {
            "gap": tensors(b'{"w":{' + one + b"[1,3]}}", b"abc"),
            "overlap": tensors(b'{"w":{' + one + b'[0,2]},"v":{' + one + b"[1,3]}}", b"abc"),
            "behind": tensors(b'{"w":{' + one + b"[0,2]}}", b"abc"),
            "unknown-type": tensors(
                b'{"w":{"dtype":"U7","shape":[2],"data_offsets":[0,2]}}', b"ab"
            ),
            "spaces-first": tensors(b' {"w":{' + one + b"[0,2]}}", b"ab"),
            "twice": tensors(b'{"w":{' + one + b'[0,2]},"w":{' + one + b"[0,2]}}", b"ab"),
            "metadata-of-numbers": tensors(
                b'{"__metadata__":{"a":1},"w":{' + one + b"[0,2]}}", b"ab"
            ),
        },
    }
