"""The server's folder: every round is on disk before a client learns of it, and a killed server goes on from there.

STATE/
  federation.json                  terms and clients a round, written when it begins
  lock                             held by the process that runs rounds
  models/model-<version>.safetensors   the newest two; any version follows from the rounds again
  rounds/<number>/plan.json        who was asked, before they are
  rounds/<number>/reply-<client>.bin   a reply whose form is right, before the next is read
  rounds/<number>/refused.jsonl    replies that do not count, with the reason
  rounds/<number>/round.json       the round's end: who counted, and the digest of the version that it made
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from zoexport.core.errors import StateError
from zoexport.core.files import atomic_file, private_folder, write_json
from zoexport.federated import FEDERATION, models
from zoexport.federated.models import Model
from zoexport.federated.terms import Terms
from zoexport.session import Session

_SCHEMA = 1
_KEPT = 2
_LOCK_SECONDS, _LOCK_POLL = 10.0, 0.1


class Store:
    """One federation's folder, open for running rounds."""

    def __init__(self, folder: Path, terms: Terms, sample: int) -> None:
        self.folder = folder
        self.terms = terms
        self.sample = sample
        #: Random id of the federation; clients compare it with the id in their folders.
        self.federation = ""

    @classmethod
    @contextlib.contextmanager
    def opened(cls, folder: Path, terms: Terms, sample: int, bundle: Path) -> Iterator[Store]:
        """Open and lock the federation in a folder; create it if missing.

        Args:
            bundle: the folder of the bundle, for :func:`bundle_of`.

        Raises:
            StateError: it is of other terms, damaged, or another process runs it. ConfigError: it cannot be written.
        """
        store = cls(folder, terms, sample)
        private_folder(folder)
        with (folder / "lock").open("a") as lock:
            store._take(lock)
            store._begin(bundle)
            yield store

    def _take(self, lock: IO[str]) -> None:
        """The lock; the app of a server that was just killed may hold it for another moment."""
        end = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if time.monotonic() > end:
                    raise StateError(
                        f"state {self.folder}",
                        found="another process that runs this federation",
                        expected="one at a time",
                        fix="Wait for it, or choose another folder.",
                    ) from error
            time.sleep(_LOCK_POLL)

    def _begin(self, bundle: Path) -> None:
        path = self.folder / FEDERATION
        now = {**self.terms.as_dict(), "sample": self.sample}
        if not path.exists():
            self.federation = secrets.token_hex(8)
            content = {"schema": _SCHEMA, "federation": self.federation, "terms": now}
            write_json(path, {**content, "bundle": str(bundle.resolve())})
            return
        known = read_federation(self.folder)
        self.federation, before = known["federation"], known["terms"]
        different = [key for key in now if before.get(key) != now[key]]
        if not different:
            return
        raise StateError(
            f"state {self.folder}",
            found="a federation of " + ", ".join(f"{key}={before.get(key)}" for key in different),
            expected=", ".join(f"{key}={now[key]}" for key in different),
            fix="Give the same settings to go on, or choose another folder.",
        )

    # ---- rounds ------------------------------------------------------------------------------------------------

    def version(self) -> int:
        """Return the number of completed rounds, which is the version of the newest model."""
        number = 0
        while (self._round(number) / "round.json").exists():
            number += 1
        return number

    def round(self, number: int) -> dict[str, Any]:
        """Return the record of a completed round."""
        return _read_json(self._round(number) / "round.json")

    def plan(self, number: int) -> dict[str, Any] | None:
        """Who was asked in a round that has begun, or None."""
        path = self._round(number) / "plan.json"
        return _read_json(path) if path.exists() else None

    def begin(self, number: int, clients: list[int]) -> dict[str, Any]:
        """Write down who will be asked."""
        plan = {"round": number, "clients": clients}
        write_json(self._round(number) / "plan.json", plan)
        return plan

    def keep_reply(self, number: int, client: int, content: bytes) -> None:
        """Keep a reply; it counts from now on, also for the server that is started after this one was killed."""
        with atomic_file(self._reply(number, client)) as temporary:
            temporary.write_bytes(content)

    def replies(self, number: int) -> dict[int, bytes]:
        """Return the kept replies of a round, by client."""
        found = {}
        for path in self._round(number).glob("reply-*.bin"):
            found[int(path.stem.removeprefix("reply-"))] = path.read_bytes()
        return dict(sorted(found.items()))

    def reply(self, number: int, client: int) -> bytes:
        """One of them."""
        return self._reply(number, client).read_bytes()

    def refuse(self, number: int, client: int, reason: str, *, final: bool = True) -> None:
        """Log a reply that does not count. Unless ``final``, its client is asked again."""
        path = self._round(number) / "refused.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"client": client, "reason": reason, "final": final}) + "\n"
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def refused(self, number: int) -> list[dict[str, Any]]:
        """Return the logged refusals of a round, in the order they came."""
        path = self._round(number) / "refused.jsonl"
        if not path.exists():
            return []
        return [
            json.loads(line) for line in path.read_text("utf-8").splitlines() if line.endswith("}")
        ]

    def commit(self, number: int, model: Model, content: Mapping[str, Any]) -> None:
        """End a round: the model first, then what says that it counts."""
        models.keep(self._model(number + 1), model)
        write_json(self._round(number) / "round.json", content, allow_nan=True)  # of a test set
        for version in range(number + 1 - _KEPT, -1, -1):
            path = self._model(version)
            if not path.exists():
                break
            path.unlink()

    def note(self, number: int, content: Mapping[str, Any]) -> None:
        """Keep what happened after a round's end: who was synchronized, and the bytes that took."""
        write_json(self._round(number) / "synchronized.json", content)

    def notes(self, number: int) -> dict[str, Any]:
        """Return the content stored by :meth:`note`, or an empty dict."""
        path = self._round(number) / "synchronized.json"
        return _read_json(path) if path.exists() else {}

    def kept_model(self, version: int, like: Mapping[str, int]) -> Model | None:
        """Return a version that is still kept and is the one its round made, else None."""
        try:
            content = self._model(version).read_bytes()
            model = models.unpack(content, like, str(self._model(version)))
        except (OSError, StateError):
            return None
        return model if models.digest(model) == self.round(version - 1)["digest"] else None

    def _round(self, number: int) -> Path:
        return self.folder / "rounds" / f"{number:06d}"

    def _reply(self, number: int, client: int) -> Path:
        return self._round(number) / f"reply-{client}.bin"

    def _model(self, version: int) -> Path:
        return self.folder / "models" / f"model-{version}.safetensors"


def read_federation(folder: Path) -> dict[str, Any]:
    """``federation.json`` of a folder.

    Raises:
        StateError: none, damaged, or of a newer release.
    """
    path = folder / FEDERATION
    content = _read_json(path)
    if content.get("schema") != _SCHEMA:
        raise StateError(
            str(path),
            found=f"schema {content.get('schema')}",
            expected=f"schema {_SCHEMA}",
            fix="Use the zoexport that made it, or choose another folder.",
        )
    return content


def bundle_of(folder: Path) -> Path:
    """Return the bundle's path at the start of a federation.

    Raises:
        StateError: as for :func:`read_federation`.
    """
    return Path(read_federation(folder)["bundle"])


def of_folder(folder: Path) -> Store:
    """Return the federation in a folder, for reading; another process may run it.

    Raises:
        StateError: as for :func:`read_federation`.
    """
    terms = dict(read_federation(folder)["terms"])
    sample = terms.pop("sample")
    return Store(folder, Terms.of(terms), sample)


def load(session: Session, folder: Path) -> int:
    """Make a federation's newest model the values of a session that has taken no step.

    Returns:
        The steps of a client until then, of all rounds together.

    Raises:
        StateError: the folder is damaged, or its federation is of another bundle.
    """
    store = of_folder(folder)
    terms, bundle = store.terms, session.info.bundle_id
    if terms.bundle != bundle:
        raise StateError(
            f"federation {folder}",
            found=f"a federation of bundle {terms.bundle[:16]}...",
            expected=f"one of bundle {bundle[:16]}...",
            fix="Name the bundle that the federation trains.",
        )
    version = store.version()
    if version:
        slots = {slot.name: math.prod(slot.shape) for slot in models.trained_slots(session)}
        model = store.kept_model(version, slots)
        if model is None:
            raise StateError(
                f"federation {folder}",
                found=f"no whole model of version {version}",
                expected="what its last round made",
                fix="Run its server again: it makes the model again from the rounds.",
            )
        models.write(session, model)
    return version * terms.steps


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StateError(
            str(path),
            found=str(error),
            expected="a file that the federation's server wrote",
            fix="Restore the folder from a copy, or choose another one.",
        ) from error
    return found
