"""Functions of a Core ML package that are copies of a converted one, with other weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coremltools.converters.mil.mil import Builder as mb

from tests.support import coreml_packages
from zoexport.core.errors import LoweringError
from zoexport.targets.coreml.filling import Converted, PackageFiller
from zoexport.targets.coreml.values import FP16, FP32, cast
from zoexport.targets.coreml.weights import Packed, Place, Weights
from zoexport.testing import Package

K = 32
NAMES = {
    "table": "{layer}.table",
    "few": "{layer}.few",
    "one": "{layer}.one",
    "indices": "{layer}.indices",
    "w.codes": "{layer}.w.codes",
    "w.scales": "{layer}.w.scales",
    "v.codes": "{layer}.v.codes",
    "v.scales": "{layer}.v.scales",
    "shared": "shared",
}
SHARED = torch.linspace(-1, 1, 4 * K).view(4, K)


def weights(layer: str, kind: Any) -> Weights:
    """Weights of every type that a package stores, in its file or (fewer than ten elements) beside it."""
    generator = torch.Generator().manual_seed(len(layer) + ord(layer[-1]))

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    values = {
        "table": torch.randn(4, K, generator=generator),
        "few": torch.randn(4, 1, generator=generator),
        "one": torch.randn((), generator=generator),
        "indices": integers(0, 4, 12),
        "w.codes": integers(0, 256, 4, K // 2).to(torch.uint8),
        "w.scales": torch.rand(4, 1, generator=generator).to(torch.bfloat16),
        "v.codes": integers(-127, 128, 4, K).to(torch.int8),
        "v.scales": torch.rand(4, generator=generator),
        "shared": SHARED,
    }
    names = {local: name.format(layer=layer) for local, name in NAMES.items()}
    return Weights(values, names, kind)


def function(given: Weights, places: list[Place]) -> Any:
    """x (1, 32) -> a value (12, 32) that every weight is part of."""

    def plain(name: str) -> Any:
        array = given.stored(name)
        operation = f"frozen_{name}"
        made = mb.const(val=array if array.ndim else array[()], name=operation)
        made.op.weight_id = given.identity(name)
        places.append(Place(operation, "val", name))
        return made

    def build(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x = cast(inputs["x"], given.kind)
        rows = [Packed(given, f"{one}.codes", f"packed_{one}", places).var() for one in "wv"]
        total = mb.add(x=rows[0], y=rows[1])
        for name in ("table", "few", "one", "shared"):
            total = mb.add(x=total, y=plain(name))
        total = mb.mul(x=total, y=x)
        chosen = mb.gather(x=total, indices=plain("indices"), axis=0, validate_indices=False)
        return {"out_y": cast(chosen, FP32)}

    return build


def converted(path: Path, given: Weights) -> Converted:
    """Save a package with the function ``zero``, and with another, as packages of stages have."""
    places = list[Place]()
    specs = {"x": ((1, K), FP32)}
    doubled = (specs, lambda inputs: {"out_y": mb.add(x=inputs["x"], y=inputs["x"])})
    coreml_packages.save(path, {"zero": (specs, function(given, places)), "doubled": doubled})
    return Converted("zero", places)


def expected(given: Weights, x: torch.Tensor) -> torch.Tensor:
    values = {name: torch.from_numpy(given.stored(name).astype(np.float32)) for name in NAMES}
    packed = [values[f"{one}.codes"] * values[f"{one}.scales"] for one in "wv"]
    plain = [values[name] for name in ("table", "few", "one", "shared")]
    return (sum([*packed, *plain]) * x)[values["indices"].long()]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [FP32, FP16], ids=["fp32", "fp16"])
def test_a_copy_has_its_own_weights(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "package.mlpackage"
    first = weights("layers.0", kind)
    like = converted(path, first)
    filler = PackageFiller(path)
    added = {name: weights(f"layers.{name}", kind) for name in ("one", "two")}
    stored = (path / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size
    for name, given in added.items():
        filler.add(name, like, given)
    filler.save()
    package = Package(path)
    x = torch.randn(1, K, generator=torch.Generator().manual_seed(7))
    results = []
    for name, given in {"zero": first, **added}.items():
        (found,) = package.run(name, {"x": x.numpy()}).values()
        results.append(found)
        tolerance = 1e-6 if kind == FP32 else 3e-3
        np.testing.assert_allclose(found, expected(given, x), rtol=tolerance, atol=3 * tolerance)
    assert not np.allclose(results[0], results[1]) and not np.allclose(results[1], results[2])
    grown = (path / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size - stored
    shared = SHARED.numel() * (4 if kind == FP32 else 2)
    assert stored * 2 * 0.9 - 2 * shared < grown < stored * 2 - shared, (
        "what is shared is there once"
    )


@pytest.mark.parametrize("kind", [FP32, FP16], ids=["fp32", "fp16"])
def test_functions_of_another_package_find_their_weights(tmp_path: Path, kind: Any) -> None:
    """Those of the same content are there once; the package's own functions stay."""
    path, other = tmp_path / "package.mlpackage", tmp_path / "other.mlpackage"
    given = weights("layers.0", kind)
    converted(path, given)
    places = list[Place]()
    specs = {"x": ((1, K), FP32)}
    again = {"again": (specs, function(given, places)), "more": (specs, function(given, []))}
    coreml_packages.save(other, again)
    stored = path / "Data/com.apple.CoreML/weights/weight.bin"
    before = stored.stat().st_size
    filler = PackageFiller(path)
    filler.merge(other)
    filler.add("later", Converted("again", places), weights("layers.1", kind))
    filler.save()
    package = Package(path)
    x = torch.randn(1, K, generator=torch.Generator().manual_seed(7)).numpy()
    results = {name: package.run(name, {"x": x})["out_y"] for name in ("zero", "again", "more")}
    assert np.array_equal(results["zero"], results["again"])
    assert np.array_equal(results["zero"], results["more"])
    assert np.array_equal(package.run("doubled", {"x": x})["out_y"], 2 * x)
    tolerance = 1e-6 if kind == FP32 else 3e-3
    np.testing.assert_allclose(
        package.run("later", {"x": x})["out_y"],
        expected(weights("layers.1", kind), torch.from_numpy(x)),
        rtol=tolerance,
        atol=3 * tolerance,
    )
    assert stored.stat().st_size < 2 * before


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "package.mlpackage"
    like = converted(path, weights("layers.0", FP32))
    other = weights("layers.1", FP32)
    wrong = Weights({**other.values, "table": torch.zeros(5, K)}, other.names, FP32)
    filler = PackageFiller(path)
    with pytest.raises(LoweringError, match=r"layers.1.table in one.*\(5, 32\)(.|\n)*\(4, 32\)"):
        filler.add("one", like, wrong)


def test_a_weight_that_is_not_found_is_named(tmp_path: Path) -> None:
    path = tmp_path / "package.mlpackage"
    converted(path, weights("layers.0", FP32))
    lost = [Place("nowhere", "val", "table")]
    filler = PackageFiller(path)
    with pytest.raises(LoweringError, match="no operation nowhere"):
        filler.add("one", Converted("zero", lost), weights("layers.1", FP32))
