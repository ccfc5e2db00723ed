"""The bundle's side of a parity check: a C++ session that takes single steps and writes nothing to disk.

    python -m zoexport.compiler.parity_session SOCKET

runs the session for the process at the other end of the file descriptor SOCKET.
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zoexport.core import children, int4
from zoexport.core.errors import LoweringError, ZoExportError, rebuilt
from zoexport.data.examples import Example
from zoexport.session import Bundle, Dataset, SlotInfo
from zoexport.session import normals as runtime_normals
from zoexport.session import signs as runtime_signs

if TYPE_CHECKING:
    from zoexport.testing import PackageEngine


def evaluator(bundle: Bundle) -> PackageEngine | None:
    """Return the evaluator of a bundle for Core ML, which no engine here runs; None for other bundles."""
    if bundle.manifest["engine"] != "coreml":
        return None
    from zoexport.testing import PackageEngine

    return PackageEngine(bundle)


class SessionSide:
    """The bundle in the C++ session, step by step, with nothing kept on disk."""

    def __init__(self, bundle: Bundle, loss: str, *, eps: float | None = None) -> None:
        plan = bundle.manifest.get("step", {})
        self._make_noise = runtime_signs if plan.get("noise") == "rademacher" else runtime_normals
        self.session = bundle.session(engine=evaluator(bundle), falls_back=False)
        self.session.configure(loss=loss, **({} if eps is None else {"eps": eps}))
        self.slots = [slot for slot in self.session.slots() if slot.role == "trainable"]
        #: Parameters that are perturbed along float directions.
        self.floats = [slot for slot in self.slots if slot.passed == "float32"]

    @property
    def num_queries(self) -> int:
        """Number of queries; 0 for a first-order method."""
        return self.session.info.num_queries

    def __enter__(self) -> SessionSide:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def step(self, batch: list[Example]) -> dict[str, Any]:
        """Run one step.

        Return ``losses``, ``gradients``, and every parameter ``before`` and ``after``.
        """
        before = self.state(finished=False)
        with Dataset() as dataset:
            for example in batch:
                dataset.add(
                    [(candidate.tokens, candidate.labels) for candidate in example.candidates],
                    example.target,
                )
            step = self.session.step(dataset, range(len(batch)))
        return {
            "losses": list(step.losses),
            "gradients": list(step.gradients) if self.num_queries else self._gradients(),
            "before": before,
            "after": self.state(finished=False),
        }

    def state(self, *, finished: bool = True) -> dict[str, np.ndarray]:
        """Return every parameter, with the pending update applied or as evaluated by the last step.

        Floats are float32; weights trained as integers are int8 (N, K).
        """
        return {
            slot.name: _values(slot, self.session.read_slot(slot.name, finished=finished))
            for slot in self.slots
        }

    def _gradients(self) -> dict[str, np.ndarray]:
        """Return the gradients of the last step of a first-order method, by parameter."""
        return {
            slot.name: np.frombuffer(
                self.session.read_slot(slot.name, gradient=True), np.float32
            ).reshape(slot.shape)
            for slot in self.slots
        }

    def tensors(self) -> dict[str, Any]:
        """Return the state that the last step evaluated, from which the reference continues."""
        import torch

        return {name: torch.from_numpy(b.copy()) for name, b in self.state(finished=False).items()}

    def noise(self, step: int) -> dict[str, np.ndarray]:
        """Return z of a step for every parameter (q, *shape), from the runtime's generator.

        Empty without queries.
        """
        info = self.session.info
        return {
            slot.name: np.stack(
                [
                    np.frombuffer(
                        self._make_noise(
                            info.seed,
                            tensor_id=slot.tensor_id,
                            query=query,
                            step=step,
                            count=math.prod(slot.shape),
                        ),
                        np.float32,
                    ).reshape(slot.shape)
                    for query in range(info.num_queries)
                ]
            )
            for slot in self.floats
            if info.num_queries
        }


def _values(slot: SlotInfo, read: Any) -> np.ndarray:
    values = np.frombuffer(read, slot.passed).reshape(slot.shape)
    if slot.dtype != "uint8":
        return values
    return int4.unpack_int4(torch.from_numpy(values.copy())).numpy()


class Apart:
    """Proxy of a :class:`SessionSide` in another process."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.num_queries: int = call("num_queries")
        self.floats: list[SlotInfo] = call("floats")

    def step(self, batch: list[Example]) -> dict[str, Any]:
        """See :meth:`SessionSide.step`."""
        found: dict[str, Any] = self._call("step", batch)
        return found

    def state(self, *, finished: bool = True) -> dict[str, np.ndarray]:
        """See :meth:`SessionSide.state`."""
        found: dict[str, np.ndarray] = self._call("state", finished=finished)
        return found

    def tensors(self) -> dict[str, Any]:
        """See :meth:`SessionSide.tensors`."""
        return {name: torch.from_numpy(value) for name, value in self.state(finished=False).items()}

    def noise(self, step: int) -> dict[str, np.ndarray]:
        """See :meth:`SessionSide.noise`."""
        found: dict[str, np.ndarray] = self._call("noise", step)
        return found


@contextlib.contextmanager
def session_side(
    bundle: Bundle, loss: str, *, eps: float | None = None
) -> Iterator[SessionSide | Apart]:
    """Open a session for a parity check.

    The emulator of an NPU runs in a separate process, because a fault in it would end this one.

    Raises:
        LoweringError: the process of the emulator ended.
    """
    if "QnnBackend" not in bundle.manifest["backends"]:
        with SessionSide(bundle, loss, eps=eps) as side:
            yield side
        return
    ours, theirs = socket.socketpair()
    command, environment = children.python("zoexport.compiler.parity_session", theirs.fileno())
    with (
        tempfile.TemporaryFile() as errors,
        children.child(
            command, errors=errors, environment=environment, descriptors=[theirs.fileno()]
        ) as process,
        Connection(ours.detach()) as connection,
    ):
        theirs.close()

        def call(name: object, *args: object, **kwargs: object) -> Any:
            try:
                connection.send((name, args, kwargs))
                result, error = connection.recv()
            except (EOFError, OSError) as ended:
                raise LoweringError(
                    f"bundle {bundle.path}",
                    found=f"an emulator that ended with status {process.wait()}",
                    expected="the losses of every step",
                    fix="Report the sizes of the model and the settings.",
                ) from ended
            if error is not None:
                raise rebuilt(error)
            return result

        call(bundle.path, loss, eps=eps)
        yield Apart(call)


def _serve(descriptor: int) -> None:
    """Create the session that the first message describes, then answer messages until the connection closes."""
    with Connection(descriptor) as connection, contextlib.ExitStack() as stack:
        side: SessionSide | None = None
        while True:
            try:
                name, args, kwargs = connection.recv()
            except EOFError:
                return
            try:
                if side is None:
                    made = SessionSide(Bundle.open(name), *args, **kwargs)
                    side, result = stack.enter_context(made), None
                else:
                    found = getattr(side, name)
                    result = found(*args, **kwargs) if callable(found) else found
            except ZoExportError as error:
                connection.send((None, error.with_type()))
            else:
                connection.send((result, None))


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
