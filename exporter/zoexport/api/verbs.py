"""Functions of the verbs that need no method of a bundle: ``plan``, ``check``, ``report``, ``pack`` and ``sign``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from zoexport import session
from zoexport.api import Bundle, StrPath, config_of
from zoexport.core.config import keys_of
from zoexport.core.errors import ConfigError, ModelPhases
from zoexport.data.sources import Data, DataSource
from zoexport.run.progress import Shown, phases
from zoexport.run.results import Checked, Packed, Planned, Reported, Signed

AnyBundle: TypeAlias = "session.Bundle | StrPath"
"""An open bundle, or its folder."""


def opened(bundle: AnyBundle) -> session.Bundle:
    """Return a bundle, opened if it is a path."""
    return bundle if isinstance(bundle, session.Bundle) else Bundle.open(Path(bundle))


def plan(
    model: str,
    *,
    target: str = "host",
    method: str | None = None,
    recipe: StrPath | None = None,
    settings: Mapping[str, Any] | None = None,
    budget_mb: float | None = None,
    process: Literal["train", "python", "runner"] = "train",
    threads: int = 4,
    labels: int | None = None,
    ram: float | None = None,
    disk_mb_s: float | None = None,
    progress: Shown = False,
) -> Planned:
    """Estimate the cost of training a model from its configuration, without its weights.

    Args:
        model: as text, see :func:`zoexport.compile`; a directory only needs config.json.
        target, method, recipe, progress: see :func:`zoexport.compile`.
        settings: settings of the method, such as ``{"lora.r": 8}``.
        budget_mb: budget in MB for anonymous memory; adds the methods and settings that fit.
        process: process that trains: ``zoexport train``, Python with a Session, or zoexport-runner (as in apps).
        threads: number of compute threads.
        labels: predicted tokens per batch, with granularity=layer; None: all.
        ram: memory in MB for training, with mapped files; adds what a step reads from disk.
        disk_mb_s: read speed of the disk in MB/s, for ``ram``.

    Raises:
        ZoExportError: the model, a name or a setting cannot be used.
    """
    from zoexport.tools.plan import plan_training

    with (
        phases("plan", progress) as shown,
        ModelPhases(model, "reading the model", shown).explained() as explained,
    ):
        found = plan_training(
            model,
            method=method,
            target=target,
            settings=keys_of(config_of(method, target, recipe), settings or {}),
            recipe=recipe,
            budget_mb=budget_mb,
            process=process,
            threads=threads,
            labels=labels,
            ram_mb=ram,
            disk_mb_s=disk_mb_s,
            progress=explained,
        )
    return Planned.of(found)


def check(
    data: Data,
    bundle: AnyBundle,
    *,
    loss: Literal["full", "choices", "dpo", "orpo"] = "full",
    pack: bool = False,
    limit: int = 20,
) -> Checked:
    """Read examples as training would, and return statistics and every problem.

    Args:
        data: examples (docs/formats.md, "Training data").
        bundle: bundle with the tokenizer and ``max_length``.
        loss: training loss to check for: choices needs candidates, dpo and orpo pairs of completions.
        pack: whether to count the rows of ``pack=true``.
        limit: maximum number of problems and of shortened examples to list.

    Raises:
        ZoExportError: the source cannot be read at all. Unusable examples are no error.
    """
    from zoexport.data.check import check as run

    source = data if isinstance(data, DataSource) else DataSource(data)
    return Checked.of(run(opened(bundle), source, loss=loss, pack=pack, limit=limit))


def report(
    states: StrPath | Sequence[StrPath],
    output: StrPath,
    *,
    bundle: AnyBundle | None = None,
    prompt: str | Sequence[str] = (),
    system: str | None = None,
    chat_template: bool | None = None,
    max_new_tokens: int = 64,
    force: bool = False,
    progress: Shown = False,
) -> Reported:
    """Write an HTML report of one run, or a comparison of several.

    Args:
        states: run directories.
        output: HTML file to write.
        bundle: bundle of all the states; adds the planned costs and the responses to ``prompt``.
        prompt: prompts whose responses before and after training are shown.
        system, chat_template: format of the prompts; see ``zoexport report --help``.
        max_new_tokens: maximum tokens of a response.
        force: replace an existing file.
        progress: see :func:`zoexport.compile`.

    Raises:
        ZoExportError: a state or the bundle cannot be used, or a library is missing; nothing is written.
    """
    from zoexport.tools.report import write_report

    if isinstance(states, str | os.PathLike):
        states = [states]
    with phases("report", progress) as shown:
        found = write_report(
            [Path(state) for state in states],
            Path(output),
            bundle=None if bundle is None else opened(bundle),
            prompts=[prompt] if isinstance(prompt, str) else prompt,
            system=system,
            chat_template=chat_template,
            max_new_tokens=max_new_tokens,
            force=force,
            progress=shown,
        )
    return Reported.of(found)


def pack(
    bundle: AnyBundle,
    output: StrPath | None = None,
    *,
    force: bool = False,
    progress: Shown = False,
) -> Packed:
    """Write a bundle to one file, a ZIP archive that the apps import.

    Args:
        bundle: the bundle; its signature is packed with it.
        output: file to write; None: the bundle's name with the suffix ``.zobundle``, in the working directory.
        force: replace an existing file.
        progress: see :func:`zoexport.compile`.

    Raises:
        ZoExportError: the bundle is damaged, or the file cannot be written.
    """
    from zoexport.tools.packing import SUFFIX
    from zoexport.tools.packing import pack as run

    found = opened(bundle)
    file = Path(found.path.resolve().name).with_suffix(SUFFIX) if output is None else Path(output)
    with phases("pack", progress) as shown:
        return Packed.of(run(found, file, force=force, progress=shown))


def sign(
    bundle: AnyBundle, *, key: StrPath, password: str | Callable[[], str] | None = None
) -> Signed:
    """Sign a bundle, so that others can verify that it is yours (``trust=`` of ``Bundle.open``).

    Args:
        bundle: the bundle; an existing signature is replaced.
        key: file of the secret key, which ``zoexport sign --generate`` or minisign makes.
        password: password of the key, or a function that returns it; None: the key has none.

    Raises:
        ZoExportError: the bundle is damaged, the key cannot be used, or the signature cannot be written.
    """
    from zoexport.tools.signing import sign_bundle

    def missing() -> str:
        raise ConfigError(
            f"key {key}",
            found="an encrypted key",
            expected="its password",
            fix="Pass it with password=.",
        )

    folder = bundle.path if isinstance(bundle, session.Bundle) else Path(bundle)
    ask = missing if password is None else password if callable(password) else lambda: str(password)
    return Signed.of(sign_bundle(folder, key=Path(key), password=ask))
