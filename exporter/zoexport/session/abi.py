"""The session's library and its functions, as ``session.h`` and ``job.h`` declare them; errors as exceptions."""

from __future__ import annotations

import array
import ctypes
import functools
import os
from ctypes import (
    POINTER,
    c_char_p,
    c_float,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

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
from zoexport.session import structs

VERSION = 2
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


_ERROR = POINTER(structs.Error)
_HANDLE = c_void_p
_RNG = (c_uint64, c_uint32, c_uint32, c_uint32, c_uint64, c_uint64, c_void_p)
#: Verbs: every one ends in a zo_error and returns a zo_status.
_VERBS: dict[str, tuple[object, ...]] = {
    "zo_session_open": (c_char_p, POINTER(structs.OpenOptions), POINTER(c_void_p)),
    "zo_session_info": (_HANDLE, POINTER(structs.Info)),
    "zo_session_slot": (_HANDLE, c_uint32, POINTER(structs.SlotInfo)),
    "zo_session_find_slot": (_HANDLE, c_char_p, POINTER(structs.SlotInfo)),
    "zo_session_attach": (_HANDLE, c_char_p, c_int32, POINTER(c_uint64)),
    "zo_session_attach_with": (_HANDLE, c_char_p, POINTER(structs.AttachOptions)),
    "zo_state_describe": (c_char_p, c_char_p, POINTER(c_size_t)),
    "zo_session_run": (_HANDLE, POINTER(structs.Run)),
    "zo_session_configure": (_HANDLE, POINTER(structs.Run)),
    "zo_session_step": (_HANDLE, _HANDLE, POINTER(c_uint64), c_size_t, POINTER(structs.Step)),
    "zo_session_train": (_HANDLE, _HANDLE, c_uint64, structs.ON_PROGRESS, c_void_p),
    "zo_session_train_with": (_HANDLE, _HANDLE, POINTER(structs.TrainOptions)),
    "zo_session_evaluated": (_HANDLE, c_uint32, POINTER(structs.Evaluated)),
    "zo_session_evaluate": (
        _HANDLE,
        _HANDLE,
        structs.ON_PART,
        c_void_p,
        POINTER(structs.Evaluation),
    ),
    "zo_session_generate": (
        _HANDLE,
        POINTER(structs.GenerateOptions),
        structs.ON_TOKEN,
        c_void_p,
        POINTER(structs.Generation),
    ),
    "zo_session_forget": (_HANDLE,),
    "zo_session_load_adapter": (_HANDLE, c_char_p, c_char_p),
    "zo_session_write_adapter": (_HANDLE, c_char_p, c_char_p, c_void_p, c_size_t),
    "zo_session_write_adapter_bytes": (_HANDLE, c_char_p, c_char_p, c_void_p, c_size_t),
    "zo_session_drop_adapter": (_HANDLE, c_char_p),
    "zo_session_adapter": (_HANDLE, c_uint32, POINTER(c_char_p)),
    "zo_session_export_adapter": (_HANDLE, POINTER(structs.ExportOptions), c_char_p),
    "zo_adapter_read": (c_char_p, c_char_p, POINTER(structs.AdapterRoom), c_size_t),
    "zo_adapter_write": (POINTER(structs.Adapter), POINTER(structs.ExportOptions), c_char_p),
    "zo_session_read_slot": (_HANDLE, c_char_p, c_int32, c_void_p, c_size_t),
    "zo_session_write_slot": (_HANDLE, c_char_p, c_void_p, c_size_t),
    "zo_session_replay_slot": (_HANDLE, c_char_p, c_uint64, c_void_p, c_size_t),
    "zo_session_read_slot_bytes": (_HANDLE, c_char_p, c_int32, c_void_p, c_size_t),
    "zo_session_write_slot_bytes": (_HANDLE, c_char_p, c_void_p, c_size_t),
    "zo_session_replay_slot_bytes": (_HANDLE, c_char_p, c_uint64, c_void_p, c_size_t),
    "zo_session_record": (_HANDLE, c_uint64, POINTER(structs.Record), POINTER(c_float)),
    "zo_session_follow": (_HANDLE, POINTER(structs.Record), POINTER(c_float), c_size_t),
    "zo_session_save": (_HANDLE,),
    "zo_dataset_add": (_HANDLE, POINTER(structs.Candidate), c_size_t, c_size_t),
    "zo_dataset_load": (_HANDLE, c_char_p),
    "zo_dataset_write": (_HANDLE, c_char_p),
    "zo_memory_usage": (POINTER(structs.Memory),),
    "zo_vulkan_devices": (c_char_p, POINTER(c_size_t)),
    "zo_dataset_digest": (_HANDLE, c_char_p),
    "zo_prompts_read": (c_char_p, structs.ON_PROMPT, c_void_p),
    "zo_dataset_read_with": (
        _HANDLE,
        _HANDLE,
        c_char_p,
        POINTER(structs.ReadOptions),
        structs.ON_PART,
        c_void_p,
        POINTER(structs.ReadReport),
    ),
    "zo_tokenizer_open": (c_char_p, POINTER(structs.OpenOptions), POINTER(c_void_p)),
    "zo_tokenizer_encode": (_HANDLE, c_char_p, c_size_t, c_int32, c_void_p, POINTER(c_size_t)),
    "zo_tokenizer_decode": (_HANDLE, c_void_p, c_size_t, c_int32, c_char_p, POINTER(c_size_t)),
    "zo_tokenizer_chat": (
        _HANDLE,
        POINTER(structs.Message),
        c_size_t,
        c_int32,
        c_char_p,
        POINTER(c_size_t),
    ),
    "zo_bundle_unpack": (c_char_p, c_char_p, POINTER(structs.UnpackOptions)),
    "zo_limits_default": (POINTER(structs.Limits),),
    "zo_typed_write": (c_char_p, POINTER(structs.TypedExample), c_size_t, c_int32),
    "zo_job_open": (c_char_p, POINTER(c_void_p)),
    "zo_job_start": (_HANDLE, POINTER(structs.JobRequest), c_int32, POINTER(structs.OpenOptions)),
    "zo_job_run": (_HANDLE, POINTER(structs.JobHost), POINTER(structs.OpenOptions)),
    "zo_job_cancel": (_HANDLE,),
    "zo_job_discard": (_HANDLE,),
    "zo_job_view_of": (_HANDLE, POINTER(structs.JobView)),
    "zo_job_losses": (_HANDLE, POINTER(structs.LossPoint), POINTER(c_size_t)),
    "zo_job_evaluated": (_HANDLE, c_uint32, POINTER(structs.Evaluated)),
    "zo_job_requested": (_HANDLE, POINTER(structs.JobRequest)),
    "zo_job_session": (_HANDLE, POINTER(structs.OpenOptions), POINTER(c_void_p)),
}


@functools.cache
def library() -> ctypes.CDLL:
    """The session's library, loaded once: a second copy would register its operators again.

    Raises:
        ZoExportError: it is missing, cannot be loaded, or is of another version.
    """
    return load(library_path())


def call(function: str, *arguments: Any) -> None:
    """Call a verb; its error is raised as the exception of its kind."""
    error = structs.Error()
    if getattr(library(), function)(*arguments, ctypes.byref(error)) != _OK:
        raise exception(error)


def exception(error: structs.Error) -> ZoExportError:
    """A failure as the exception of its kind."""
    where, found, expected, fix = (
        bytes(getattr(error, part)).decode("utf-8", "replace")
        for part in ("where", "found", "expected", "fix")
    )
    return _ERRORS.get(error.code, ZoExportError)(where, found=found, expected=expected, fix=fix)


def load(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises:
        ZoExportError: it cannot be loaded, or is of another version.
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
        function.argtypes = (*arguments, _ERROR)
        function.restype = c_int32
    for name, result, given in (
        ("zo_session_close", None, (_HANDLE,)),
        ("zo_dataset_new", c_void_p, ()),
        ("zo_dataset_free", None, (_HANDLE,)),
        ("zo_dataset_size", c_uint64, (_HANDLE,)),
        ("zo_session_cancel", None, (_HANDLE,)),
        ("zo_tokenizer_close", None, (_HANDLE,)),
        ("zo_job_close", None, (_HANDLE,)),
        ("zo_job_pause", None, (_HANDLE, c_int32)),
        ("zo_job_problem", None, (_HANDLE, _ERROR)),
        ("zo_rng_normals", None, _RNG),
        ("zo_rng_signs", None, _RNG),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, given
    return loaded


def address(values: array.array[Any]) -> int:
    """Where an array's values lie; they stay there while the array lives and keeps its size."""
    return values.buffer_info()[0]


def path_bytes(path: Path) -> bytes:
    """A path as the library takes it."""
    return os.fsencode(path)
