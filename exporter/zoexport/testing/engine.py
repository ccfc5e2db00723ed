"""A session's engine that runs the Core ML packages of a bundle with the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zoexport.core.coreml_names import feature_name, result_name
from zoexport.core.errors import BundleError, nearest
from zoexport.session import Bundle
from zoexport.testing.package import Package
from zoexport.testing.values import BY_NAME

if TYPE_CHECKING:
    from zoexport.session import Tensor  # not at run time: a session brings its library

#: Types that a package accepts, by the format of :class:`zoexport.session.Tensor`: Core ML has
#: neither int64 nor bfloat16, so 16-bit floats are fp16.
_TAKEN = {"f": ("fp32", "fp16"), "H": ("fp16",), "q": ("int32",), "B": ("uint8",), "b": ("int8",)}


class PackageEngine:
    """Runs a bundle's programs: ``bundle.session(engine=PackageEngine(bundle))``.

    A program's file is in a .mlpackage folder of the bundle, its entry point is a function there,
    with values named by ``zoexport.core.coreml_names``. Packages are opened on first use.

    Raises:
        BundleError: on a call: no such program, a damaged package, unknown values, or an integer
            that does not fit into 32 bits.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle.path
        content = bundle.manifest
        entries = [*content["programs"], *content.get("generate", {}).get("programs", [])]
        self._programs = {entry["name"]: entry for entry in entries}
        self._packages: dict[PurePosixPath, Package] = {}

    def __call__(
        self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        """Run a program: read ``inputs`` and fill ``outputs``, both by the names of the manifest."""
        package, function = self._called(program)
        where = f"{package.folder}, function {function!r}"
        types = {feature.name: feature.dtype for feature in package.inputs(function)}
        given = {}
        for name, tensor in _renamed(where, inputs, feature_name).items():
            # The package refuses inputs that the function does not have.
            given[name] = _array(f"{where}, input {name!r}", tensor, types.get(name, ""))
        wanted = _renamed(where, outputs, result_name)
        for name, values in package.run(function, given, wanted).items():
            _fill(f"{where}, output {name!r}", wanted[name], values)

    def _called(self, program: str) -> tuple[Package, str]:
        """Return the package and the function of a program."""
        if program not in self._programs:
            raise BundleError(
                f"bundle {self._bundle}",
                found=f"no program {program!r}",
                expected=f"one of {', '.join(self._programs)}",
                fix=f"Check the name.{nearest(program, self._programs)}",
            )
        entry = self._programs[program]
        folder = _package_folder(entry["file"])
        if folder not in self._packages:
            self._packages[folder] = Package(self._bundle / folder)
        return self._packages[folder], entry["entry_point"]


def _package_folder(file: str) -> PurePosixPath:
    path = PurePosixPath(file)
    return next((part for part in (path, *path.parents) if part.suffix == ".mlpackage"), path)


def _renamed(
    where: str, tensors: Mapping[str, Tensor], rule: Callable[[str], str]
) -> dict[str, Tensor]:
    named = {rule(name): tensor for name, tensor in tensors.items()}
    if len(named) != len(tensors):
        raise BundleError(
            where,
            found=f"values of one name in the package: {', '.join(sorted(tensors))}",
            expected="names that differ in letters and digits",
            fix="Rename one of the values.",
        )
    return named


def _array(where: str, tensor: Tensor, declared: str) -> NDArray[Any]:
    """Convert a session's tensor to the declared type; unchanged if the package will refuse it."""
    array = np.asarray(tensor.data).reshape(tensor.shape)
    if declared not in _TAKEN.get(tensor.data.format, ()):
        return array
    if tensor.data.format == "H":
        return array.view(np.float16)
    taken = array.astype(BY_NAME[declared].numpy_dtype)
    if tensor.data.format == "q" and not np.array_equal(taken, array):
        raise BundleError(
            where,
            found=f"numbers from {array.min()} to {array.max()}",
            expected="numbers that an integer of 32 bits holds",
            fix="Lower the program so that it does not take them.",
        )
    return taken


def _fill(where: str, tensor: Tensor, values: NDArray[Any]) -> None:
    target = np.asarray(tensor.data)
    if tensor.data.format == "H":
        target = target.view(np.float16)
    if values.shape != tensor.shape or not np.can_cast(values.dtype, target.dtype, "safe"):
        raise BundleError(
            where,
            found=f"{values.dtype} {values.shape}",
            expected=f"{target.dtype} {tensor.shape}",
            fix="Compile the bundle again.",
        )
    target[:] = values.ravel()
