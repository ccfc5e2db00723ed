"""A bundle that has been opened: its manifest is read, and its files and signature are checked against it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from zoexport.core.manifest import FILE, check_files, check_schema
from zoexport.core.progress import Notice, Progress, silent
from zoexport.core.trust import Trust, Trusted
from zoexport.session.data import Dataset, Tokenizer
from zoexport.session.host import Session, manifest_text
from zoexport.session.types import Engine

_Self = TypeVar("_Self", bound="Bundle")


@dataclasses.dataclass(frozen=True)
class Bundle:
    """An open bundle; its folder can be moved and pushed to a phone.

    Attributes:
        path: the folder.
        manifest: the content of its manifest.json (docs/bundle.md).
        trust: the keys of which one must have signed it, whenever its files are read again.
        engine: which of the engines that it has programs for its sessions use; the manifest's where None.
    """

    path: Path
    manifest: Mapping[str, Any] = dataclasses.field(repr=False)
    trust: Trust = dataclasses.field(default=Trust(), repr=False)
    engine: str | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def open(
        cls: type[_Self],
        path: str | os.PathLike[str],
        *,
        trust: Trusted = None,
        engine: str | None = None,
    ) -> _Self:
        """Open a bundle's folder.

        Args:
            path: the folder.
            trust: public keys, as files or as their lines, of which one must have signed it (``zoexport sign``); None:
                those of the environment, ``ZOEXPORT_TRUST``.
            engine: ``executorch`` for the CPU's programs of a bundle that was compiled for android-gpu.

        Raises:
            BundleError: there is none, none of the keys signed it, its manifest is damaged or of a newer schema, or a
                file is missing or of another size.
            ConfigError: no public key among ``trust``.
        """
        folder, trusted = Path(path), Trust.of(trust)
        manifest: dict[str, Any] = json.loads(manifest_text(folder, trusted))
        # The library requires what it uses, the schema what hosts use.
        check_schema(manifest, folder / FILE)
        check_files(folder, manifest, hashes=False)
        return cls(folder, manifest, trusted, engine)

    def verify(self) -> None:
        """Compare the hashes of its files with the manifest.

        Raises:
            BundleError: a file is missing or altered.
        """
        check_files(self.path, self.manifest, hashes=True)

    @property
    def id(self) -> str:
        """Which bundle it is: the hash of its manifest."""
        return str(self.manifest["bundle_id"])

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.manifest["method"])

    @property
    def target(self) -> str:
        """The target's name."""
        return str(self.manifest["target"])

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting that it was compiled with, by key."""
        return dict(self.manifest["settings"])

    def session(
        self,
        *,
        verify: bool = True,
        engine: Engine | None = None,
        cache: str | Path | None = None,
        falls_back: bool = True,
    ) -> Session:
        """Open a session of it; see :meth:`zoexport.session.Session.open`.

        Args:
            falls_back: whether the bundle's fallback goes on if its own engine fails and none was chosen.
        """
        return Session.open(
            self.path,
            verify=verify,
            engine=engine,
            engine_name=self.engine or (None if falls_back else self.manifest["engine"]),
            cache=cache,
            trust=self.trust,
        )

    @contextlib.contextmanager
    def examples(
        self,
        data: Path,
        *,
        progress: Progress = silent,
        **reads: Any,
    ) -> Iterator[tuple[Dataset, dict[str, int]]]:
        """The examples of a data file, tokenized by the bundle's tokenizer, which is closed again.

        Args:
            data: JSON Lines (docs/cli.md, "Data").
            progress: called with the share of the file that is read, and with a notice if examples were shortened or
                end without an end token.
            reads: settings of the run, as :meth:`Dataset.read` takes them (:func:`zoexport.session.data.reading`).

        Returns:
            The examples; and ``examples`` and ``shortened``, how many there are (rows, where they are packed) and did
            not fit the bundle's rows.

        Raises:
            BundleError: it has no tokenizer, an altered one, or one of a kind that the session does not know.
            DataError: the file, with the line at fault.
            Cancelled: Ctrl-C.
        """
        progress("tokenizing", None)
        with Dataset() as dataset:
            with Tokenizer.open(self.path, trust=self.trust) as tokenizer:
                found = dataset.read(
                    data,
                    tokenizer,
                    on_part=lambda done, total: progress("tokenizing", done / total),
                    **reads,
                )
            if found.note:
                progress(Notice(found.note), None)
            yield dataset, {"examples": len(dataset), "shortened": found.shortened}

    def write_tokens(
        self,
        data: Path,
        output: Path,
        *,
        progress: Progress = silent,
        **reads: Any,
    ) -> dict[str, int]:
        """:meth:`examples` into a file of tokens, which :meth:`Dataset.load` and the runner take.

        Raises:
            ZoExportError: as there; ``output`` is then not written.
        """
        with self.examples(data, progress=progress, **reads) as (dataset, counts):
            dataset.write(output)
            return counts
