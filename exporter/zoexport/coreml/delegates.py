"""The Core ML package inside a .pte whose methods are one delegate each, and what each method calls there."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.errors import BundleError, ConfigError, first_line, nearest
from zoexport.coreml.package import Package

BACKEND = "CoreMLBackend"
_REFERENCE = b"CMJR"
"""What stands before a delegate's JSON where the package is named data of the .pte, which all methods share."""


@dataclasses.dataclass(frozen=True)
class Method:
    """What a method calls.

    Attributes:
        function: of the package.
        inputs, outputs: names in the package of the method's values, in the method's order; None of an input that the
            function does not take.
    """

    function: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]


class DelegatedFile:
    """A .pte that ExecuTorch's Core ML delegate is all of.

    The package is unpacked into a folder that goes with this object.

    Raises:
        BundleError: no such file, a damaged one, or one with operators beside a method's delegate.
        ConfigError: ExecuTorch has no Core ML delegate here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = tempfile.TemporaryDirectory(prefix="zoexport-coreml-")
        program, content = self._read()
        self._unpack(content)
        found = [*Path(self._folder.name).rglob("metadata.json")]
        if len(found) != 1:
            raise self._damaged(f"{len(found)} descriptions of the package's functions")
        self.package = Package(found[0].with_name("model.mlpackage"))
        names = json.loads(found[0].read_text("utf-8"))["methods"]
        self._methods = {
            plan.name: self._method(plan, program.backend_delegate_data, names)
            for plan in program.execution_plan
        }

    def method(self, name: str) -> Method:
        """What the method ``name`` calls.

        Raises:
            BundleError: no such method.
        """
        if name not in self._methods:
            raise BundleError(
                str(self._path),
                found=f"no method {name!r}",
                expected=f"one of {', '.join(self._methods)}",
                fix=f"Check the name.{nearest(name, self._methods)}",
            )
        return self._methods[name]

    def _read(self) -> tuple[Any, bytes]:
        """ExecuTorch's program, and its one named content."""
        from executorch.exir._serialize._program import deserialize_pte_binary

        # What it raises of a damaged file has no common class.
        try:
            file = deserialize_pte_binary(self._path.read_bytes())
        except Exception as error:
            raise self._damaged(first_line(error)) from error
        contents = file.named_data.buffers if file.named_data else []
        if len(contents) != 1:
            raise self._damaged(f"{len(contents)} packages")
        return file.program, bytes(contents[0])

    def _unpack(self, content: bytes) -> None:
        try:
            from executorch.backends.apple.coreml import executorchcoreml
        except ImportError as error:
            raise ConfigError(
                f"program {self._path}",
                found="an ExecuTorch without its Core ML delegate",
                expected="the Python package with it, which unpacks the delegate",
                fix="Install executorch==1.5.1 for Linux on x86-64, or for macOS.",
            ) from error
        if not executorchcoreml.unflatten_directory_contents(content, self._folder.name):
            raise self._damaged("a delegate that cannot be unpacked")

    def _method(self, plan: Any, contents: Sequence[Any], names: Mapping[str, Any]) -> Method:
        calls = [call.instr_args for chain in plan.chains for call in chain.instructions]
        delegates = [delegate.id for delegate in plan.delegates]
        if len(calls) != 1 or delegates != [BACKEND]:
            listed = ", ".join(type(call).__name__ for call in calls)
            raise self._damaged(f"{listed} in the method {plan.name}, with {delegates}")
        content = bytes(contents[plan.delegates[0].processed.index].data)
        if not content.startswith(_REFERENCE):
            raise self._damaged(f"a package of its own in the method {plan.name}")
        function = json.loads(content.removeprefix(_REFERENCE))["functionName"]
        features = [*names[function]["inputNames"], *names[function]["outputNames"]]
        named = dict(zip(calls[0].args, features, strict=True))
        if not named.keys() >= {*plan.outputs}:
            raise self._damaged(
                f"a result of the method {plan.name} that its delegate does not make"
            )
        return Method(
            function,
            tuple(named.get(value) for value in plan.inputs),
            tuple(named[value] for value in plan.outputs),
        )

    def _damaged(self, found: str) -> BundleError:
        return BundleError(
            str(self._path),
            found=found,
            expected="a .pte whose methods are each one delegate of Core ML, and share a package",
            fix="Copy the bundle again, or compile it again.",
        )
