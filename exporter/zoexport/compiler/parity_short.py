"""The short form of parity, which ``compile`` runs on what it wrote.

A session in another process opens the bundle, generates a token and runs steps. Here the original
model does the same in plain PyTorch, as the method's reference, with its weights streamed from
their files. Losses, gradients and states are compared within the bounds of parity
(``core.tolerances``). Programs for longer rows run on the first row, extended after its last label:
a causal model must compute the same loss.

First-order methods: the gradients of the last layers are compared, until each backward program was seen once.
Zeroth-order methods: the second step is compared, which contains the first step's update. It runs at ``_MOVE`` times
the bundle's eps, so that losses change by more than the bounds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from zoexport.compiler.parity import make_reference, state_error
from zoexport.core import children, hadamard, rng, tolerances
from zoexport.core import manifest as manifests
from zoexport.core.errors import LoweringError, rebuilt
from zoexport.core.graph import RowReader
from zoexport.core.int4 import unpack_int4
from zoexport.core.progress import Progress
from zoexport.core.trust import ANYONE
from zoexport.data.examples import IGNORED, Candidate, Example
from zoexport.methods import config_of
from zoexport.methods.reference.quantized import (
    dequantized,
    quantize_model,
    read_as_bundle,
    rounded,
    stored_weights,
)
from zoexport.models.streaming import streaming
from zoexport.models.weights import open_safetensors
from zoexport.session import Bundle
from zoexport.trained import kind_of

if TYPE_CHECKING:
    from zoexport.models import LoadedModel

_TOKENS, _PRODUCTS = 12, 1 << 30
"""Minimum tokens of the first row, and maximum parameters * tokens for a longer one."""
_LABELS = 256
"""Labels of the second step if activations are rounded: rounding errors average out over this many."""
_ROWS_TENSOR_ID = 0x7FFFFFFE
"""Tensor id of the random words for rows (noise specification); no parameter has it."""
_MOVE = 10.0
_SECOND = 0.02
"""Standard deviation of the adapters' second matrices, so that the first have gradients.

Zero in a bundle.
"""
_FIXED = 1e-30
"""Learning rate at which steps of a first-order method do not change the state."""
_STREAMED = ("lora", "adapter codes", "sparse")
"""Kinds of training whose references can stream the model's weights."""
_NEAR = {False: 2e-3, True: 5e-2}
"""Largest distance of a generated token's logit from the maximum, relative to the spread.

True: int8 activations.
"""

_Answer = Callable[[], tuple[dict[str, Any], dict[str, np.ndarray]]]


@dataclasses.dataclass(frozen=True)
class Compared:
    """The largest relative errors, None if not compared; ``reason`` explains why losses were not compared."""

    loss: float | None = None
    gradient: float | None = None
    state: float | None = None
    reason: str = ""


def prove(
    bundle: Path,
    loaded: LoadedModel,
    reader: RowReader,
    room: float,
    progress: Progress,
    known: Mapping[str, Tensor] | None = None,
) -> Compared:
    """Run every program of a bundle and compare the results with the model.

    Args:
        bundle: complete bundle with an engine that runs here.
        loaded: original model; it cannot be used afterwards.
        reader: reader of rows of its parameters; trained elements are zero.
        room: memory in MB that the comparison may use for weights.
        progress: called with the current phase.
        known: quantized values and scales of a whole-model program's weights
            (``parity_quantized``).

    Raises:
        NotHereError: its engine does not run here.
        LoweringError: the bundle does not open, a program does not run, or its results are wrong.
    """
    progress("verifying the bundle", None)
    opened = Bundle.open(bundle, trust=ANYONE)  # nobody has signed it yet
    with tempfile.TemporaryDirectory(prefix=".verify-", dir=bundle.parent) as scratch:
        return _Proof(opened, Path(scratch), known or {}).compared(loaded, reader, room)


class NotHereError(Exception):
    """The engine of a bundle is not available on this machine."""


class _Proof:
    """Inputs of both sides, and the comparison of their results."""

    def __init__(self, bundle: Bundle, scratch: Path, known: Mapping[str, Tensor]) -> None:
        self.bundle, self.scratch, self.known = bundle, scratch, known
        self.manifest = bundle.manifest
        self.config: Any = config_of(self.manifest)
        self.bounds = tolerances.bounds(self.config)
        self.whole = "stages" not in self.manifest
        longest = self.config.max_length
        lengths = self.manifest.get("lengths") or [longest]
        vocabulary = self.manifest["model"]["vocab_size"]
        rounds = self.config.rounding.endswith(("int8", "int16"))
        rows = -(-_LABELS // longest) if rounds else 1
        parameters = max(1, self.manifest["model"]["parameters"])
        tokens = min(longest, max(_TOKENS, _PRODUCTS // parameters))
        #: Rows of the first step; generation continues the last. Two rows reveal mixing.
        self.first = [_row(tokens, vocabulary, 0)]
        self.first += (
            [_row(max(1, tokens - 3), vocabulary, 1)] if self.config.batch_size > 1 else []
        )
        #: Rows of a zeroth-order method's second step.
        self.second = self.first
        if rounds or self.whole:
            self.second = [_row(longest, vocabulary, number) for number in range(rows)]
        short = _row(min(_TOKENS, longest), vocabulary, 2)
        self.longer = [[_continued(short, length, vocabulary)] for length in lengths]
        #: Run settings of both sides.
        self.run: dict[str, Any] = {"loss": "full"}
        #: Parameters whose gradients are compared.
        self.gradients: list[str] = []
        #: Initial values that replace the bundle's.
        self.values: dict[str, Tensor] = {}
        if self.config.first_order:
            self.gradients = _last_slots(self.manifest)
            self.values = _second_matrices(self.manifest)
            self.run["learning_rate"] = _FIXED
        elif "grid" not in self.manifest:
            self.run["eps"] = _MOVE * self.manifest["settings"]["eps"]

    def compared(self, loaded: LoadedModel, reader: RowReader, room: float) -> Compared:
        """Run both sides, in parallel if neither needs the other's result."""
        streams = self._streams(loaded)
        taken = 0.0 if streams else self._taken(loaded)
        with self._session() as answer:
            if taken > room:
                self._longer(answer()[0])
                return Compared(
                    reason=f"the model's own loss, for which {taken:.0f} MB of weights would be read"
                )
            with self._computing(loaded, reader, streams) as (model, beside):
                last = _LastLogits(model, len(self._prompt()))
                reference = make_reference(model, self.bundle, beside, **self.run)
                compare = self._first_order if self.config.first_order else self._zeroth_order
                return compare(reference, last, answer)

    def _first_order(self, reference: Any, last: _LastLogits, answer: _Answer) -> Compared:
        for name, value in reference.slots.items():
            if name in self.values:
                value.data.copy_(self.values[name])
            value.requires_grad_(name in self.gradients)
        theirs = reference.step(self.first, _FIXED)
        if self.config.lora_dropout:
            with torch.no_grad():
                reference.loss(self.first[-1])  # without dropout, like the programs that generate
        ours, tensors = answer()
        self._token(ours, last)
        loss = self._losses(ours["losses"][0], theirs["losses"])
        most = self.bounds[tolerances.GRADIENT]
        worst = 0.0
        for name in self.gradients:
            expected = {name: theirs["gradients"][name].numpy()}
            error = state_error({name: tensors[f"gradient.{name}"]}, expected)
            if not error <= most:
                self._refuse(
                    self._programs(self._backward(self.config.activation_cache_mb), slot=name),
                    f"a gradient of {name} that is {error:.1e} of its size off",
                    f"at most {most:.0e}",
                )
            worst = max(worst, error)
        if not self.config.lora_dropout:
            self._longer(ours)
        return Compared(loss, worst)

    def _zeroth_order(self, reference: Any, last: _LastLogits, answer: _Answer) -> Compared:
        before = reference.loss(self.first, reference.masters)
        ours, tensors = answer()
        self._token(ours, last)
        if not tolerances.rounds(self.config):
            self._losses([ours["loss"]], [before])
        gradients = ours["gradients"]
        reference.follow(reference.values(), gradients, self.manifest["settings"]["learning_rate"])
        reference.step_number = 1
        reference.finish()
        own = {name: tensors[name] for name in reference.masters if name in tensors}
        values = {name: reference.masters[name].numpy() for name in own}
        state = state_error(own, values)
        most = self.bounds[tolerances.STATE]
        if not state <= most:
            self._refuse(
                self._programs("forward", "saving"),
                f"an update that is {state:.1e} off",
                f"at most {most:.0e}",
            )
        theirs = reference.first_losses(self.second, 2)
        loss = self._losses(ours["losses"][1][:2], theirs)
        self._longer(ours)
        return Compared(loss, state=state)

    def _losses(self, ours: Sequence[float], theirs: Sequence[float]) -> float:
        most = self.bounds[tolerances.LOSS]
        worst = 0.0
        for found, expected in zip(ours, theirs, strict=True):
            error = abs(found - expected) / max(abs(expected), 1e-12)
            if not error <= most:
                self._refuse(
                    self._programs("forward", "saving"),
                    f"a loss of {found:.6f} where PyTorch computes {expected:.6f}",
                    f"a difference of at most {most:.0e} of it",
                )
            worst = max(worst, error)
        return worst

    def _longer(self, ours: dict[str, Any]) -> None:
        """Check that extended rows have the first row's loss and gradients; finite for encoders."""
        causal = "bidirectional" not in self.manifest
        (loss, size), *_ = ours["longer"]
        runs = [(rows, room) for room in _rooms(self.manifest) or [0] for rows in self.longer]
        for (found, gradient), (rows, room) in zip(ours["longer"], runs, strict=True):
            length = len(rows[0].candidates[0].tokens)
            for mine, expected, key, each in (
                (found, loss, tolerances.LOSS, ("forward", "saving")),
                (gradient, size, tolerances.GRADIENT, (self._backward(room),) if size else ()),
            ):
                # Each is within the bound of the correct value.
                near = abs(mine - expected) <= 2 * self.bounds[key] * abs(expected)
                if not (near if causal else np.isfinite(mine)):
                    self._refuse(
                        self._programs(*each, length=length),
                        f"{key} {mine:.6f} on a row of {length} tokens, {expected:.6f} on the first of them alone",
                        "the same, as what follows the last label does not count",
                    )

    def _token(self, ours: dict[str, Any], last: _LastLogits) -> None:
        token = ours["token"]
        if token is None:
            return
        logits = last.logits
        spread = float(logits.max() - logits.mean())
        rounds = "int8" in (self.config.rounding, self.config.generate_activations)
        if not float(logits[token]) >= float(logits.max()) - _NEAR[rounds] * spread:
            self._refuse(
                [program["name"] for program in self.manifest["generate"]["programs"]],
                f"token {token} after {len(self._prompt())} others",
                f"{int(logits.argmax())}, which PyTorch finds the likeliest",
            )

    def _prompt(self) -> list[int]:
        """Return the prompt for generation; empty if the bundle does not generate."""
        if "problem" in self.manifest["generate"]:
            return []
        row = self.first[-1].candidates[0].tokens
        return list(row[: self.manifest["generate"]["context"] - 2])

    def _refuse(self, programs: Sequence[str], found: str, expected: str) -> None:
        raise LoweringError(
            f"program{'s' * (len(programs) > 1)} {', '.join(programs)} of target {self.manifest['target']}",
            found=found,
            expected=expected,
            fix=_FIX,
        )

    def _programs(self, *passes: str, length: int | None = None, slot: str = "") -> list[str]:
        """Return program names for a row length, of stages that bind ``slot`` or of all stages.

        The default length is that of the first row.
        """
        if self.whole:
            return [program["name"] for program in self.manifest["programs"]]
        length = length or self.manifest["lengths"][0]
        stages = self.manifest["stages"]
        bound = [stage for stage in stages if not slot or slot in stage["bind"].values()]
        families = {stage.get(each) for stage in bound for each in passes}
        return [
            program["name"]
            for program in self.manifest["programs"]
            if program.get("family") in families and program.get("length") in (None, length)
        ]

    def _backward(self, activation_cache_mb: int) -> str:
        saves = any("saving" in stage for stage in self.manifest["stages"])
        return "from_saved" if saves and activation_cache_mb else "backward"

    @contextlib.contextmanager
    def _session(self) -> Iterator[_Answer]:
        """Start the other process and yield a function that waits for its result."""
        values = self.scratch / "values"
        save_file(self.values, values)
        request = {
            "first": _rows(self.first),
            "second": [] if self.config.first_order else _rows(self.second),
            "longer": [_rows(batch) for batch in self.longer],
            "activation_cache_mb": _rooms(self.manifest),
            "steps": not self.whole,
            "shallow": _shallow(self.bundle, self.scratch),
            "prompt": self._prompt(),
            "run": self.run,
            "values": str(values),
            "gradients": self.gradients,
        }
        asked, tensors = self.scratch / "request", self.scratch / "tensors"
        asked.write_text(json.dumps(request), "utf-8")
        command, environment = children.python(
            "zoexport.compiler.parity_short_session", self.bundle.path, asked, tensors
        )
        with (
            tempfile.TemporaryFile() as errors,
            children.child(command, errors=errors, environment=environment) as process,
        ):
            yield lambda: (_answer(process, errors), _arrays(tensors))

    def _streams(self, loaded: LoadedModel) -> bool:
        """Return True if weights are streamed; a model in memory is quantized in place."""
        settings = self.manifest["settings"]
        return (
            (loaded.lazy or self.config.first_order)
            and self.config.trained in _STREAMED
            and settings.get("compute") != "bf16"
        )

    def _taken(self, loaded: LoadedModel) -> float:
        """Return the size in MB of weights that are not in memory yet."""
        size = 4e-6 * sum(value.numel() for value in loaded.model.parameters())
        copies = int(loaded.lazy) + 2 * (self.config.trained not in _STREAMED)
        return size * (copies + 2 * self.config.first_order)

    @contextlib.contextmanager
    def _computing(
        self, loaded: LoadedModel, reader: RowReader, streams: bool
    ) -> Iterator[tuple[Any, dict[str, Tensor]]]:
        """Yield the model with the bundle's weights, and the reference's other tensors."""
        model, settings = loaded.model, self.manifest["settings"]
        rotated = self.manifest["rotated_weights"]
        if loaded.lazy and not streams:
            for name, value in model.named_parameters():
                value.data = loaded.weights.read(name)
        beside = kind_of(self.config).for_reference(model, self.bundle)
        if not streams:
            quantize_model(model, settings, rotated, self.known)
            yield model, beside
            return
        if settings["weights"] != "fp32":
            reader = _BundleRows(self.bundle, model, reader)
        with streaming(model, reader), _one_thread():
            if settings["weights"] != "fp32":
                read_as_bundle(model, settings, rotated)
            yield model, beside


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread inside the context and leave the other cores to the session.

    Chunks of weights are too small to be split between threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _BundleRows:
    """Reader of a model's parameters, quantized like a bundle.

    Uses the bundle's stored values if possible.
    """

    def __init__(self, bundle: Bundle, model: torch.nn.Module, reader: RowReader) -> None:
        manifest = bundle.manifest
        self.reader, self.manifest = reader, manifest
        self.path = bundle.path / manifest.get("weights", {}).get("file", manifests.FILE)
        rounds = stored_weights(model, manifest["settings"]["weights"], manifest["rotated_weights"])
        owners: dict[int, list[str]] = {}
        for name, value in model.named_parameters(remove_duplicate=False):
            owners.setdefault(value.data_ptr(), []).append(name)
        stored: set[str] = set()
        if "weights" in manifest and manifest["packing"].startswith("int"):
            with open_safetensors(self.path) as file:
                stored = set(file.keys())
        #: By quantized parameter: whether it is rotated, and its name in the bundle, or "".
        self.rounded: dict[str, tuple[bool, str]] = {}
        for place, (_, turned) in rounds.items():
            kept = [name for name in owners[place] if f"{name}.codes" in stored]
            for name in owners[place]:
                self.rounded[name] = turned, (kept or [""])[0]

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Return rows ``begin`` to ``end`` of a parameter, float32."""
        if name not in self.rounded:
            return self.reader.read_rows(name, begin, end)
        turned, kept = self.rounded[name]
        if not kept:
            rows = self.reader.read_rows(name, begin, end)
            return rounded(
                hadamard.rotate_rows(rows) if turned else rows, self.manifest["settings"]
            )
        with open_safetensors(self.path) as file:
            codes, scales = (
                file.get_slice(f"{kept}.{part}")[begin:end] for part in ("codes", "scales")
            )
        return dequantized(codes, scales)


class _LastLogits:
    """Logits after the first ``count`` tokens of the last row that a model ran."""

    def __init__(self, model: torch.nn.Module, count: int) -> None:
        self.logits = torch.empty(0)
        self._count = count
        model.register_forward_hook(self._keep)

    def _keep(self, _: Any, __: Any, output: Any) -> None:
        self.logits = output.logits[0, : self._count][-1:].flatten().detach()


_FIX = "Report the model's architecture; --no-verify keeps the bundle as it is."


def _answer(process: Any, errors: IO[bytes]) -> dict[str, Any]:
    """Return the result of the other process.

    Raises:
        LoweringError: the session failed, or a program ended the process.
    """
    doing = "starting"
    for line in process.stdout:
        said = json.loads(line)
        if "missing" in said:
            raise NotHereError(said["missing"])
        if "done" in said:
            found: dict[str, Any] = said["done"]
            return found
        if "error" in said:
            error = rebuilt(said["error"])
            raise LoweringError(error.where, found=error.found, expected=error.expected, fix=_FIX)
        doing = said["doing"]
    process.wait()
    raise LoweringError(
        "the bundle's session",
        found=f"an end with status {process.returncode} while {doing}: {children.last_line(errors)}",
        expected="programs that run",
        fix=_FIX,
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of the other process; 4-bit integers are unpacked."""
    return {
        name: (unpack_int4(value) if value.dtype == torch.uint8 else value).numpy()
        for name, value in load_file(path).items()
    }


def _rows(batch: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
    return [(example.candidates[0].tokens, example.candidates[0].labels) for example in batch]


def _row(length: int, vocabulary: int, number: int) -> Example:
    """Return tokens from the whole vocabulary, each followed by a label."""
    words = rng.words(number, _ROWS_TENSOR_ID, 0, 0, 2 * length)
    chosen = [int(word) % vocabulary for word in words]
    return Example([Candidate(chosen[:length], chosen[length:])], 0)


def _continued(example: Example, length: int, vocabulary: int) -> Example:
    """Return a row with additional unlabeled tokens after its own."""
    (candidate,) = example.candidates
    more = length - len(candidate.tokens)
    behind = _row(length, vocabulary, 1).candidates[0].tokens[:more]
    labels = [*candidate.labels, *[IGNORED] * more]
    return Example([Candidate([*candidate.tokens, *behind], labels)], 0)


def _last_slots(manifest: Mapping[str, Any]) -> list[str]:
    """Return the parameters from the head down until each backward program has run."""
    trained = {slot["name"] for slot in manifest["state"] if slot["role"] == "trainable"}
    families = {stage["backward"] for stage in manifest["stages"]} - {None}
    found: list[str] = []
    for stage in reversed(manifest["stages"]):
        found += [name for name in stage["bind"].values() if name in trained]
        families.discard(stage["backward"])
        if not families:
            break
    return found


def _second_matrices(manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return values for every adapter's second matrix."""
    found = {}
    for slot in manifest["state"]:
        if slot["name"].startswith("lora_B."):
            rows, columns = slot["shape"]
            drawn = rng.normals(1, slot["tensor_id"], 0, 0, rows * columns)
            found[slot["name"]] = torch.from_numpy(drawn).view(rows, columns) * _SECOND
    return found


def _rooms(manifest: Mapping[str, Any]) -> list[int]:
    """Return values of ``activation_cache_mb`` with which every backward program runs."""
    if not any("saving" in stage for stage in manifest.get("stages", ())):
        return []
    return [int(manifest["settings"]["activation_cache_mb"]), 0]


def _shallow(bundle: Bundle, scratch: Path) -> str | None:
    """Make a bundle with one stage for each set of programs; None if no two stages share a set."""
    manifest = bundle.manifest
    levels = manifest.get("step", {}).get("levels", ())
    kept: dict[tuple[Any, ...], Any] = {}
    for number, stage in enumerate(manifest.get("stages", ())):
        called = (stage.get(kind) for kind in ("forward", "backward", "saving", "from_saved"))
        level = sum(level["begin"] <= number for level in levels)
        kept.setdefault((level, *called), stage)
    if len(kept) == len(manifest.get("stages", ())):
        return None
    begins = [[level for level, *_ in kept].index(1 + number) for number in range(len(levels))]
    bound = {name for stage in kept.values() for name in stage["bind"].values()}
    content = {
        **manifest,
        "stages": list(kept.values()),
        "state": [slot for slot in manifest["state"] if slot["name"] in bound],
        "generate": {"problem": "too few layers"},
    }
    content.pop("fallback", None)  # it has all layers, and only the bundle's own engine is verified
    if levels:
        moved = [{**level, "begin": begin} for level, begin in zip(levels, begins, strict=True)]
        content["step"] = {**manifest["step"], "levels": moved}
    content["bundle_id"] = manifests.bundle_id(content)
    folder = scratch / "shallow"
    folder.mkdir()
    for path in bundle.path.iterdir():
        if path.name != manifests.FILE:
            os.link(path, folder / path.name)
    (folder / manifests.FILE).write_text(json.dumps(content), "utf-8")
    return str(folder)
