"""What :mod:`zoexport.session` needs beside the calls themselves: Ctrl-C, progress, checks of arguments."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from zoexport.core import manifest, outside
from zoexport.core import trust as trusts
from zoexport.core.errors import BundleError, Cancelled, ConfigError
from zoexport.core.minisign import PublicKey
from zoexport.session import abi, structs
from zoexport.session.types import (
    CHOICES,
    DIFFERENCES,
    LOSSES,
    SCHEDULES,
    SWITCHES,
    EngineCallback,
    Evaluation,
    Info,
    Record,
    Run,
    SlotInfo,
    StepEvaluation,
    StepProgress,
)


def info_of(info: structs.Info) -> Info:
    """What the library says of a session, as Python sees it."""
    return Info(
        bundle_id=info.bundle_id.decode(),
        method=info.method.decode(),
        target=info.target.decode(),
        engine=info.engine.decode(),
        rows=info.rows,
        seq_len=info.seq_len,
        copies=info.copies,
        queries=info.queries,
        max_labels=info.max_labels,
        seed=info.seed,
        steps=info.steps,
        packed_weights=os.fsdecode(info.packed_weights),
        packed_problem=os.fsdecode(info.packed_problem),
        device_bytes=info.device_bytes,
    )


def keys_of(trust: Iterable[str | os.PathLike[str]] | None) -> tuple[PublicKey, ...] | None:
    """The keys of which one must have signed a bundle: of ``trust``, or as the environment requires; None: any may."""
    found = trusts.trusted() if trust is None else trusts.parsed(trust, "trust")
    return found if found or trust is not None else None


def open_options(
    keys: tuple[PublicKey, ...] | None,
    *,
    threads: int = 0,
    verify: bool = True,
    engine: EngineCallback | None = None,
    cache: str | Path | None = None,
    engine_name: str | None = None,
) -> structs.OpenOptions:
    """zo_open_options; see :meth:`zoexport.session.Session.open`."""
    return structs.OpenOptions(
        ctypes.sizeof(structs.OpenOptions),
        threads,
        0 if verify else 1,
        ctypes.pointer(engine.table) if engine is not None else None,
        None if cache is None else os.fsencode(cache),
        None if keys is None else "\n".join(key.line for key in keys).encode(),
        None if engine_name is None else engine_name.encode(),
    )


def known(value: float) -> float | None:
    """A number of the library, of which NaN is one that it does not know."""
    return None if math.isnan(value) else value


def evaluated_of(found: structs.Evaluated) -> StepEvaluation:
    """An evaluation of held-out examples, as Python sees it."""
    return StepEvaluation(
        found.step,
        found.loss,
        known(found.accuracy),
        found.token_accuracy,
        known(found.margin),
        bool(found.best),
    )


def evaluations(function: str, handle: int) -> list[StepEvaluation]:
    """All evaluations that a function of the library tells of, one a call."""
    found: list[StepEvaluation] = []
    one = structs.sized(structs.Evaluated)
    with contextlib.suppress(ConfigError):  # beyond the last
        while True:
            abi.call(function, handle, len(found), ctypes.byref(one))
            found.append(evaluated_of(one))
    return found


def evaluation_of(result: structs.Evaluation) -> Evaluation:
    """What the library says of an evaluation, as Python sees it."""
    return Evaluation(
        result.loss,
        known(result.accuracy),
        result.token_accuracy,
        known(result.margin),
        result.examples,
    )


_QNN = "QnnBackend"


def bring_backends(bundle: Path) -> None:
    """Bring what a bundle's delegates need into this process, where the session's library cannot find it alone.

    Raises:
        ZoExportError: it is not there.
    """
    try:
        content = manifest.content(bundle)
        if _QNN.encode() not in content:
            return  # without a look at the rest of it
        backends = outside.parse(content).get("backends", ())
    except (BundleError, ValueError, AttributeError):
        return  # opening says what is wrong with the bundle
    if _QNN in backends:
        from zoexport.targets.qnn import library as qnn_library

        abi.library()  # first: QNN brings a C++ library of its own
        qnn_library.load()


def describe_state(state: Path) -> dict[str, Any]:
    """What a state folder says of itself, as docs/session.md lists it; reads alone.

    Raises:
        StateError: there is none, or it is damaged beyond its log.
    """
    found: dict[str, Any] = json_of("zo_state_describe", abi.path_bytes(state))
    return found


def json_of(function: str, *arguments: Any) -> Any:
    """The document that a verb gives, whose last arguments are room for it and how much that is.

    Raises:
        ZoExportError: the verb's.
    """
    room = 4096
    while True:
        text = ctypes.create_string_buffer(room)
        size = ctypes.c_size_t(room)
        abi.call(function, *arguments, text, ctypes.byref(size))
        if size.value <= room:
            return json.loads(text.value)
        room = size.value


def slot_of(slot: structs.SlotInfo) -> SlotInfo:
    """A slot as Python sees it."""
    return SlotInfo(
        name=slot.name.decode(),
        role=slot.role.decode(),
        module=slot.module.decode(),
        tensor_id=slot.tensor_id,
        shape=tuple(slot.shape[: slot.rank]),
        dtype=structs.DTYPES[slot.dtype],
    )


def run_of(run: structs.Run) -> Run:
    """A run's settings as Python sees them."""
    return Run(
        lr=run.lr,
        eps=run.eps,
        seed=run.seed,
        lr_schedule=SCHEDULES[run.schedule],
        loss=LOSSES[run.loss],
        batch=run.batch,
        accumulate=run.accumulate,
        total_steps=run.total_steps,
        momentum=run.momentum,
        weight_decay=run.weight_decay,
        clip=run.clip,
        checkpoint_every=run.checkpoint_every,
        difference=DIFFERENCES[run.difference],
        warmup=run.warmup,
        dpo_beta=run.dpo_beta,
        orpo_beta=run.orpo_beta,
        choices=CHOICES[run.choices],
        pack=SWITCHES[run.pack],
        keep_mb=run.keep_mb,
        cache_prefix_mb=run.cache_prefix_mb,
    )


def run_struct(run: Run) -> structs.Run:
    """A run's settings as the library takes them.

    Raises:
        ConfigError: a word that it does not know, or a negative count.
    """
    for name in (
        "seed",
        "batch",
        "accumulate",
        "total_steps",
        "checkpoint_every",
        "warmup",
        "keep_mb",
        "cache_prefix_mb",
    ):
        at_least(0, name, getattr(run, name))
    return structs.Run(
        ctypes.sizeof(structs.Run),
        position("setting 'lr_schedule'", run.lr_schedule, SCHEDULES),
        position("setting 'loss'", run.loss, LOSSES),
        run.batch,
        run.accumulate,
        run.lr,
        run.eps,
        run.seed,
        run.total_steps,
        run.momentum,
        run.weight_decay,
        run.clip,
        run.checkpoint_every,
        0,
        position("setting 'difference'", run.difference, DIFFERENCES),
        0,
        run.warmup,
        0,
        run.dpo_beta,
        run.orpo_beta,
        position("setting 'choices'", run.choices, CHOICES),
        position("setting 'pack'", run.pack, SWITCHES),
        run.keep_mb,
        run.cache_prefix_mb,
    )


def record_structs(
    records: Sequence[Record], queries: int
) -> tuple[ctypes.Array[structs.Record], ctypes.Array[ctypes.c_float]]:
    """Records as the library takes them, and the gradients of all, row-major.

    Raises:
        ConfigError: a record has not ``queries`` gradients, or its step is negative.
    """
    for record in records:
        at_least(0, "step", record.step)
        if len(record.gradients) != queries:
            raise ConfigError(
                f"record {record.step}",
                found=f"{len(record.gradients)} projected gradients",
                expected=f"{queries}, as every record of this bundle has",
                fix="Pass the records of a run of this bundle.",
            )
    size = ctypes.sizeof(structs.Record)
    given = (structs.Record * len(records))(
        *(structs.Record(size, r.step, r.lr, r.eps, r.loss) for r in records)
    )
    numbers = [gradient for record in records for gradient in record.gradients]
    return given, (ctypes.c_float * len(numbers))(*numbers)


def progress_of(progress: structs.Progress) -> StepProgress:
    """A report of the library as Python sees it."""
    return StepProgress(
        progress.step,
        progress.total,
        progress.loss,
        progress.lr,
        progress.seconds,
        progress.rss_bytes,
        progress.anonymous_bytes,
    )


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets. The second Ctrl-C does what it did before."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def request(_number: int, _frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    signal.signal(signal.SIGINT, request)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[Any, Callable[..., bool | None] | None], Any]]:
    """What makes the callbacks of one call of the library, which Ctrl-C ends.

    It takes a callback's C type, and what is called with its arguments but the first, the host's pointer: a true answer
    ends the call, and so does an exception.

    Raises:
        Cancelled: the call was ended; what was raised within is raised in its place.
    """
    raised: list[BaseException] = []
    with interrupts() as interrupted:

        def callback(kind: Any, told: Callable[..., bool | None] | None) -> Any:
            def answer(_user: int, *given: Any) -> int:
                try:
                    if told is not None and told(*given):
                        return 1
                except (
                    BaseException
                ) as error:  # it cannot pass through C: kept until the call returns
                    raised.append(error)
                    return 1
                return int(interrupted.is_set())

            return kind(answer)

        try:
            yield callback
        except Cancelled:
            if raised:
                raise raised[0] from None
            raise


def position(what: str, value: str, known: Sequence[str]) -> int:
    """The place of ``value`` in ``known``, which is how the C interface numbers it."""
    if value not in known:
        raise ConfigError(
            what,
            found=repr(value),
            expected="one of " + ", ".join(known),
            fix="Choose one of them.",
        )
    return known.index(value)


def at_least(least: int, name: str, value: int) -> int:
    """A number as it is; a smaller one is refused, before it becomes a large unsigned one."""
    if value < least:
        raise ConfigError(
            f"setting {name!r}",
            found=str(value),
            expected=f"a number of at least {least}",
            fix="Choose another one.",
        )
    return value
