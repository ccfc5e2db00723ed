"""What a session says of a split bundle that is not as docs/formats.md has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support import bundles, split_bundles
from tests.support.sessions import make_dataset
from tests.support.split_bundles import SplitModel
from zoexport.core import manifest as manifests
from zoexport.core.errors import BundleError
from zoexport.session import Session

Manifest = dict[str, Any]
Change = Callable[[Manifest], object]


def rewrite(bundle: Path, change: Change) -> None:
    """Change the manifest behind the schema's back; its id is right again."""
    path = bundle / manifests.FILE
    content = json.loads(path.read_text("utf-8"))
    change(content)
    content["bundle_id"] = manifests.bundle_id(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def check_schema(bundle: Path) -> None:
    """Check a manifest against the schema, as the compiler does before it writes one."""
    path = bundle / manifests.FILE
    manifests.check_schema(json.loads(path.read_text("utf-8")), path)


def program(manifest: Manifest, name: str) -> dict[str, Any]:
    return next(p for p in manifest["programs"] if p["name"] == name)


def value(manifest: Manifest, name: str, which: str, local: str) -> dict[str, Any]:
    return next(v for v in program(manifest, name)[which] if v["name"] == local)


def without(manifest: Manifest, name: str, which: str, local: str) -> None:
    found = program(manifest, name)
    found[which] = [v for v in found[which] if v["name"] != local]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("lengths"), "lengths"),
        (lambda m: m.update(lengths=[]), "at least one length"),
        (lambda m: m.update(lengths=[3, 3, 8]), r"lengths\[1\]"),
        (
            lambda m: m.update(lengths=[3, 4, 8]),
            "no program of the family embed.forward for rows of 4",
        ),
        (lambda m: m.update(label_rows=0), "label_rows"),
        (lambda m: m.update(label_rows=4), r"stage model.head, program head.forward.*one of \(4\)"),
        (lambda m: m["weights"].update(file="none"), "weights"),
        (lambda m: m.update(copies=2), "copies"),
        (lambda m: m.update(stages=m["stages"][:1]), "at least two stages"),
        (lambda m: m["stages"][1].update(forward="none"), "no program of the family none"),
        (
            lambda m: m["stages"][1].update(backward="join.backward"),
            "stage model.0, .*join.backward|stage model.0",
        ),
        (lambda m: m["stages"].pop(4), "stage model.head: found activations of other shapes"),
        (lambda m: m["stages"][1]["bind"].pop("weight"), "no tensor bound to the weight weight"),
        (lambda m: m["stages"][1]["bind"].pop("B"), "the state B"),
        (lambda m: m["stages"][1]["bind"].update(B="lora_A.0"), "the state B"),
        (lambda m: m["state"][1].update(role="frozen"), "state gradients for other slots"),
        (lambda m: without(m, "mix.backward@5", "outputs", "B"), "state gradients for other slots"),
        (lambda m: without(m, "mix.backward@5", "outputs", "dx0"), "input_gradient outputs"),
        (
            lambda m: without(m, "mix.backward@5", "inputs", "dy1"),
            "a backward program of other activations",
        ),
        (lambda m: without(m, "embed.forward@5", "inputs", "tokens"), "the role tokens"),
        (lambda m: without(m, "head.backward", "inputs", "weights"), "the role label_weights"),
        (lambda m: without(m, "head.forward", "outputs", "is_argmax"), "the role label_is_argmax"),
        (lambda m: value(m, "mix.forward@5", "inputs", "x0").update(role="seed"), "the role seed"),
        (
            lambda m: value(m, "mix.forward@5", "inputs", "x0").update(dtype="bfloat16"),
            "another dtype",
        ),
        (lambda m: value(m, "mix.forward@5", "inputs", "x0").update(dtype="int3"), "dtype"),
        (
            lambda m: value(m, "gate.forward@5", "inputs", "x0").update(shape=[2, 5, 7]),
            "stage model.1: found activations of other shapes than model.0",
        ),
        (lambda m: program(m, "mix.forward@5").update(file="none"), "the file none"),
        (
            lambda m: program(m, "head.forward").update(length=8),
            "no program of the family head.forward",
        ),
        (lambda m: m["settings"].update(optimizer="lion"), "settings.optimizer"),
        (lambda m: m["settings"].update(momentum=1), "settings.momentum"),
        (lambda m: m["settings"].update(max_grad_norm=-1), "settings.max_grad_norm"),
        (lambda m: m["settings"].update(checkpoint_every=0), "settings.checkpoint_every"),
        (
            lambda m: m["stages"][3].update(backward=None),
            "stage model.2: found no backward program",
        ),
        (
            lambda m: m["state"].append({**m["state"][0], "name": "x", "tensor_id": 99}),
            "no tensor x|no stage that reads the trainable slot x",
        ),
    ],
)
def test_bad_manifests(tmp_path: Path, change: Change, message: str) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle")
    Session.open(path, engine=SplitModel()).close()
    rewrite(path, change)
    with pytest.raises(BundleError, match=message):
        Session.open(path, engine=SplitModel())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["stages"][1].pop("saving"), "saving and from_saved both"),
        (lambda m: m["stages"][1].update(backward=None), "saving and from_saved both"),
        (lambda m: m["stages"][1].update(saving="none"), "no program of the family none"),
        (
            lambda m: m["stages"][2].update(saving="mix.saving", from_saved="join.from_saved"),
            "stage",
        ),
        (lambda m: without(m, "mix.saving@5", "outputs", "s0"), "that do not fit"),
        (lambda m: without(m, "mix.saving@5", "outputs", "y1"), "that do not fit"),
        (
            lambda m: value(m, "join.from_saved@5", "inputs", "s1").update(shape=[2, 5, 7]),
            "programs join.saving@5 and join.from_saved@5 that do not fit",
        ),
        (
            lambda m: without(m, "mix.from_saved@5", "outputs", "B"),
            "state gradients for other slots",
        ),
        (
            lambda m: value(m, "mix.saving@5", "outputs", "s0").update(dtype="int64"),
            "another dtype",
        ),
        (
            lambda m: value(m, "mix.forward@5", "outputs", "y0").update(role="saved"),
            "the role saved",
        ),
        (lambda m: m["settings"].update(activation_cache_mb=-1), "settings.activation_cache_mb"),
    ],
)
def test_bad_programs_that_save(tmp_path: Path, change: Change, message: str) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", saving=True)
    Session.open(path, engine=SplitModel()).close()
    rewrite(path, change)
    with pytest.raises(BundleError, match=message):
        Session.open(path, engine=SplitModel())


@pytest.mark.parametrize("name", ["0.weight", "1.codes", "1.scale", "ids"])
def test_bad_weights(tmp_path: Path, name: str) -> None:
    """They are looked at when the first program runs, not when the bundle is opened."""
    path = split_bundles.write_bundle(tmp_path / "bundle")
    with (
        make_dataset(bundles.text_examples()) as dataset,
        Session.open(path, engine=SplitModel()) as session,
    ):
        session.evaluate(dataset)
    file = path / "weights.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with (
        make_dataset(bundles.text_examples()) as dataset,
        Session.open(path, engine=SplitModel()) as session,
        pytest.raises(BundleError, match=r"weights\.safetensors: found altered content"),
    ):
        session.evaluate(dataset)
    tensors = dict(split_bundles.weights())
    tensors[name] = tensors[name].to(torch.float16)
    save_file(tensors, file)
    rewrite(path, lambda m: m["files"][file.name].update(bytes=file.stat().st_size))
    with (
        make_dataset(bundles.text_examples()) as dataset,
        Session.open(path, engine=SplitModel(), verify=False) as session,
        pytest.raises(BundleError, match=f"another dtype, shape or alignment of {name}"),
    ):
        session.step(dataset, [0])
