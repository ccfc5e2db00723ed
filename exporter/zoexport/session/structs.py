"""What ``session.h`` and ``job.h`` (runtime_ops/include/zoexport) pass: structs, callbacks, what numbers stand for."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
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
from typing import Literal, TypeVar

#: How a tensor of each dtype is viewed; bfloat16 and float16 by their bits.
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
#: What a manifest calls each dtype.
DTYPES = ("float32", "int64", "uint8", "bfloat16", "int8", "uint32", "float16", "int32")
SLOT_CURRENT, SLOT_FINISHED, SLOT_GRADIENT = 0, 1, 2
#: Formats of adapters' files that the library writes, and the types of a GGUF file's numbers.
ADAPTER_FORMATS = ("peft", "gguf")
OUTTYPES = ("f32", "f16", "q8_0")


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

    _fields_ = (("struct_size", c_uint32), ("user", c_void_p), ("run", RUN_PROGRAM))


class OpenOptions(Structure):
    """zo_open_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("threads", c_uint32),
        ("skip_hashes", c_uint32),
        ("engine", POINTER(Engine)),
        ("cache", c_char_p),
        ("trusted_keys", c_char_p),
        ("engine_name", c_char_p),
        ("kernel_times", c_uint32),
    )


class AttachOptions(Structure):
    """zo_attach_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("mode", c_int32),
        ("seed", POINTER(c_uint64)),
        ("recover", c_uint32),
        ("change_settings", c_uint32),
        ("last", c_uint32),
    )


class Info(Structure):
    """zo_info."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("bundle_id", c_char_p),
        ("method", c_char_p),
        ("target", c_char_p),
        ("engine", c_char_p),
        ("rows", c_uint32),
        ("seq_len", c_uint32),
        ("copies", c_uint32),
        ("queries", c_uint32),
        ("max_labels", c_uint32),
        ("slots", c_uint32),
        ("seed", c_uint64),
        ("steps", c_uint64),
        ("packed_weights", c_char_p),
        ("packed_problem", c_char_p),
        ("device_bytes", c_uint64),
    )


class SlotInfo(Structure):
    """zo_slot_info."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("name", c_char_p),
        ("role", c_char_p),
        ("module", c_char_p),
        ("tensor_id", c_uint32),
        ("rank", c_int32),
        ("shape", POINTER(c_int64)),
        ("elements", c_uint64),
        ("dtype", c_int32),
    )


class Run(Structure):
    """zo_run."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("schedule", c_int32),
        ("loss", c_int32),
        ("batch", c_uint32),
        ("accumulate", c_uint32),
        ("lr", c_double),
        ("eps", c_double),
        ("seed", c_uint64),
        ("total_steps", c_uint64),
        ("momentum", c_double),
        ("weight_decay", c_double),
        ("clip", c_double),
        ("checkpoint_every", c_uint32),
        ("reserved", c_uint32),
        ("difference", c_int32),
        ("reserved_too", c_uint32),
        ("warmup", c_uint32),
        ("reserved_three", c_uint32),
        ("dpo_beta", c_double),
        ("orpo_beta", c_double),
        ("choices", c_int32),
        ("pack", c_int32),
        ("keep_mb", c_uint32),
        ("cache_prefix_mb", c_uint32),
    )


class Candidate(Structure):
    """zo_candidate."""

    _fields_ = (("tokens", c_void_p), ("labels", c_void_p), ("length", c_size_t))


class Step(Structure):
    """zo_step."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("step", c_uint64),
        ("loss", c_double),
        ("lr", c_double),
        ("seconds", c_double),
        ("losses", POINTER(c_double)),
        ("loss_count", c_size_t),
        ("gradients", POINTER(c_float)),
        ("gradient_count", c_size_t),
    )


class Progress(Structure):
    """zo_progress."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("step", c_uint64),
        ("total", c_uint64),
        ("loss", c_double),
        ("lr", c_double),
        ("seconds", c_double),
        ("rss_bytes", c_uint64),
        ("anonymous_bytes", c_uint64),
    )


ON_PROGRESS = CFUNCTYPE(c_int32, c_void_p, POINTER(Progress))
ON_PART = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64)


class Evaluation(Structure):
    """zo_evaluation."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("loss", c_double),
        ("accuracy", c_double),
        ("token_accuracy", c_double),
        ("examples", c_uint64),
        ("margin", c_double),
    )


class Message(Structure):
    """zo_message."""

    _fields_ = (("role", c_char_p), ("content", c_char_p))


class TypedExample(Structure):
    """zo_typed_example."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("prompt", c_char_p),
        ("completion", c_char_p),
        ("messages", POINTER(Message)),
        ("message_count", c_size_t),
    )


ON_TEXT = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)


class GenerateOptions(Structure):
    """zo_generate_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("max_tokens", c_uint32),
        ("prompt", POINTER(c_int64)),
        ("prompt_length", c_size_t),
        ("stop_tokens", POINTER(c_int64)),
        ("stop_count", c_size_t),
        ("temperature", c_double),
        ("top_k", c_uint32),
        ("untrained", c_uint32),
        ("top_p", c_double),
        ("min_p", c_double),
        ("repetition_penalty", c_double),
        ("seed", c_uint64),
        ("text", c_char_p),
        ("text_size", c_size_t),
        ("messages", POINTER(Message)),
        ("message_count", c_size_t),
        ("stop_strings", POINTER(c_char_p)),
        ("stop_string_count", c_size_t),
        ("on_text", ON_TEXT),
        ("adapter", c_char_p),
        ("keep", c_uint32),
        ("sliding", c_uint32),
    )


class Generation(Structure):
    """zo_generation."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("stop", c_int32),
        ("prompt_tokens", c_uint64),
        ("tokens", c_uint64),
        ("prefill_seconds", c_double),
        ("decode_seconds", c_double),
        ("anonymous_bytes", c_uint64),
        ("text", c_void_p),
        ("text_size", c_size_t),
        ("kept_tokens", c_uint64),
    )


ON_TOKEN = CFUNCTYPE(c_int32, c_void_p, c_int64)


class ExportOptions(Structure):
    """zo_export_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("format", c_int32),
        ("outtype", c_int32),
        ("replace", c_uint32),
    )


class AdapterLayer(Structure):
    """zo_adapter_layer."""

    _fields_ = (
        ("module", c_char_p),
        ("weight", c_char_p),
        ("inputs", c_uint64),
        ("rank", c_uint64),
        ("outputs", c_uint64),
        ("a", c_void_p),
        ("b", c_void_p),
        ("pairs", c_uint32),
        ("groups", c_uint32),
        ("width", c_uint32),
    )


class Adapter(Structure):
    """zo_adapter."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("layers", POINTER(AdapterLayer)),
        ("layer_count", c_size_t),
        ("description", c_char_p),
        ("architecture", c_char_p),
        ("base_model", c_char_p),
        ("alpha", c_float),
    )


class AdapterRoom(Structure):
    """zo_adapter_room."""

    _fields_ = (
        ("module", c_char_p),
        ("inputs", c_uint64),
        ("rank", c_uint64),
        ("outputs", c_uint64),
        ("a", c_void_p),
        ("b", c_void_p),
    )


class Record(Structure):
    """zo_record."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("step", c_uint64),
        ("lr", c_float),
        ("eps", c_float),
        ("loss", c_float),
    )


class Memory(Structure):
    """zo_memory."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("rss_bytes", c_uint64),
        ("peak_rss_bytes", c_uint64),
        ("anonymous_bytes", c_uint64),
    )


class ReadOptions(Structure):
    """zo_read_options."""

    _fields_ = (("struct_size", c_uint32), ("loss", c_int32), ("pack", c_int32))


class ReadReport(Structure):
    """zo_read_report."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("examples", c_uint64),
        ("shortened", c_uint64),
        ("longest", c_uint64),
        ("note", c_char * 512),
    )


class Conditions(Structure):
    """zo_conditions."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("heat", c_int32),
        ("celsius", c_double),
        ("battery", c_double),
        ("charging", c_int32),
        ("reserved", c_uint32),
        ("free_bytes", c_uint64),
        ("memory_bytes", c_uint64),
    )


class Limits(Structure):
    """zo_limits."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("heat", c_int32),
        ("hottest", c_double),
        ("cooled", c_double),
        ("battery", c_double),
        ("free_bytes", c_uint64),
        ("memory_bytes", c_uint64),
        ("poll_seconds", c_double),
    )


class JobRequest(Structure):
    """zo_job_request."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("evaluate", c_int32),
        ("bundle", c_char_p),
        ("data", c_char_p),
        ("held_out", c_char_p),
        ("steps", c_uint64),
        ("lr", c_double),
        ("eval_every", c_uint32),
        ("patience", c_uint32),
        ("keep", c_int32),
        ("reserved", c_uint32),
        ("engine_name", c_char_p),
    )


ON_CONDITIONS = CFUNCTYPE(None, c_void_p, POINTER(Conditions))
ON_CHANGED = CFUNCTYPE(None, c_void_p)


class JobHost(Structure):
    """zo_job_host."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("user", c_void_p),
        ("conditions", ON_CONDITIONS),
        ("changed", ON_CHANGED),
        ("limits", POINTER(Limits)),
    )


class JobView(Structure):
    """zo_job_view."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("phase", c_int32),
        ("reason", c_int32),
        ("has_before", c_int32),
        ("has_after", c_int32),
        ("reserved", c_uint32),
        ("step", c_uint64),
        ("steps", c_uint64),
        ("examples", c_uint64),
        ("shortened", c_uint64),
        ("loss", c_double),
        ("seconds_left", c_double),
        ("celsius", c_double),
        ("anonymous_bytes", c_uint64),
        ("before", Evaluation),
        ("after", Evaluation),
        ("part", c_double),
        ("evaluations", c_uint32),
        ("has_best", c_uint32),
        ("best_step", c_uint64),
    )


class LossPoint(Structure):
    """zo_loss_point."""

    _fields_ = (("step", c_uint64), ("loss", c_double))


class UnpackOptions(Structure):
    """zo_unpack_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("replace", c_uint32),
        ("trusted_keys", c_char_p),
        ("on_progress", ON_PART),
        ("user", c_void_p),
    )


class Evaluated(Structure):
    """zo_evaluated."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("best", c_uint32),
        ("step", c_uint64),
        ("loss", c_double),
        ("accuracy", c_double),
        ("token_accuracy", c_double),
        ("margin", c_double),
    )


class Prompt(Structure):
    """zo_prompt."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("text", c_void_p),
        ("text_size", c_size_t),
        ("messages", POINTER(Message)),
        ("message_count", c_size_t),
    )


ON_PROMPT = CFUNCTYPE(c_int32, c_void_p, POINTER(Prompt))
ON_EVALUATED = CFUNCTYPE(c_int32, c_void_p, POINTER(Evaluated))
KEEPS = ("default", "last", "best")


class TrainOptions(Structure):
    """zo_train_options."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("every", c_uint32),
        ("patience", c_uint32),
        ("keep", c_int32),
        ("total_steps", c_uint64),
        ("held_out", c_void_p),
        ("on_progress", ON_PROGRESS),
        ("on_evaluated", ON_EVALUATED),
        ("on_part", ON_PART),
        ("user", c_void_p),
    )


Sized = TypeVar("Sized", bound=Structure)


def sized(kind: type[Sized]) -> Sized:
    """A struct that says how large it is, for the library to fill."""
    return kind(struct_size=ctypes.sizeof(kind))


def export_options(kind: str, outtype: str, *, replace: bool) -> ExportOptions:
    """How an adapter's files are written; ``kind`` and ``outtype`` are of the lists above."""
    return ExportOptions(
        ctypes.sizeof(ExportOptions),
        ADAPTER_FORMATS.index(kind),
        OUTTYPES.index(outtype),
        int(replace),
    )


def messages(given: Sequence[tuple[str, str]]) -> ctypes.Array[Message]:
    """A conversation's roles and contents as the library takes them."""
    return (Message * len(given))(
        *(
            Message(role.encode("utf-8", "surrogatepass"), content.encode("utf-8", "surrogatepass"))
            for role, content in given
        )
    )
