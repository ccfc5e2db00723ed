"""What functions of a Core ML package computed in a session, for hosts where nothing can run them.

A host's double of Core ML gives those results again, in the order in which they were asked for, and compares what it is
given: the function, the names, types, shapes and values of its inputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from zoexport.core.coreml_names import feature_name, result_name
from zoexport.testing import Package

#: Names that a package cannot have as they are.
_NAMES = (
    "lora_A.self_attn.q_proj",
    "state",
    "0.weight",
    "_private",
    "fp16",
    "naïve",
    "two words",
    "",
)


@contextmanager
def recorded(bundle: Path, folder: Path) -> Iterator[None]:
    """Record every call of a function of ``bundle`` while this lasts, into ``calls.json`` and ``values.bin``.

    ``functions.json`` has what every function of the package declares, in its order, and ``names.json`` how names
    become those of a package.
    """
    package = Package(bundle / "model.mlpackage")
    declared = {
        name: {
            kind: [
                {"name": value.name, "dtype": value.dtype, "shape": list(value.shape)}
                for value in features
            ]
            for kind, features in (
                ("inputs", package.inputs(name)),
                ("outputs", package.outputs(name)),
            )
        }
        for name in package.functions
    }
    names = {name: [feature_name(name), result_name(name)] for name in _NAMES}
    (folder / "functions.json").write_text(json.dumps(declared))
    (folder / "names.json").write_text(json.dumps(names))
    calls: list[dict[str, Any]] = []
    with (folder / "values.bin").open("wb") as values:

        class Recording(Package):
            def run(
                self,
                function: str,
                inputs: Mapping[str, NDArray[Any]],
                outputs: Iterable[str] | None = None,
            ) -> dict[str, NDArray[Any]]:
                results = super().run(function, inputs, outputs)
                calls.append(
                    {
                        "function": function,
                        "inputs": [_write(values, *item) for item in inputs.items()],
                        "outputs": [_write(values, *item) for item in results.items()],
                    }
                )
                return results

        with mock.patch("zoexport.testing.engine.Package", Recording):
            yield
    (folder / "calls.json").write_text(json.dumps(calls))


def _write(file: IO[bytes], name: str, array: NDArray[Any]) -> dict[str, Any]:
    entry = {"name": name, "offset": file.tell(), "shape": list(array.shape)}
    file.write(np.ascontiguousarray(array).tobytes())
    return entry
