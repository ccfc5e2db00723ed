"""A saved Core ML package, run operation by operation: the arithmetic that it declares, without Core ML.

It reads the protobuf messages and the weights directly. coremltools' reader (``milproto.load``)
unpacks all constants of every function, and shared constants once per function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from zoexport.core.errors import BundleError, ConfigError, first_line, nearest
from zoexport.testing.function import Feature, Function
from zoexport.testing.weights import WeightFile

_CONTENT = Path("Data", "com.apple.CoreML")
_MODEL_PATH = "@model_path/"


class Package:
    """A .mlpackage folder with an ML Program of one or more functions.

    Functions are read on first use. Constants stay in the mapped weight file until an operation
    reads them, and are freed after their last use, like all values.

    Raises:
        BundleError: the package is missing or damaged.
        ConfigError: coremltools is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._functions: dict[str, Function] = {}
        self._weights: dict[str, WeightFile] = {}
        self._spec = _load(folder).mlProgram
        if not self._spec.functions:
            raise _damaged(folder, "an ML Program without functions")

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the functions, sorted."""
        return tuple(sorted(self._spec.functions))

    def inputs(self, function: str) -> tuple[Feature, ...]:
        """The inputs of a function, in its order."""
        return self.open(function).inputs

    def outputs(self, function: str) -> tuple[Feature, ...]:
        """The outputs of a function, in its order."""
        return self.open(function).outputs

    def run(
        self,
        function: str,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Iterable[str] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run a function; see :meth:`Function.run`. Without ``outputs`` it computes all of them."""
        return self.open(function).run(inputs, outputs)

    def open(self, function: str) -> Function:
        """Read and check the function of this name.

        Raises:
            BundleError: no such function, an operation without a rule, or a damaged package.
        """
        if function not in self._spec.functions:
            raise BundleError(
                str(self.folder),
                found=f"no function {function!r}",
                expected=f"one of {', '.join(self.functions)}",
                fix=f"Check the name.{nearest(function, self.functions)}",
            )
        if function not in self._functions:
            self._functions[function] = Function(
                str(self.folder), function, self._spec.functions[function], self._weight_file
            )
        return self._functions[function]

    def _weight_file(self, name: str) -> WeightFile:
        if name not in self._weights:
            path = self.folder / _CONTENT / name.removeprefix(_MODEL_PATH)
            self._weights[name] = WeightFile(path)
        return self._weights[name]


def _load(folder: Path) -> Any:
    try:
        import coremltools
    except ImportError as error:
        raise ConfigError(
            f"package {folder}",
            found="no coremltools",
            expected="the Python package that reads it",
            fix="Install it: pip install 'zoexport[ios-coreml]'.",
        ) from error
    if not (folder / "Manifest.json").is_file():
        raise _damaged(folder, "no Manifest.json" if folder.is_dir() else "no such folder")
    # Errors for damaged packages have no common class: C++ exceptions, protobuf's, OSError.
    try:
        spec = coremltools.utils.load_spec(str(folder))
    except Exception as error:
        raise _damaged(folder, first_line(error)) from error
    kind = spec.WhichOneof("Type")
    if kind != "mlProgram":
        raise _damaged(folder, f"a model of the kind {kind}")
    return spec


def _damaged(folder: Path, found: str) -> BundleError:
    return BundleError(
        str(folder),
        found=found,
        expected="a Core ML package (.mlpackage) with an ML Program",
        fix="Check the path, copy the bundle again, or compile it again.",
    )
