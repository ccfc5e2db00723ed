"""Types that :mod:`zoexport.session` takes and returns."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from zoexport.session import abi

#: ``tokens`` and ``labels`` of one candidate; ``labels[t]`` follows ``tokens[t]``, or is -100.
Candidate = tuple[Sequence[int], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Info:
    """Properties of a bundle and its state. ``steps`` is the total number of steps taken.

    ``engine`` is the engine in use. ``notice`` is empty unless the bundle's own engine failed.
    ``device_bytes`` is the size of the GPU buffers, ``adapters`` the names of loaded adapters.
    """

    bundle_id: str
    method: str
    target: str
    engine: str
    notice: str
    rows: int
    max_length: int
    copies: int
    num_queries: int
    max_labels: int
    seed: int
    steps: int
    device_bytes: int
    adapters: list[str]


@dataclasses.dataclass(frozen=True)
class Read:
    """Result of reading a data file.

    Attributes:
        examples: number of examples in the file. shortened: how many of them exceed the bundle's ``max_length``.
        longest: tokens of the longest example before truncation.
        note: sentences to show the user before training, or empty.
    """

    examples: int
    shortened: int
    longest: int
    note: str


@dataclasses.dataclass(frozen=True)
class SlotInfo:
    """A state tensor of the manifest. A trained uint8 tensor has two 4-bit integers per element."""

    name: str
    role: str
    module: str
    tensor_id: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def passed(self) -> str:
        """dtype of the exchanged values: float32 for floats, else its own."""
        return "float32" if self.dtype == "float16" else self.dtype


@dataclasses.dataclass(frozen=True)
class Step:
    """Result of a step: ``losses[2i]``, ``losses[2i+1]`` at +z_i, -z_i; ``loss`` is their mean.

    With forward differences, ``losses[0]`` is without perturbation, ``losses[i+1]`` at +z_i.
    A first-order method has one loss and no projected gradients.
    """

    step: int
    loss: float
    learning_rate: float
    seconds: float
    losses: tuple[float, ...]
    gradients: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class StepProgress:
    """The step just taken. Memory is 0 if unknown; ``notice`` is a text to show once, or empty."""

    step: int
    total: int
    loss: float
    learning_rate: float
    seconds: float
    rss_bytes: int
    anonymous_bytes: int
    notice: str = ""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The keys of ``eval --json``.

    ``accuracy`` is None if no example has choices, ``margin`` unless the loss compares pairs.
    """

    loss: float
    accuracy: float | None
    token_accuracy: float
    margin: float | None
    examples: int


@dataclasses.dataclass(frozen=True)
class Score:
    """Log-likelihood of a candidate.

    Attributes:
        logprob: sum of the log-probabilities of its labels; nan unless it is finite.
        greedy: whether every label is the likeliest token.
    """

    logprob: float
    greedy: bool


@dataclasses.dataclass(frozen=True)
class StepEvaluation:
    """An entry of ``evaluations`` in ``train --json``.

    Attributes:
        step: number of steps taken before. accuracy: None if no example has choices. margin: None
            unless the loss compares pairs.
        best: whether its loss is the lowest of the run so far, not counting step 0.
    """

    step: int
    loss: float
    accuracy: float | None
    token_accuracy: float
    margin: float | None
    best: bool


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling of the next token (docs/export.md); by default the most likely one."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0


Stop = Literal["eos", "length", "caller", "string"]


@dataclasses.dataclass(frozen=True)
class Generation:
    """Generated tokens without the stop token, and the reason of the end.

    ``text`` is their text up to a stop string; None if not requested. ``kept_tokens`` is the number
    of prompt tokens cached by an earlier call.
    """

    tokens: tuple[int, ...]
    stop: Stop
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    anonymous_bytes: int
    text: str | None = None
    kept_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Record:
    """A record of the trajectory log."""

    step: int
    learning_rate: float
    eps: float
    loss: float
    gradients: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of this process as counted by the kernel; 0 if unknown."""

    rss_bytes: int
    peak_rss_bytes: int
    anonymous_bytes: int


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A program's input or output during one call.

    ``data`` is a flat view of float32 ("f"), int64 ("q"), uint8 ("B"), int8 ("b"), uint32 ("I"), int32 ("i") or the
    bits of bfloat16 or float16 ("H").
    """

    name: str
    shape: tuple[int, ...]
    data: memoryview[Any]


#: Runs a program: reads the inputs by name and fills the outputs by name. Unwanted outputs are left out.
Engine = Callable[[str, Mapping[str, Tensor], Mapping[str, Tensor]], None]


def no_programs(*_: object) -> None:
    """Engine of sessions that read, write or replay state tensors: no program runs."""
    raise AssertionError("such a session runs no program")


#: Callback for every generated token; return True to end.
OnToken = Callable[[int], "bool | None"]

#: Callback for chunks of the generated text; return True to end.
OnText = Callable[[str], "bool | None"]

#: Callback after every step; return True to stop the run after saving.
OnProgress = Callable[[StepProgress], "bool | None"]
#: Progress callback(done, total); return True to cancel.
OnPart = Callable[[int, int], "bool | None"]


class EngineCallback:
    """A Python engine behind C callbacks; it must live as long as the session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.raised: BaseException | None = None
        self._function = abi.RUN_PROGRAM(self._run)
        self.table = abi.Engine(None, self._function)

    def _run(
        self,
        _user: int,
        program: bytes,
        inputs: Any,
        input_count: int,
        outputs: Any,
        output_count: int,
        _message: int,
        _message_size: int,
    ) -> int:
        try:
            given = [_tensor(inputs[i]) for i in range(input_count)]
            wanted = [_tensor(outputs[i]) for i in range(output_count) if outputs[i].data]
            self._engine(
                program.decode(),
                {tensor.name: tensor for tensor in given},
                {tensor.name: tensor for tensor in wanted},
            )
        except BaseException as error:
            self.raised = error
            return 1
        return 0


def _tensor(tensor: Any) -> Tensor:
    data = (ctypes.c_byte * tensor.bytes).from_address(tensor.data)
    view = memoryview(data).cast("B").cast(abi.FORMATS[tensor.dtype])
    return Tensor(tensor.name.decode(), tuple(tensor.shape[: tensor.rank]), view)
