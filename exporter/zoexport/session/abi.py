"""ctypes binding of ``session.h`` and ``job.h``: functions, structs, callbacks and exceptions."""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import json
import math
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

from zoexport.core.errors import (
    BundleError,
    Cancelled,
    ConfigError,
    DataError,
    DivergedError,
    QuestionError,
    StateError,
    ZoExportError,
)
from zoexport.core.native import FIX, library_path
from zoexport.core.trust import Trust, Trusted

VERSION = 3
_OK = 0
_ERRORS: dict[int, type[ZoExportError]] = {
    1: ConfigError,
    2: BundleError,
    3: StateError,
    4: DataError,
    6: DivergedError,
    7: Cancelled,
    9: QuestionError,
}
FORMATS: dict[int, Literal["f", "q", "B", "H", "b", "I", "i"]] = {
    0: "f",
    1: "q",
    2: "B",
    3: "H",
    4: "b",
    5: "I",
    6: "H",
    7: "i",
}
"""Format of a view of each dtype of ``zo_tensor``; bfloat16 and float16 by their bits."""
DTYPES = {"float32": "f", "int64": "q", "uint8": "B", "int8": "b", "uint32": "I", "int32": "i"}
"""Format of the values of a state tensor by the dtype in which they pass."""
SLOT_CURRENT, SLOT_FINISHED, SLOT_GRADIENT = 0, 1, 2

# ---- structs and callbacks ------------------------------------------------------------------------------------------


class Error(Structure):
    """zo_error."""

    _fields_ = (
        ("code", c_int32),
        ("where", c_char * 512),
        ("found", c_char * 1024),
        ("expected", c_char * 512),
        ("fix", c_char * 512),
    )


class Tensor(Structure):
    """zo_tensor."""

    _fields_ = (
        ("name", c_char_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("shape", POINTER(c_int64)),
        ("data", c_void_p),
        ("bytes", c_size_t),
    )


RUN_PROGRAM = CFUNCTYPE(
    c_int32,
    c_void_p,
    c_char_p,
    POINTER(Tensor),
    c_size_t,
    POINTER(Tensor),
    c_size_t,
    c_void_p,
    c_size_t,
)


class Engine(Structure):
    """zo_engine."""

    _fields_ = (("user", c_void_p), ("run", RUN_PROGRAM))


class Candidate(Structure):
    """zo_candidate."""

    _fields_ = (("tokens", c_void_p), ("labels", c_void_p), ("length", c_size_t))


class Step(Structure):
    """zo_step."""

    _fields_ = (
        ("step", c_uint64),
        ("loss", c_double),
        ("learning_rate", c_double),
        ("seconds", c_double),
        ("losses", POINTER(c_double)),
        ("loss_count", c_size_t),
        ("gradients", POINTER(c_float)),
        ("gradient_count", c_size_t),
    )


class Progress(Structure):
    """zo_progress."""

    _fields_ = (
        ("step", c_uint64),
        ("total", c_uint64),
        ("loss", c_double),
        ("learning_rate", c_double),
        ("seconds", c_double),
        ("rss_bytes", c_uint64),
        ("anonymous_bytes", c_uint64),
        ("notice", c_char_p),
    )


class Record(Structure):
    """zo_record."""

    _fields_ = (("step", c_uint64), ("learning_rate", c_float), ("eps", c_float), ("loss", c_float))


class Conditions(Structure):
    """zo_conditions."""

    _fields_ = (
        ("heat", c_int32),
        ("charging", c_int32),
        ("celsius", c_double),
        ("battery", c_double),
        ("free_bytes", c_uint64),
        ("memory_bytes", c_uint64),
    )


ON_PROGRESS = CFUNCTYPE(c_int32, c_void_p, POINTER(Progress))
ON_PART = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64)
ON_JSON = CFUNCTYPE(c_int32, c_void_p, c_char_p)
ON_TOKEN = CFUNCTYPE(c_int32, c_void_p, c_int64)
ON_TEXT = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)
ON_CONDITIONS = CFUNCTYPE(None, c_void_p, POINTER(Conditions))
ON_CHANGED = CFUNCTYPE(None, c_void_p)


class TrainCallbacks(Structure):
    """zo_train_callbacks."""

    _fields_ = (
        ("user", c_void_p),
        ("on_progress", ON_PROGRESS),
        ("on_evaluation", ON_JSON),
        ("on_part", ON_PART),
    )


class JobHost(Structure):
    """zo_job_host."""

    _fields_ = (("user", c_void_p), ("conditions", ON_CONDITIONS), ("changed", ON_CHANGED))


# ---- functions ------------------------------------------------------------------------------------------------------

_ERROR = POINTER(Error)
_HANDLE = c_void_p
_TEXT = c_char_p
_OUT = POINTER(c_void_p)
"""A handle, or a JSON result."""
_MATRICES = POINTER(c_void_p)
_RNG = (c_uint64, c_uint32, c_uint32, c_uint32, c_uint64, c_uint64, c_void_p)
_VERBS: dict[str, tuple[object, ...]] = {
    "zo_options_check": (_TEXT, _TEXT),
    "zo_bundle_unpack": (_TEXT, _TEXT, _TEXT, ON_PART, c_void_p),
    "zo_bundle_manifest": (_TEXT, _TEXT, _OUT),
    "zo_session_open": (_TEXT, _TEXT, POINTER(Engine), _OUT),
    "zo_session_info": (_HANDLE, _OUT),
    "zo_session_slots": (_HANDLE, _OUT),
    "zo_session_costs": (_HANDLE, _OUT),
    "zo_session_attach": (_HANDLE, _TEXT, _TEXT),
    "zo_state_describe": (_TEXT, _OUT),
    "zo_vulkan_devices": (_OUT,),
    "zo_session_settings": (_HANDLE, _OUT),
    "zo_session_configure": (_HANDLE, _TEXT),
    "zo_dataset_add": (_HANDLE, POINTER(Candidate), c_size_t, c_size_t),
    "zo_dataset_digest": (_HANDLE, _TEXT),
    "zo_dataset_load": (_HANDLE, _TEXT),
    "zo_dataset_write": (_HANDLE, _TEXT),
    "zo_dataset_read": (_HANDLE, _HANDLE, _TEXT, _TEXT, ON_PART, c_void_p, _OUT),
    "zo_session_step": (_HANDLE, _HANDLE, POINTER(c_uint64), c_size_t, POINTER(Step)),
    "zo_session_train": (_HANDLE, _HANDLE, _HANDLE, _TEXT, POINTER(TrainCallbacks)),
    "zo_session_evaluations": (_HANDLE, _OUT),
    "zo_session_evaluate": (_HANDLE, _HANDLE, ON_PART, c_void_p, _OUT),
    "zo_session_score": (_HANDLE, _HANDLE, ON_PART, c_void_p, _OUT),
    "zo_session_generate": (_HANDLE, _TEXT, ON_TOKEN, ON_TEXT, c_void_p, _OUT),
    "zo_session_forget": (_HANDLE,),
    "zo_session_load_adapter": (_HANDLE, _TEXT, _TEXT),
    "zo_session_write_adapter": (_HANDLE, _TEXT, _TEXT, c_void_p, c_size_t),
    "zo_session_drop_adapter": (_HANDLE, _TEXT),
    "zo_session_export_adapter": (_HANDLE, _TEXT, _TEXT),
    "zo_adapter_write": (_TEXT, _MATRICES, c_size_t, _TEXT),
    "zo_adapter_read": (_TEXT, _TEXT, _MATRICES, c_size_t),
    "zo_session_read_slot": (_HANDLE, _TEXT, c_int32, c_void_p, c_size_t),
    "zo_session_write_slot": (_HANDLE, _TEXT, c_void_p, c_size_t),
    "zo_session_replay_slot": (_HANDLE, _TEXT, c_uint64, c_void_p, c_size_t),
    "zo_session_record": (_HANDLE, c_uint64, POINTER(Record), POINTER(c_float)),
    "zo_session_follow": (_HANDLE, POINTER(Record), POINTER(c_float), c_size_t),
    "zo_session_save": (_HANDLE,),
    "zo_tokenizer_open": (_TEXT, _TEXT, _OUT),
    "zo_tokenizer_parse": (_TEXT, _TEXT, _OUT),
    "zo_tokenizer_encode": (_HANDLE, _TEXT, c_size_t, c_int32, c_void_p, POINTER(c_size_t)),
    "zo_tokenizer_decode": (_HANDLE, c_void_p, c_size_t, c_int32, _TEXT, POINTER(c_size_t)),
    "zo_tokenizer_chat": (_HANDLE, _TEXT, _OUT),
    "zo_examples_read": (_HANDLE, _TEXT, _TEXT, ON_JSON, c_void_p),
    "zo_prompts_read": (_TEXT, ON_JSON, c_void_p),
    "zo_memory_usage": (_OUT,),
    "zo_typed_write": (_TEXT, _TEXT, c_int32),
    "zo_job_open": (_TEXT, _TEXT, POINTER(Engine), _OUT),
    "zo_job_start": (_HANDLE, _TEXT),
    "zo_job_run": (_HANDLE, _TEXT, POINTER(JobHost)),
    "zo_job_cancel": (_HANDLE,),
    "zo_job_discard": (_HANDLE,),
    "zo_job_view": (_HANDLE, _OUT),
    "zo_job_losses": (_HANDLE, _OUT),
    "zo_job_request": (_HANDLE, _OUT),
    "zo_job_session": (_HANDLE, _OUT),
}
"""Verbs: each takes a zo_error behind these arguments and returns a zo_status."""
_OTHERS: dict[str, tuple[object, tuple[object, ...]]] = {
    "zo_free": (None, (c_void_p,)),
    "zo_session_close": (None, (_HANDLE,)),
    "zo_session_cancel": (None, (_HANDLE,)),
    "zo_dataset_new": (c_void_p, ()),
    "zo_dataset_free": (None, (_HANDLE,)),
    "zo_dataset_size": (c_uint64, (_HANDLE,)),
    "zo_tokenizer_close": (None, (_HANDLE,)),
    "zo_job_close": (None, (_HANDLE,)),
    "zo_job_pause": (None, (_HANDLE, _TEXT)),
    "zo_job_problem": (None, (_HANDLE, _ERROR)),
    "zo_rng_normals": (None, _RNG),
    "zo_rng_signs": (None, _RNG),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Load the session's library once: a second copy would register its operators again.

    Raises:
        ZoExportError: the library is missing, cannot be loaded, or has another version.
    """
    return load(library_path())


def load(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises:
        ZoExportError: the library cannot be loaded, or has another version.
    """
    try:
        loaded = ctypes.CDLL(str(path))
        version = loaded.zo_abi_version()
    except (OSError, AttributeError) as error:
        raise ZoExportError(
            str(path),
            found=str(error),
            expected="the native library, built for this environment",
            fix=FIX,
        ) from error
    if version != VERSION:
        raise ZoExportError(
            str(path),
            found=f"version {version} of its interface",
            expected=f"version {VERSION}",
            fix=FIX,
        )
    for name, arguments in _VERBS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = c_int32, (*arguments, _ERROR)
    for name, (result, arguments) in _OTHERS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def call(function: str, *arguments: Any) -> None:
    """Call a library function; raise its error as an exception."""
    error = Error()
    if getattr(library(), function)(*arguments, ctypes.byref(error)) != _OK:
        raise exception(error)


def result(function: str, *arguments: Any) -> Any:
    """Call a function whose last argument returns JSON, and return the parsed result."""
    return json.loads(result_text(function, *arguments))


def result_text(function: str, *arguments: Any) -> bytes:
    """Call a function whose last argument returns JSON, and return the unparsed JSON."""
    text = c_void_p()
    call(function, *arguments, ctypes.byref(text))
    try:
        return ctypes.string_at(text.value or 0)
    finally:
        library().zo_free(text)


def handle(function: str, *arguments: Any) -> int:
    """Call a function whose last argument returns a handle, and return the handle."""
    made = c_void_p()
    call(function, *arguments, ctypes.byref(made))
    assert made.value is not None
    return made.value


def exception(error: Error) -> ZoExportError:
    """Convert an error to the matching exception."""
    where, found, expected, fix = (
        bytes(getattr(error, part)).decode("utf-8", "replace")
        for part in ("where", "found", "expected", "fix")
    )
    return _ERRORS.get(error.code, ZoExportError)(where, found=found, expected=expected, fix=fix)


def options(given: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """Serialize options for the library; None values are omitted.

    Raises:
        ConfigError: a number is not finite. DataError: an unpaired surrogate, or a non-UTF-8 path.
    """
    if isinstance(given, Mapping):
        given = {key: value for key, value in given.items() if value is not None}
        for key, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(
                    f"option {key!r}",
                    found=str(value),
                    expected="a finite number",
                    fix="Correct it.",
                )
    text = json.dumps(given, ensure_ascii=False, default=_plain)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            "text",
            found=f"{text[error.start]!r}, which is no character of UTF-8",
            expected="text that UTF-8 can encode",
            fix="Correct the text or the path.",
        ) from None


def _plain(value: Any) -> Any:
    """Convert paths and numbers of other libraries to JSON types."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if hasattr(value, "item") else list(value)


def open_options(
    trust: Trusted,
    *,
    threads: int = 0,
    verify: bool = True,
    engine_name: str | None = None,
    cache: str | Path | None = None,
) -> dict[str, Any]:
    """Return the options of "open"; see :meth:`zoexport.session.Session.open`."""
    return {
        "threads": threads,
        "verify": verify,
        "engine": engine_name,
        "cache": None if cache is None else os.fspath(cache),
        "trusted_keys": trusted_keys(trust),
    }


def trusted_keys(trust: Trusted) -> list[str] | None:
    """Return the option ``trusted_keys``; None accepts any bundle."""
    return list(Trust.of(trust).keys) or None


def address(values: array.array[Any]) -> int:
    """Return the address of an array's values, valid while the array exists with this size."""
    return values.buffer_info()[0]


def path_bytes(path: Path) -> bytes:
    """Encode a path for the library."""
    return os.fsencode(path)


# ---- handles --------------------------------------------------------------------------------------------------------

_Self = TypeVar("_Self", bound="Closing")


class Closing(ABC):
    """An object that a ``with`` statement closes."""

    @abstractmethod
    def close(self) -> None:
        """Free the object; later calls raise. Closing twice is allowed."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Handle(Closing):
    """Handle of an object of the library.

    Args:
        handle: the library's handle.
        what: name of the object in messages.
        free: the function that frees it.
    """

    def __init__(self, handle: int | None, *, what: str, free: str) -> None:
        self._handle = handle
        self._what = what
        self._free = free
        # Held while the handle is freed, and by calls that may run concurrently with another.
        self._gate = threading.Lock()

    @property
    def handle(self) -> int:
        """The library's handle.

        Raises:
            ZoExportError: the object is closed.
        """
        if not self._handle:
            raise ZoExportError(
                self._what,
                found="a closed one",
                expected="an open one",
                fix=f"Open the {self._what} again.",
            )
        return self._handle

    def _beside(self, function: str, *arguments: Any) -> None:
        """Call a function that may run concurrently with others; do nothing after :meth:`close`."""
        with self._gate:
            if self._handle:
                getattr(library(), function)(self._handle, *arguments)

    def close(self) -> None:
        """Free the object; later calls raise. Closing twice is allowed."""
        with self._gate:
            handle, self._handle = self._handle, None
        if handle:
            getattr(library(), self._free)(handle)


# ---- callbacks ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets. A second Ctrl-C has its previous effect."""
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
    """Yield a function that creates callbacks for one library call, which Ctrl-C cancels.

    Its arguments are the callback's C type and a Python function that takes the arguments without
    the host's pointer. If that function returns True or raises, the call is cancelled.

    Raises:
        Cancelled: the call was cancelled. An exception of a callback is raised instead.
    """
    raised: list[BaseException] = []
    with interrupts() as interrupted:

        def callback(kind: Any, told: Callable[..., bool | None] | None) -> Any:
            def answer(_user: int, *given: Any) -> int:
                try:
                    if told is not None and told(*given):
                        return 1
                except BaseException as error:  # cannot pass through C: kept until the call returns
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
