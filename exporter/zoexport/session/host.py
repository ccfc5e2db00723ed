"""Python's host of the C++ session: a thin binding of ``runtime_ops/include/zoexport/session.h``.

The training loop is the one that runs on phones; nothing here computes. The module imports neither torch nor
numpy, so a process that trains need not hold them: token sequences are any integers, slot values are arrays of
float32, or of the slot's integers (``numpy.frombuffer`` and ``torch.frombuffer`` read them in place).
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from zoexport.core import trust as trusts
from zoexport.core.errors import ConfigError, ZoExportError
from zoexport.session import abi, structs
from zoexport.session.dataset import Dataset
from zoexport.session.generation import GenerationCall
from zoexport.session.handles import Handle
from zoexport.session.support import (
    at_least,
    bring_backends,
    evaluated_of,
    evaluation_of,
    evaluations,
    info_of,
    keys_of,
    open_options,
    position,
    progress_of,
    record_structs,
    run_of,
    run_struct,
    slot_of,
    stoppable,
)
from zoexport.session.types import (
    Engine,
    EngineCallback,
    Evaluation,
    Generation,
    Info,
    OnPart,
    OnProgress,
    OnText,
    OnToken,
    Record,
    Run,
    Sampling,
    SlotInfo,
    Step,
    StepEvaluation,
    Validation,
)


class Session(Handle):
    """An open bundle. Use it in a ``with`` statement, from one thread at a time."""

    def __init__(self, handle: int, engine: EngineCallback | None) -> None:
        super().__init__(handle, what="session", free="zo_session_close")
        self._engine = engine

    @classmethod
    def open(
        cls,
        bundle: Path,
        *,
        threads: int = 0,
        verify: bool = True,
        engine: Engine | None = None,
        engine_name: str | None = None,
        cache: str | Path | None = None,
        trust: Iterable[str | os.PathLike[str]] | None = None,
    ) -> Session:
        """Open a bundle.

        Args:
            bundle: the bundle's folder.
            threads: of the engine; 0 leaves the choice to it.
            verify: whether files are hashed before they are used; sizes are always compared.
            engine: runs the programs instead of the engine that the manifest names.
            engine_name: which of the engines that the bundle has programs for; the manifest's where None.
            cache: the folder of packed weights; the user's own where None, nowhere where "".
            trust: public keys, as files or as their lines, of which one must have signed the bundle. Where None: what
                the environment requires (:mod:`zoexport.core.trust`).

        Raises:
            BundleError: missing, altered, of another version, or signed by none of the keys.
            ZoExportError: it needs libraries that are not there.
        """
        callback = EngineCallback(engine) if engine is not None else None
        keys = keys_of(trust)
        options = open_options(
            keys,
            threads=threads,
            verify=verify,
            engine=callback,
            cache=cache,
            engine_name=engine_name,
        )
        if engine is None:
            with trusts.required(keys):
                bring_backends(bundle)
        handle = ctypes.c_void_p()
        abi.call(
            "zo_session_open", abi.path_bytes(bundle), ctypes.byref(options), ctypes.byref(handle)
        )
        assert handle.value is not None
        return cls(handle.value, callback)

    def attach(
        self,
        state: Path,
        *,
        seed: int | None = None,
        read_only: bool = False,
        recover: bool = False,
        change_settings: bool = False,
        last: bool = False,
    ) -> None:
        """Attach a state folder, right after opening; without one, nothing of a run is kept.

        The settings of a run that has begun become those of :attr:`run`, unless it is only read.

        Args:
            state: resumed, or created where there is none.
            seed: of a new state (the bundle's where None); must equal that of an existing one.
            read_only: the state must exist, is not locked and not written.
            recover: go on from the last good record of a damaged log, of which a copy is kept.
            change_settings: steps may be taken with other settings or examples than the run's.
            last: read the values of the last step, also where the run keeps those of its best evaluation.

        Raises:
            StateError: missing, damaged, locked, of another bundle or another seed.
        """
        options = structs.AttachOptions(
            ctypes.sizeof(structs.AttachOptions),
            int(not read_only),
            None if seed is None else ctypes.pointer(ctypes.c_uint64(seed)),
            int(recover),
            int(change_settings),
            int(last),
        )
        abi.call(
            "zo_session_attach_with", self.handle, abi.path_bytes(state), ctypes.byref(options)
        )

    @property
    def info(self) -> Info:
        """The bundle's numbers and the steps taken so far."""
        return info_of(self._info())

    def slots(self) -> list[SlotInfo]:
        """The state slots, in the manifest's order."""
        found = []
        for index in range(self._info().slots):
            slot = structs.sized(structs.SlotInfo)
            abi.call("zo_session_slot", self.handle, index, ctypes.byref(slot))
            found.append(slot_of(slot))
        return found

    def slot(self, name: str) -> SlotInfo:
        """The state slot with this name."""
        slot = structs.sized(structs.SlotInfo)
        abi.call("zo_session_find_slot", self.handle, name.encode(), ctypes.byref(slot))
        return slot_of(slot)

    def _info(self) -> structs.Info:
        info = structs.sized(structs.Info)
        abi.call("zo_session_info", self.handle, ctypes.byref(info))
        return info

    @property
    def run(self) -> Run:
        """The run as it is configured: at first the bundle's settings, then those of a state that is trained."""
        run = structs.sized(structs.Run)
        abi.call("zo_session_run", self.handle, ctypes.byref(run))
        return run_of(run)

    def configure(self, **changes: Any) -> Run:
        """Change fields of :class:`Run`, which are settings of ``train --set``, and return the run.

        Names are those of the fields, or the settings' own (``dpo.beta``).

        Raises:
            ConfigError: an unknown field or an impossible value.
            StateError: another seed than the state's. That other settings are not the run's is said by the next step.
        """
        known = [field.name for field in dataclasses.fields(Run)]
        fields = {name.replace(".", "_"): value for name, value in changes.items()}
        for name in fields:
            position("setting", name, known)
        chosen = dataclasses.replace(self.run, **fields)
        abi.call("zo_session_configure", self.handle, ctypes.byref(run_struct(chosen)))
        return self.run

    def step(self, dataset: Dataset, indices: Sequence[int]) -> Step:
        """Take one step on the examples ``indices``, in this order.

        Raises:
            DivergedError: the loss left its range; the session is back at the last good state.
            StateError: the record could not be written; the step has not happened.
        """
        chosen = (ctypes.c_uint64 * len(indices))(*indices)
        step = structs.sized(structs.Step)
        self._invoke(
            "zo_session_step",
            self.handle,
            dataset.handle,
            chosen,
            len(indices),
            ctypes.byref(step),
        )
        return Step(
            step.step,
            step.loss,
            step.lr,
            step.seconds,
            tuple(step.losses[: step.loss_count]),
            tuple(step.gradients[: step.gradient_count]),
        )

    def train(
        self,
        dataset: Dataset,
        steps: int,
        on_progress: OnProgress | None = None,
        *,
        validation: Validation | None = None,
        on_part: OnPart | None = None,
    ) -> None:
        """Train until the run has ``steps`` steps in total, or its validation's patience is over, and save.

        Ctrl-C ends the run after the current step, with the state saved; a second one ends the process.

        Args:
            on_part: told how many of the examples are done of an evaluation, and of what the reference model scores
                for ``loss=dpo`` before the first step.

        Raises:
            Cancelled: Ctrl-C, or a callback returned True.
            DivergedError: the loss left its range; the last good state stays.
            StateError: the state could not be written; the last good state stays.
        """

        def told(pointer: Any) -> bool | None:
            return on_progress is not None and on_progress(progress_of(pointer.contents))

        def found(pointer: Any) -> bool | None:
            call = None if validation is None else validation.on_evaluated
            return call is not None and call(evaluated_of(pointer.contents))

        with stoppable() as callback:
            options = structs.TrainOptions(
                struct_size=ctypes.sizeof(structs.TrainOptions),
                total_steps=steps,
                on_progress=callback(structs.ON_PROGRESS, told),
                on_evaluated=callback(structs.ON_EVALUATED, found),
                on_part=callback(structs.ON_PART, on_part),
            )
            if validation is not None:
                for name in ("every", "patience"):
                    value = getattr(validation, name)
                    setattr(options, name, 0 if value is None else at_least(1, name, value))
                options.keep = position("keep", validation.keep or "default", structs.KEEPS)
                options.held_out = validation.dataset.handle
            self._invoke(
                "zo_session_train_with", self.handle, dataset.handle, ctypes.byref(options)
            )

    @property
    def evaluations(self) -> list[StepEvaluation]:
        """What the run found on its held-out examples so far, by steps."""
        return evaluations("zo_session_evaluated", self.handle)

    def cancel(self) -> None:
        """End the :meth:`train` that runs in another thread: it finishes its step, saves and raises Cancelled.

        Likewise an :meth:`evaluate` or :meth:`generate`. Nothing happens after :meth:`close`.
        """
        self._beside("zo_session_cancel")

    def evaluate(self, dataset: Dataset, on_part: OnPart | None = None) -> Evaluation:
        """Evaluate the master weights, the pending update applied, with the configured loss.

        Args:
            on_part: told how many of the examples are done, some twenty times a second.

        Raises:
            Cancelled: Ctrl-C, :meth:`cancel`, or ``on_part`` returned True.
        """
        result = structs.sized(structs.Evaluation)
        with stoppable() as callback:
            self._invoke(
                *("zo_session_evaluate", self.handle, dataset.handle),
                *(callback(structs.ON_PART, on_part), None, ctypes.byref(result)),
            )
        return evaluation_of(result)

    def generate(
        self,
        prompt: str | Sequence[int] = (),
        *,
        messages: Sequence[tuple[str, str]] = (),
        max_tokens: int = 128,
        stop_tokens: Sequence[int] | None = None,
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
        untrained: bool = False,
        adapter: str | None = None,
        keep: bool = False,
        sliding: bool = False,
        on_token: OnToken | None = None,
        on_text: OnText | None = None,
    ) -> Generation:
        """Generate what follows a prompt, with the master weights, the pending update applied.

        Args:
            prompt: a text, or tokens, fewer than the bundle's ``generate.context``.
            messages: in place of it a conversation, roles and contents, that the model's chat template writes.
            max_tokens: that follow at most.
            stop_tokens: after which nothing follows; the bundle's where None.
            stop: strings before the first of which the text ends.
            sampling: the most likely token each time where None.
            untrained: with the slots as the bundle has them.
            adapter: the name of a loaded one, in place of what was trained.
            keep: keep the caches, so that a longer prompt that begins alike is read from there on.
            sliding: past the context go on over the last part of the tokens (docs/generate.md).
            on_token: called with each token. on_text: with pieces of text, none of which cuts a character.

        Raises:
            BundleError: the bundle has no programs that generate, or no tokenizer for a text; the message says why.
            ConfigError: a prompt or a number that is out of range, or no adapter of that name.
            DataError: a text that is no UTF-8, or a conversation that the template does not write.
        """
        call = GenerationCall(
            prompt,
            messages,
            max_tokens=max_tokens,
            stop_tokens=stop_tokens,
            stop=stop,
            sampling=sampling or Sampling(),
            untrained=untrained,
            adapter=adapter,
            keep=keep,
            sliding=sliding,
            on_token=on_token,
            on_text=on_text,
        )
        self._invoke(
            "zo_session_generate",
            self.handle,
            ctypes.byref(call.options),
            call.on_token,
            None,
            ctypes.byref(call.result),
        )
        return call.generation()

    def forget(self) -> None:
        """Free what :meth:`generate` keeps between calls: caches, and the tokenizer."""
        abi.call("zo_session_forget", self.handle)

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter in PEFT's form under a name, in place of one that has it, to generate with.

        Raises:
            StateError: it does not fit the bundle, or is damaged; nothing changes.
            ConfigError: the bundle has no adapters of PEFT's form, or the name is none.
        """
        abi.call("zo_session_load_adapter", self.handle, name.encode(), abi.path_bytes(folder))

    def write_adapter(self, name: str, slot: str, values: Any) -> None:
        """Give one slot of the adapter of this name, which is made where there is none, its values.

        Slots that were not given have the bundle's values; ``values`` are those of :meth:`write_slot`.
        """
        form, copied, count = self._given(slot, values)
        abi.call(
            "zo_session_write_adapter" + form,
            self.handle,
            name.encode(),
            slot.encode(),
            abi.address(copied),
            count,
        )

    def drop_adapter(self, name: str) -> None:
        """Free an adapter.

        Raises:
            ConfigError: there is none of this name.
        """
        abi.call("zo_session_drop_adapter", self.handle, name.encode())

    def export_adapter(
        self, path: Path, kind: str = "peft", *, outtype: str = "f32", replace: bool = False
    ) -> None:
        """Write what was trained, the pending update applied, as an adapter's files, whole or not at all.

        Args:
            path: the folder or file.
            kind: ``peft``, a folder for PEFT, or ``gguf``, a file for llama.cpp.
            outtype: of a GGUF file's numbers: ``f32``, ``f16`` or ``q8_0``.
            replace: what is at the path gives way.

        Raises:
            ConfigError: the bundle trains no adapter of floats, the path exists or cannot be written, or numbers are
                not finite or beyond the type.
            BundleError: the bundle has no names of llama.cpp for its layers; the message says why.
        """
        position("adapter format", kind, structs.ADAPTER_FORMATS)
        position("outtype", outtype, structs.OUTTYPES)
        options = structs.export_options(kind, outtype, replace=replace)
        abi.call(
            "zo_session_export_adapter",
            self.handle,
            ctypes.byref(options),
            abi.path_bytes(path),
        )

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the loaded adapters."""
        names: list[str] = []
        name = ctypes.c_char_p()
        with contextlib.suppress(ConfigError):  # beyond the last
            while True:
                abi.call("zo_session_adapter", self.handle, len(names), ctypes.byref(name))
                assert name.value is not None
                names.append(name.value.decode())
        return tuple(names)

    def read_slot(
        self, name: str, *, finished: bool = True, gradient: bool = False
    ) -> array.array[Any]:
        """A slot's values, row-major: float32, exact where the slot is float16, or what an integer slot has.

        Args:
            name: the slot.
            finished: with the pending update applied, as evaluation and export see it; else as the last
                step evaluated it.
            gradient: instead, the last step's gradient of the loss by the slot, before clipping.

        Raises:
            ConfigError: there is no such gradient: no step was taken, the slot is not trained, or the method
                has none.
        """
        which = structs.SLOT_FINISHED if finished else structs.SLOT_CURRENT
        form, values, count = self._buffer(name)
        abi.call(
            "zo_session_read_slot" + form,
            self.handle,
            name.encode(),
            structs.SLOT_GRADIENT if gradient else which,
            abi.address(values),
            count,
        )
        return values

    def write_slot(self, name: str, values: Any) -> None:
        """Replace a slot's initial values (an imported adapter), before the first step.

        Args:
            name: the slot.
            values: contiguous float32 values that offer a buffer (array, numpy), row-major; a float16 slot
                rounds them to nearest, ties to even. Of an integer slot: values of its dtype.

        Raises:
            ConfigError: another number of values, or a run that has begun.
        """
        form, copied, count = self._given(name, values)
        abi.call(
            "zo_session_write_slot" + form,
            self.handle,
            name.encode(),
            abi.address(copied),
            count,
        )

    def replay_slot(self, name: str, updates: int) -> array.array[Any]:
        """A slot as the initial values and the first ``updates`` records alone give it.

        Raises:
            ConfigError: more updates than the run has, or a first-order method, whose records do not have them.
        """
        form, values, count = self._buffer(name)
        abi.call(
            "zo_session_replay_slot" + form,
            self.handle,
            name.encode(),
            updates,
            abi.address(values),
            count,
        )
        return values

    def record(self, index: int) -> Record:
        """Record ``index`` of the trajectory log, 0 <= index < ``info.steps``."""
        gradients = (ctypes.c_float * self._info().queries)()
        record = structs.sized(structs.Record)
        abi.call("zo_session_record", self.handle, index, ctypes.byref(record), gradients)
        return Record(record.step, record.lr, record.eps, record.loss, tuple(gradients))

    def follow(self, records: Sequence[Record]) -> None:
        """Go on as if this session had taken these steps itself; no program runs.

        Slots, log and state folder become those of the session that took them, bit for bit, where both began with the
        same values and seed.

        Raises:
            ConfigError: records that training cannot have made; nothing has changed.
            StateError: the state could not be written; the steps before that stay.
        """
        given, gradients = record_structs(records, self._info().queries)
        abi.call("zo_session_follow", self.handle, given, gradients, len(records))

    def save(self) -> None:
        """Write a snapshot and sync the log.

        Raises:
            StateError: no state is attached, or it cannot be written.
        """
        abi.call("zo_session_save", self.handle)

    def _given(self, name: str, values: Any) -> tuple[str, array.array[Any], int]:
        """How calls that take a slot's values end, the values, and what such a call counts."""
        copied = array.array("B", memoryview(values).cast("B"))
        floats = self.slot(name).passed == "float32"
        return (
            "" if floats else "_bytes",
            copied,
            len(copied) // 4 if floats else len(copied),
        )

    def _buffer(self, name: str) -> tuple[str, array.array[Any], int]:
        """How calls that pass a slot's values end, room for them, and what such a call counts."""
        slot = self.slot(name)
        values = array.array(structs.FORMATS[structs.DTYPES.index(slot.passed)])
        values.frombytes(bytes(values.itemsize * math.prod(slot.shape)))
        if slot.passed == "float32":
            return "", values, len(values)
        return "_bytes", values, len(values) * values.itemsize

    def _invoke(self, function: str, *arguments: Any) -> None:
        """A call that may run programs: an exception of a Python engine is raised as itself."""
        if self._engine is not None:
            self._engine.raised = None
        try:
            abi.call(function, *arguments)
        except ZoExportError:
            if self._engine is not None and self._engine.raised is not None:
                raise self._engine.raised from None
            raise
