"""Python binding of the C++ session, ``runtime_ops/include/zoexport/session.h``.

The training loop is the same as on phones; this module computes nothing. To save memory it imports
neither torch nor numpy: tokens are sequences of integers, state tensors are arrays of float32 or of
their own integers (``numpy.frombuffer`` and ``torch.frombuffer`` read them in place).
"""

from __future__ import annotations

import array
import ctypes
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core import qnn
from zoexport.core.errors import BundleError, ConfigError, ZoExportError
from zoexport.core.files import open_within
from zoexport.core.manifest import FILE
from zoexport.core.trust import Trusted
from zoexport.session import abi
from zoexport.session.data import Dataset, Validation
from zoexport.session.types import (
    Engine,
    EngineCallback,
    Evaluation,
    Generation,
    Info,
    Memory,
    OnPart,
    OnProgress,
    OnText,
    OnToken,
    Record,
    Sampling,
    Score,
    SlotInfo,
    Step,
    StepEvaluation,
    StepProgress,
)

_QNN = "QnnBackend"


def bring_backends(bundle: Path, trust: Trusted, engine_name: str | None = None) -> None:
    """Load the libraries of a bundle's delegates that the session's library cannot find itself.

    Raises:
        ZoExportError: one is missing, and there is no fallback or ``engine_name`` excludes it.
    """
    try:
        with open_within(bundle, FILE) as file:
            if _QNN.encode() not in file.read():
                return  # most bundles: only the session reads the manifest
        # Load the session's library first: QNN includes its own C++ library.
        manifest = json.loads(manifest_text(bundle, trust))
    except (OSError, BundleError):
        return  # opening reports what is wrong with the bundle
    if _QNN not in manifest.get("backends", ()) or engine_name not in (None, manifest["engine"]):
        return
    try:
        qnn.load()
    except ZoExportError:
        if engine_name is not None or "fallback" not in manifest:
            raise


class Session(abi.Handle):
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
        trust: Trusted = None,
    ) -> Session:
        """Open a bundle.

        Args:
            bundle: folder of the bundle.
            threads: number of threads of the engine; 0: the engine's default.
            verify: whether to check the hashes of files before use; sizes are always checked.
            engine: Python engine that runs the programs instead of the manifest's engine.
            engine_name: the manifest's engine or its fallback. None: the engine, else the fallback.
            cache: folder of the GPU shader cache; None: the user's cache; "": no cache.
            trust: public keys, as files or lines; one of them must have signed the bundle. None:
                those of the environment (:mod:`zoexport.core.trust`).

        Raises:
            BundleError: the bundle is missing, altered, of another version or not trusted.
            ZoExportError: a required library is missing.
        """
        callback = EngineCallback(engine) if engine is not None else None
        given = abi.open_options(
            trust, threads=threads, verify=verify, engine_name=engine_name, cache=cache
        )
        if engine is None:
            bring_backends(bundle, trust, engine_name)
        opened = abi.handle(
            "zo_session_open",
            abi.path_bytes(bundle),
            abi.options(given),
            ctypes.byref(callback.table) if callback is not None else None,
        )
        return cls(opened, callback)

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
        """Attach a run directory right after opening; without one, the run is not stored.

        The settings of a run that has started become :attr:`settings`.

        Args:
            state: run directory to resume or to create.
            seed: seed of a new state (None: the bundle's); must match an existing state.
            read_only: require an existing state, and neither lock nor write it.
            recover: continue from the last good record of a damaged log, and keep a copy of it.
            change_settings: allow steps with other settings or examples than the run's.
            last: read the weights of the last step, even if the run keeps those of its best evaluation.

        Raises:
            StateError: the state is missing, damaged, locked, or has another bundle or seed.
        """
        given = {
            "seed": seed,
            "read_only": read_only,
            "recover": recover,
            "change_settings": change_settings,
            "last": last,
        }
        abi.call("zo_session_attach", self.handle, abi.path_bytes(state), abi.options(given))

    @property
    def info(self) -> Info:
        """Properties of the bundle, and the steps taken so far."""
        return Info(**abi.result("zo_session_info", self.handle))

    def slots(self) -> list[SlotInfo]:
        """The state tensors, in the manifest's order."""
        found = abi.result("zo_session_slots", self.handle)
        return [SlotInfo(**{**one, "shape": tuple(one["shape"])}) for one in found]

    def slot(self, name: str) -> SlotInfo:
        """The state tensor of this name."""
        found = self._slots.get(name)
        if found is None:
            raise ConfigError(
                f"slot {name}",
                found="no such slot",
                expected="a name listed under state in the manifest",
                fix="Correct the name.",
            )
        return found

    @functools.cached_property
    def _slots(self) -> dict[str, SlotInfo]:
        """State tensors by name, listed once."""
        return {one.name: one for one in self.slots()}

    @property
    def costs(self) -> dict[str, list[dict[str, Any]]]:
        """Calls and seconds of ``programs``, and dispatches of ``kernels`` if the engine counts them."""
        found: dict[str, list[dict[str, Any]]] = abi.result("zo_session_costs", self.handle)
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the run by key: the bundle's, then those of the attached state, then the configured ones."""
        found: dict[str, Any] = abi.result("zo_session_settings", self.handle)
        return found

    def configure(self, **changes: Any) -> dict[str, Any]:
        """Change settings of the run, by key as in ``train --set``, and return all of them.

        ``total_steps`` is the length of the schedule for :meth:`step`.

        Raises:
            ConfigError: an unknown setting, or an impossible value.
            StateError: another seed than the state's. Other settings than the run's are refused by the next step.
        """
        abi.call("zo_session_configure", self.handle, abi.options(changes))
        return self.settings

    def step(self, dataset: Dataset, indices: Sequence[int]) -> Step:
        """Take one step on the examples ``indices``, in this order.

        Raises:
            DivergedError: the loss left its range; the session is back at the last good state.
            StateError: the record could not be written; the step has not happened.
        """
        chosen = (ctypes.c_uint64 * len(indices))(*indices)
        step = abi.Step()
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
            step.learning_rate,
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
        """Train until the run has ``steps`` steps in total or patience ends it, and save.

        Ctrl-C ends the run after the current step, with the state saved; a second one ends the process.

        Args:
            on_part: called with the number of examples done, during evaluations and while the
                reference model scores the examples for ``loss=dpo`` before the first step.

        Raises:
            Cancelled: Ctrl-C, or a callback returned True.
            DivergedError: the loss left its range; the last good state stays.
            StateError: the state could not be written; the last good state stays.
        """

        def told(pointer: Any) -> bool | None:
            return on_progress is not None and on_progress(_progress(pointer.contents))

        def found(text: bytes) -> bool | None:
            call = None if validation is None else validation.on_evaluated
            return call is not None and call(StepEvaluation(**json.loads(text)))

        given: dict[str, Any] = {"steps": steps}
        held_out = None
        if validation is not None:
            given |= {"eval_every": validation.every, "patience": validation.patience}
            given["keep"] = validation.keep
            held_out = validation.dataset.handle
        with abi.stoppable() as callback:
            callbacks = abi.TrainCallbacks(
                on_progress=callback(abi.ON_PROGRESS, told),
                on_evaluation=callback(abi.ON_JSON, found),
                on_part=callback(abi.ON_PART, on_part),
            )
            self._invoke(
                *("zo_session_train", self.handle, dataset.handle, held_out),
                *(abi.options(given), ctypes.byref(callbacks)),
            )

    @property
    def evaluations(self) -> list[StepEvaluation]:
        """Evaluations of the run on its validation examples, by steps."""
        return [StepEvaluation(**one) for one in abi.result("zo_session_evaluations", self.handle)]

    def cancel(self) -> None:
        """Stop :meth:`train` in another thread: it finishes its step, saves and raises Cancelled.

        Also stops :meth:`evaluate` and :meth:`generate`. Does nothing after :meth:`close`.
        """
        self._beside("zo_session_cancel")

    def evaluate(self, dataset: Dataset, on_part: OnPart | None = None) -> Evaluation:
        """Evaluate the master weights, including the pending update, with the configured loss.

        Args:
            on_part: called with the number of examples done, about twenty times a second.

        Raises:
            Cancelled: Ctrl-C, :meth:`cancel`, or ``on_part`` returned True.
        """
        with abi.stoppable() as callback:
            found = self._invoke(
                *("zo_session_evaluate", self.handle, dataset.handle),
                *(callback(abi.ON_PART, on_part), None),
                result=True,
            )
        return Evaluation(**found)

    def score(self, dataset: Dataset, on_part: OnPart | None = None) -> list[list[Score]]:
        """Return the log-likelihood of every candidate of each example.

        The master weights score, including the pending update. The configured loss has no effect.

        Args:
            on_part: called with the number of examples done, about twenty times a second.

        Raises:
            DataError: the dataset is empty, or does not fit the bundle.
            Cancelled: Ctrl-C, :meth:`cancel`, or ``on_part`` returned True.
        """
        with abi.stoppable() as callback:
            found = self._invoke(
                *("zo_session_score", self.handle, dataset.handle),
                *(callback(abi.ON_PART, on_part), None),
                result=True,
            )
        return [
            [
                Score(
                    math.nan if one["logprob"] is None else one["logprob"],
                    one["argmax"] == one["labels"],
                )
                for one in example
            ]
            for example in found
        ]

    def generate(
        self,
        prompt: str | Sequence[int] = (),
        *,
        messages: Sequence[Mapping[str, Any]] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        max_new_tokens: int = 128,
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
        """Continue a prompt with the trained weights, including the pending update.

        Args:
            prompt: a text, or tokens, fewer than the bundle's ``generate.context``.
            messages: a conversation instead: ``{"role", "content"}`` and other template keys.
            tools: functions that the assistant can call in it, as JSON schemas.
            max_new_tokens: maximum number of generated tokens.
            stop_tokens: tokens that end the text; None: the bundle's.
            stop: strings that end the text; it excludes the stop string.
            sampling: None: greedy decoding.
            untrained: use the bundle's own weights.
            adapter: name of a loaded adapter to use instead of the trained weights.
            keep: keep the caches, to continue from a common prefix of the next prompt.
            sliding: continue past the context with the last part of the tokens (docs/export.md).
            on_token: called with each token. on_text: called with chunks of text.

        Raises:
            BundleError: the bundle has no programs for generation, or no tokenizer for a text.
            ConfigError: a prompt or a number is out of range, or there is no such adapter.
            DataError: a text is not UTF-8, or the template refuses the conversation.
        """
        given: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "stop": list(stop) or None,
            "untrained": untrained,
            "adapter": adapter,
            "keep": keep,
            "sliding": sliding,
            **dataclasses.asdict(sampling or Sampling()),
        }
        if stop_tokens is not None:
            given["stop_tokens"] = list(stop_tokens)
        if isinstance(prompt, str):
            given["prompt"] = prompt
        elif len(prompt) > 0:
            given["tokens"] = list(prompt)
        if messages:
            given |= {"messages": list(messages), "tools": list(tools) or None}
        tokens: list[int] = []
        raised: list[BaseException] = []

        def safely(action: Callable[[Any], bool | None] | None, value: Any) -> int:
            try:
                return int(bool(action is not None and action(value)))
            except BaseException as error:  # cannot pass through C: kept until the call returns
                raised.append(error)
                return 1

        def take(_user: int, token: int) -> int:
            tokens.append(token)
            return safely(on_token, token)

        def show(_user: int, text: int, size: int) -> int:
            return safely(on_text, ctypes.string_at(text, size).decode())

        made = self._invoke(
            *("zo_session_generate", self.handle, abi.options(given), abi.ON_TOKEN(take)),
            *(abi.ON_TEXT() if on_text is None else abi.ON_TEXT(show), None),
            result=True,
        )
        if raised:
            raise raised[0]
        return Generation(**{**made, "tokens": tuple(tokens)})

    def forget(self) -> None:
        """Free what :meth:`generate` keeps between calls: caches, and the tokenizer."""
        abi.call("zo_session_forget", self.handle)

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load a PEFT adapter for generation under a name; replace an adapter with that name.

        Raises:
            StateError: the adapter does not fit the bundle, or is damaged; nothing changes.
            ConfigError: the bundle has no adapters in PEFT's format, or the name is invalid.
        """
        abi.call("zo_session_load_adapter", self.handle, name.encode(), abi.path_bytes(folder))

    def write_adapter(self, name: str, slot: str, values: Any) -> None:
        """Set one tensor of an adapter, and create the adapter if needed.

        Tensors that are not set have the bundle's values. For ``values`` see :meth:`write_slot`.
        """
        given = array.array("B", memoryview(values).cast("B"))
        abi.call(
            *("zo_session_write_adapter", self.handle, name.encode(), slot.encode()),
            *(abi.address(given), len(given)),
        )

    def drop_adapter(self, name: str) -> None:
        """Free an adapter.

        Raises:
            ConfigError: no adapter has this name.
        """
        abi.call("zo_session_drop_adapter", self.handle, name.encode())

    def export_adapter(
        self, path: Path, kind: str = "peft", *, outtype: str = "f32", replace: bool = False
    ) -> None:
        """Write the trained adapter, including the pending update, atomically.

        Args:
            path: folder or file to write.
            kind: ``peft``, a folder for PEFT, or ``gguf``, a file for llama.cpp.
            outtype: data type of a GGUF file: ``f32``, ``f16`` or ``q8_0``.
            replace: replace an existing path.

        Raises:
            ConfigError: the bundle trains no float adapter, the path exists or cannot be written,
                or a value is not finite or out of the type's range.
            BundleError: the bundle has no llama.cpp names for its layers; the message has a reason.
        """
        given = {"format": kind, "outtype": outtype, "replace": replace}
        abi.call("zo_session_export_adapter", self.handle, abi.options(given), abi.path_bytes(path))

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the loaded adapters."""
        return tuple(self.info.adapters)

    def read_slot(
        self, name: str, *, finished: bool = True, gradient: bool = False
    ) -> array.array[Any]:
        """Return the values of a state tensor, row-major: float32 for floats, else its own dtype.

        Args:
            name: the state tensor.
            finished: include the pending update, like evaluation and export; else the values that
                the last step evaluated.
            gradient: return the last step's gradient of the loss instead, before clipping.

        Raises:
            ConfigError: there is no gradient: no step was taken, the tensor is not trained, or the
                method has no gradients.
        """
        which = abi.SLOT_FINISHED if finished else abi.SLOT_CURRENT
        values = self._buffer(name)
        abi.call(
            *("zo_session_read_slot", self.handle, name.encode()),
            *(abi.SLOT_GRADIENT if gradient else which, *_room(values)),
        )
        return values

    def write_slot(self, name: str, values: Any) -> None:
        """Replace a state tensor's initial values (an imported adapter), before the first step.

        Args:
            name: the state tensor.
            values: contiguous row-major float32 buffer (array, numpy); a float16 tensor rounds to
                nearest, ties to even. For an integer tensor: values of its dtype.

        Raises:
            ConfigError: wrong number of values, or the run has already started.
        """
        given = array.array("B", memoryview(values).cast("B"))
        abi.call("zo_session_write_slot", self.handle, name.encode(), *_room(given))

    def replay_slot(self, name: str, updates: int) -> array.array[Any]:
        """Replay a state tensor from its initial values and the first ``updates`` records alone.

        Raises:
            ConfigError: more updates than the run has, or a first-order method (no update records).
        """
        values = self._buffer(name)
        abi.call("zo_session_replay_slot", self.handle, name.encode(), updates, *_room(values))
        return values

    def record(self, index: int) -> Record:
        """Return record ``index`` of the trajectory log, 0 <= index < ``info.steps``."""
        gradients = (ctypes.c_float * self._queries)()
        record = abi.Record()
        abi.call("zo_session_record", self.handle, index, ctypes.byref(record), gradients)
        return Record(record.step, record.learning_rate, record.eps, record.loss, tuple(gradients))

    def follow(self, records: Sequence[Record]) -> None:
        """Apply recorded steps as if this session had taken them; no program runs.

        Tensors, log and state folder become those of the session that took them, bit for bit, if both began with the
        same values and seed.

        Raises:
            ConfigError: training cannot have produced these records; nothing changes.
            StateError: the state could not be written; earlier steps stay.
        """
        for record in records:
            if record.step < 0 or len(record.gradients) != self._queries:
                raise ConfigError(
                    f"record {record.step}",
                    found=f"{len(record.gradients)} projected gradients",
                    expected=f"{self._queries}, and a step of at least 0",
                    fix="Pass the records of a run of this bundle.",
                )
        given = (abi.Record * len(records))(
            *(abi.Record(one.step, one.learning_rate, one.eps, one.loss) for one in records)
        )
        numbers = [gradient for record in records for gradient in record.gradients]
        gradients = (ctypes.c_float * len(numbers))(*numbers)
        abi.call("zo_session_follow", self.handle, given, gradients, len(records))

    def save(self) -> None:
        """Write a snapshot and sync the log.

        Raises:
            StateError: no state is attached, or it cannot be written.
        """
        abi.call("zo_session_save", self.handle)

    def _buffer(self, name: str) -> array.array[Any]:
        """Return a zeroed array for the values of a state tensor."""
        slot = self.slot(name)
        values = array.array(abi.DTYPES[slot.passed])
        values.frombytes(bytes(values.itemsize * math.prod(slot.shape)))
        return values

    @functools.cached_property
    def _queries(self) -> int:
        return self.info.num_queries

    def _invoke(self, function: str, *arguments: Any, result: bool = False) -> Any:
        """Call a function that may run programs; re-raise the exception of a Python engine."""
        if self._engine is not None:
            self._engine.raised = None
        try:
            return (abi.result if result else abi.call)(function, *arguments)
        except ZoExportError:
            if self._engine is not None and self._engine.raised is not None:
                raise self._engine.raised from None
            raise


def _room(values: array.array[Any]) -> tuple[int, int]:
    """Return an array's address and its size in bytes."""
    return abi.address(values), len(values) * values.itemsize


def _progress(now: abi.Progress) -> StepProgress:
    values = {name: getattr(now, name) for name, *_ in abi.Progress._fields_}
    return StepProgress(**{**values, "notice": (now.notice or b"").decode()})


# ---- what needs no session ------------------------------------------------------------------------------------------


def abi_version() -> int:
    """Return the version of the library's interface.

    Raises:
        ZoExportError: the library is missing, cannot be loaded, or has another version.
    """
    return int(abi.library().zo_abi_version())


def memory_usage() -> Memory:
    """Return the memory of this process now, and its highest resident size so far."""
    return Memory(**abi.result("zo_memory_usage"))


def manifest_text(bundle: Path, trust: Trusted) -> bytes:
    """Return a bundle's ``manifest.json`` after the library checked it.

    Raises:
        BundleError: the bundle is missing or has no trusted signature, or its manifest is damaged
            or has a newer schema.
    """
    options = {"trusted_keys": abi.trusted_keys(trust)}
    return abi.result_text("zo_bundle_manifest", abi.path_bytes(bundle), abi.options(options))


def describe_state(state: Path) -> dict[str, Any]:
    """Describe a state folder, as docs/formats.md lists it, without changing it.

    Raises:
        StateError: the state is missing, or damaged beyond its log.
    """
    found: dict[str, Any] = abi.result("zo_state_describe", abi.path_bytes(state))
    return found


def vulkan_devices() -> list[dict[str, str]]:
    """List the Vulkan devices: name, kind, version, and why a device cannot run programs, or "".

    Raises:
        ZoExportError: Vulkan is not available, or the library was built without the engine.
    """
    found: list[dict[str, str]] = abi.result("zo_vulkan_devices")
    return found


def normals(seed: int, *, tensor_id: int, query: int, step: int, count: int) -> array.array[float]:
    """Return the first ``count`` normals of a perturbation, from the runtime's own generator (docs/noise.md)."""
    values = array.array("f", bytes(4 * count))
    abi.library().zo_rng_normals(seed, tensor_id, query, step, 0, count, abi.address(values))
    return values


def signs(seed: int, *, tensor_id: int, query: int, step: int, count: int) -> array.array[float]:
    """Return the first ``count`` Rademacher signs of a perturbation, 1 or -1."""
    values = array.array("f", bytes(4 * count))
    abi.library().zo_rng_signs(seed, tensor_id, query, step, 0, count, abi.address(values))
    return values
