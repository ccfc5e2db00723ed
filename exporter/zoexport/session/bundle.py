"""Open bundles, with their files and signature checked against the manifest."""

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
    """An open bundle. Its folder can be moved, or copied to a phone.

    Attributes:
        path: folder of the bundle.
        manifest: content of its manifest.json (docs/formats.md).
        trust: public keys; whenever files are read, one of them must have signed the bundle.
        engine: engine of its sessions, one that it has programs for; None: the manifest's.
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
            path: folder of the bundle.
            trust: public keys, as files or lines; one of them must have signed the bundle
                (``zoexport sign``). None: the keys in the environment, ``ZOEXPORT_TRUST``.
            engine: ``executorch`` to run the CPU programs of a bundle for android-gpu.

        Raises:
            BundleError: the bundle is missing or has no trusted signature, its manifest is damaged
                or has a newer schema, or a file is missing or has another size.
            ConfigError: ``trust`` is empty or has an invalid public key.
        """
        folder, trusted = Path(path), Trust.of(trust)
        manifest: dict[str, Any] = json.loads(manifest_text(folder, trusted))
        # The library checks the members that it uses; the schema checks those that hosts use.
        check_schema(manifest, folder / FILE)
        check_files(folder, manifest, hashes=False)
        return cls(folder, manifest, trusted, engine)

    def verify(self) -> None:
        """Compare the hashes of the files with the manifest.

        Raises:
            BundleError: a file is missing or altered.
        """
        check_files(self.path, self.manifest, hashes=True)

    @property
    def id(self) -> str:
        """Identifier of the bundle: the hash of its manifest."""
        return str(self.manifest["bundle_id"])

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.manifest["method"])

    @property
    def target(self) -> str:
        """Name of the target."""
        return str(self.manifest["target"])

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that the bundle was compiled with, by key."""
        return dict(self.manifest["settings"])

    def session(
        self,
        *,
        verify: bool = True,
        engine: Engine | None = None,
        cache: str | Path | None = None,
        falls_back: bool = True,
    ) -> Session:
        """Open a session of the bundle; see :meth:`zoexport.session.Session.open`.

        Args:
            falls_back: use the fallback engine if the bundle's own fails and no engine was chosen.
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
        """Yield the examples of a data file, tokenized with the bundle's tokenizer.

        Args:
            data: JSON Lines (docs/formats.md, "Training data").
            progress: called with the share of the file that was read, and with a notice if examples
                were truncated or lack an end token.
            reads: settings for :meth:`Dataset.read`, see :func:`zoexport.session.data.reading`.

        Returns:
            The examples and two counts: ``examples``, their number (rows, if they are packed), and
            ``shortened``, those truncated to the bundle's maximum length.

        Raises:
            BundleError: the tokenizer is missing, altered or of an unsupported kind.
            DataError: the file cannot be used; the message names the line.
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
        """Write :meth:`examples` as a file of tokens for :meth:`Dataset.load` and the runner.

        Raises:
            ZoExportError: see :meth:`examples`; ``output`` is not written.
        """
        with self.examples(data, progress=progress, **reads) as (dataset, counts):
            dataset.write(output)
            return counts
