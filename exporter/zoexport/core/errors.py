"""The one error family: every message says where, what was found, what was expected, what to do."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping

from zoexport.core.wording import worded


class ZoExportError(Exception):
    """A failure that the user can act on.

    Messages are written with flags of the command line; Python gets keyword arguments (``core.wording``).

    Args:
        where: the file, line, setting or pass that is at fault.
        found: what is there.
        expected: what should be there.
        fix: what the user can do about it.
    """

    exit_code = 1

    def __init__(self, where: str, *, found: str, expected: str, fix: str) -> None:
        self._written = {"where": where, "found": found, "expected": expected, "fix": fix}
        self.where, self.found, self.expected, self.fix = map(worded, self._written.values())
        super().__init__(f"{self.where}: found {self.found}; expected {self.expected}. {self.fix}")

    def as_dict(self) -> dict[str, str]:
        """Return the four parts by name, for ``--json``."""
        return {
            "where": self.where,
            "found": self.found,
            "expected": self.expected,
            "fix": self.fix,
        }

    def with_type(self) -> dict[str, str]:
        """Return the parts as written, and the name of the class, for another process (:func:`rebuilt`)."""
        return {"type": type(self).__name__, **self._written}


def rebuilt(content: Mapping[str, str]) -> ZoExportError:
    """Return the error that another process described by :meth:`ZoExportError.with_type`."""
    parts = dict(content)
    kind: type[ZoExportError] = globals()[parts.pop("type")]
    return kind(parts.pop("where"), **parts)


class ConfigError(ZoExportError):
    """A setting, a name or a command-line argument that cannot be used."""

    exit_code = 2


class ModelError(ZoExportError):
    """A model that cannot be found, loaded or captured."""


class DataError(ZoExportError):
    """A data file that cannot be read as examples."""


class BundleError(ZoExportError):
    """A bundle that is missing, altered, or of another version."""


class StateError(ZoExportError):
    """A training state that is missing, damaged, locked, or of another bundle."""


class QuestionError(ZoExportError):
    """A choice between two ways to continue that the user has to make."""


class DeviceError(ZoExportError):
    """A phone, or what talks to it, that is missing or cannot be used."""


class VerifyError(ZoExportError):
    """A training graph that breaks a rule of ``ir.verify``."""


class LoweringError(ZoExportError):
    """A graph that a target cannot lower."""


class DivergedError(ZoExportError):
    """Training was stopped because the loss left the range it started in."""

    exit_code = 3


STOPPED = "a request to stop"
"""``found`` of a run that its user stopped."""


class Cancelled(ZoExportError, KeyboardInterrupt):
    """The user stopped a run; its progress is saved."""

    exit_code = 130

    def __str__(self) -> str:
        """Return where the user stopped it and how to continue; of another reason, such as memory, all parts."""
        return (
            f"Stopped at {self.where}. {self.fix}" if self.found == STOPPED else super().__str__()
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the known name closest to ``name``, or an empty string.

    The first name that begins with ``name`` is closest: ``android`` means ``android-cpu``.
    """
    names = list(known)
    begun = [one for one in names if name and one.startswith(name)]
    close = begun or difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f" Did you mean {close[0]!r}?" if close else ""


class ModelPhases:
    """The progress of work on a model, which names the phase in which anything else than our own errors was raised.

    Attributes:
        model: what is worked on, for messages: where it lies, then its class once that is known.
        phase: the last one that :meth:`__call__` was told.
    """

    def __init__(
        self, model: str, phase: str, progress: Callable[[str, float | None], object] | None = None
    ) -> None:
        self.model = model
        self.phase = phase
        self._progress = progress

    def __call__(self, phase: str, done: float | None = None) -> None:
        """Note a phase, and pass it on; see ``core.progress.Progress``."""
        self.phase = phase
        if self._progress is not None:
            self._progress(phase, done)

    @contextlib.contextmanager
    def explained(self) -> Iterator[ModelPhases]:
        """While this is open, what transformers, torch or a pass raises becomes one error with model and phase.

        Raises:
            ModelError: for any exception but our own, a lack of memory or room, and requests to stop.
        """
        try:
            yield self
        except (ZoExportError, MemoryError, OSError):
            raise
        except Exception as error:
            raise ModelError(
                f"model {self.model}",
                found=f"{type(error).__name__} while {self.phase} ({first_line(error)[:300]})",
                expected="an architecture that zoexport can compile",
                fix="Try other settings or another model, or report this with the traceback (--debug).",
            ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type if the message is empty."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a method's graph cannot be lowered to a target, found before any heavy work."""

    where: str
    reason: str
    fix: str
