"""An estimate for one method and its settings: every part named, all in bytes.

Anonymous memory is what only swapping could take from a process. What the session keeps in mapped files
(docs/formats.md) counts to the resident size alone, here as if every page of it were resident at once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from zoexport.core.graph import LayerGraph, Stage, TrainingGraph
from zoexport.core.step_plan import StepPlan
from zoexport.core.target import Footprint
from zoexport.ir.counts import product_flops
from zoexport.ir.frozen import bound_weights

_FLOAT = 4
StageWeights = tuple[tuple[str, int], ...]
"""Names and bytes of the tensors that a stage reads, in order."""
_PIECE = 1 << 20
"""Bytes that are kept or dropped together here; a page is 4 to 16 kB."""


@dataclasses.dataclass(frozen=True)
class Process:
    """Memory of a training process that does not depend on the bundle.

    Attributes:
        anonymous: measured bytes of the process, including session tables and loaded programs.
        code: measured resident bytes of programs and libraries.
    """

    anonymous: int
    code: int


PROCESSES = {
    "train": Process(19_900_000, 16_000_000),
    "python": Process(10_600_000, 13_000_000),
    "runner": Process(1_900_000, 6_000_000),
}
"""``zoexport train``; Python with a Session and nothing else; zoexport-runner, which an app's session is like."""

_SNAPSHOTS = 2
_REGIONS_BETWEEN = 2
"""Regions of activations that stages pass on in turn, beside one that each level of a nested plan keeps."""
_MOST_IN_HEAP = 8 << 20
"""Bytes of trained floats beyond which the session keeps them in a mapped file."""
_MANIFEST = 300_000
_PROGRAM = 150_000
"""Bytes of a program in the program file, for all lengths of rows together."""
_PAGES = 16384


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Cost of training, in bytes by part, without ``process``.

    Attributes:
        anonymous: memory of the session. mapped: memory of its mapped files.
        bundle, state: disk space. scratch: disk space while a step runs.
        flops, moved: operations per step, and bytes of weights and activations per step.
        runs: stages in one call of a step, in order. calls: calls per step.
        stage_weights: names and bytes of the frozen weights that each stage reads completely.
        all_kept: bytes that ``activation_cache_mb`` needs for all layers to save activations.
    """

    anonymous: dict[str, int]
    mapped: dict[str, int]
    bundle: int
    state: int
    scratch: int
    flops: int
    moved: int
    runs: tuple[int, ...]
    calls: int
    stage_weights: tuple[StageWeights, ...]
    all_kept: int

    def peak_anonymous(self, process: Process) -> int:
        """Bytes of anonymous memory of a process that trains."""
        return process.anonymous + sum(self.anonymous.values())

    def peak_rss(self, process: Process) -> int:
        """Resident bytes of it, at most."""
        return self.peak_anonymous(process) + process.code + sum(self.mapped.values())

    def from_disk(self, memory: int, process: Process) -> int:
        """Bytes of weights that a step reads from the disk, once others like it have run.

        Args:
            memory: bytes that the process may take, files that it maps included.
        """
        room = memory - self.peak_rss(process) + self.mapped.get("weights", 0)
        return self.calls * bytes_from_disk(self.runs, self.stage_weights, room)


def estimate(
    graph: TrainingGraph,
    footprints: dict[str, Footprint],
    settings: dict[str, Any],
    *,
    tokenizer: int,
    threads: int,
    labels: int | None = None,
) -> Estimate:
    """Add up what the programs of ``graph`` and the session around them take.

    Every batch is taken to fill one call.

    Args:
        graph: for its longest rows alone. footprints: of its programs.
        settings: of the method, by key.
        tokenizer: bytes of its files. threads: that compute.
        labels: tokens of a batch that are predicted, which a split graph's head is called for; None: all.
    """
    return _Parts(graph, footprints, settings, tokenizer, threads, labels).estimate()


class _Parts:
    """A graph's stages, which the session runs one by one."""

    def __init__(
        self,
        graph: TrainingGraph,
        footprints: dict[str, Footprint],
        settings: dict[str, Any],
        tokenizer: int,
        threads: int,
        labels: int | None,
    ) -> None:
        self.graph = graph
        split = graph if isinstance(graph, LayerGraph) else None
        self.split = split
        whole = "train" if "train" in graph.programs else "forward"
        self.stages = [Stage("model", whole, None, {})] if split is None else split.stages
        self.footprints = footprints
        self.settings = settings
        self.step = graph.step
        self.losses = 0 if self.step is None else self.step.losses
        self.copies = 1 if self.step is None or self.step.copies == "one" else self.losses
        self.tokenizer = tokenizer
        self.threads = threads
        self.labels = labels
        self.sizes = {slot.name: slot.bytes for slot in graph.slots}
        trainable = {slot.name for slot in graph.slots if slot.role == "trainable"}
        self.trainable = {name: self.sizes[name] for name in trainable}
        self.adapter = sum(self.sizes.values())
        self.values = sum(self.trainable.values())
        self.frozen = self._frozen()

    def programs(self, run: list[Footprint]) -> dict[str, int]:
        """Bytes of the arena that the programs which run share, one after another, and of their kernels."""
        windows = itertools.zip_longest(*(found.windows for found in run), fillvalue=0)
        return {
            "programs": max(found.planned for found in run),
            "windows of weights": sum(map(max, windows)),
            "kernels": self.threads * max(found.scratch for found in run),
        }

    def bundle(self, weights: int) -> int:
        programs = _PROGRAM * len(self.graph.programs)
        return weights + self.adapter + programs + _MANIFEST + self.tokenizer

    def estimate(self) -> Estimate:
        first_order = self.step is None
        weights = self._weights()
        activations = self._activations()
        scratch = activations
        order = list(self._order(first_order))
        anonymous = self.programs([self.footprints[name] for name in self._names(order)])
        anonymous["label rows"] = (1 + first_order) * _FLOAT * self._head_elements()
        anonymous["dropout"] = self._dropout()
        mapped = {"weights": weights, "adapter file": self.adapter, "activations": activations}
        if any(found.copies_weights for found in self.footprints.values()):
            anonymous["weights"] = weights
        most = max(sum(self._stage_slots(stage.bind)) for stage in self.stages)
        if first_order:
            scratch += self.values + most
            kept = self.values * (1 + _moments(self.settings))
            mapped |= {"gradients": self.values + most, "adapters and moments": 2 * kept}
            state = (2 + _SNAPSHOTS) * kept
        elif self.graph.grid is not None:
            mapped["integers"] = 2 * self.values
            scratch += 2 * self.values  # their file has no name, and goes with the process
            state = _SNAPSHOTS * self.values
        else:
            # Programs that hold all copies perturb by themselves; others are given a stage's slots perturbed.
            perturbed = 0 if self.graph.copies > 1 else most
            mapped["perturbed"] = perturbed
            scratch += perturbed
            if self.values > _MOST_IN_HEAP:
                mapped["weights that are trained"] = 2 * self.values
                scratch += 2 * self.values
            else:
                anonymous["adapters"] = 2 * self.values
            state = _SNAPSHOTS * self.values
        if cached := self.settings["hidden_state_cache_mb"] * 1_000_000:
            mapped["rows of frozen layers"] = cached
            scratch += cached
        flops, moved = self._step(order, weights if self.split is None else 0)
        return Estimate(
            {name: size for name, size in anonymous.items() if size},
            {name: size for name, size in mapped.items() if size},
            self.bundle(weights),
            state,
            scratch,
            flops,
            moved,
            tuple(stage for stage, _ in order),
            self.settings["gradient_accumulation_steps"],
            self._read_weights(weights),
            sum(self._saved(n) for n, stage in enumerate(self.stages) if stage.saving is not None),
        )

    def _weights(self) -> int:
        """Bytes of the frozen weights; those of whole programs are quantized with their values, not yet: matrices."""
        if self.split is not None:
            return sum(self.graph.weights[name].nbytes for name in bound_weights(self.split))
        kind, group = self.settings["weights"], self.settings["group_size"]
        total = 0
        for name, tensor in self.graph.weights.items():
            matrix = name in self.graph.parameters and tensor.dim() == 2
            if kind == "fp32" or not matrix:
                total += tensor.nbytes
            elif kind == "int8":
                total += tensor.numel() + _FLOAT * tensor.shape[0]
            else:
                total += tensor.numel() // 2 + 2 * tensor.numel() // group
        return total

    def _stage_slots(self, bind: dict[str, str]) -> list[int]:
        return [self.trainable[name] for name in bind.values() if name in self.trainable]

    def _program(self, family: str) -> str:
        programs = self.graph.programs
        return next(name for name in programs if programs[name].called == family)

    def _head_elements(self) -> int:
        head = self.graph.programs[self._program(self.stages[-1].forward)]
        return sum(_product(value.shape) for value in head.inputs if value.role == "activation")

    def _dropout(self) -> int:
        """Bytes of what adapters' inputs are multiplied by: an array for each name that programs call it."""
        arrays: dict[str, int] = {}
        for program in self.graph.programs.values():
            for value in program.inputs:
                if value.role == "dropout":
                    size = _FLOAT * _product(value.shape)
                    arrays[value.name] = max(arrays.get(value.name, 0), size)
        return sum(arrays.values())

    def _region(self) -> int:
        """Bytes of what passes from one stage to the next, at most."""
        most = 0
        for stage in self.stages[:-1]:
            program = self.graph.programs[self._program(stage.forward)]
            most = max(most, sum(_FLOAT * _product(value.shape) for value in program.outputs))
        return most

    def _saved(self, stage: int) -> int:
        """Bytes that a stage takes which saves its products' results, with the activation before it."""
        family = self.stages[stage].saving
        assert family is not None
        outputs = self.graph.programs[self._program(family)].outputs
        saved = sum(_FLOAT * _product(value.shape) for value in outputs if value.role == "saved")
        return _in_pages(self._region()) + _in_pages(saved)

    def _first_saving(self) -> int:
        """The first of the last stages that save their results, as the session chooses them."""
        stage, room = len(self.stages) - 1, self.settings["activation_cache_mb"] * 1_000_000
        while stage > self._base() and self.stages[stage - 1].saving is not None:
            room -= self._saved(stage - 1)
            if room < 0:
                break
            stage -= 1
        return stage

    def _base(self) -> int:
        """Return the first stage that goes backward from an activation."""
        return max(next(n for n, s in enumerate(self.stages) if self._stage_slots(s.bind)), 1)

    def _frozen(self) -> int:
        """The first stage that reads a slot: those below run once for all probes. 0 where these are a table at most."""
        head = len(self.stages) - 1
        reads = (
            number
            for number, stage in enumerate(self.stages[:head])
            if any(
                value.role == "state"
                for value in self.graph.programs[self._program(stage.forward)].inputs
            )
        )
        first = next(reads, head)
        return first if 2 <= first < head else 0

    def _groups(self) -> tuple[int, int]:
        """Stages between two kept activations, and how many are kept, below those that save results."""
        stages = self._first_saving() - self._base()
        every = max(1, min(self.settings["checkpoint_every"], stages))
        return every, -(-stages // every)

    def _activations(self) -> int:
        region = self._region()
        if self.step is not None:
            # The output of the frozen layers is kept while all probes start from it.
            kept = 1 if self.frozen else 0
            if len(self.step.levels) > 1:
                return (_REGIONS_BETWEEN + len(self.step.levels) + kept) * region
            return (2 * (1 if self.graph.copies > 1 else self.copies) + kept) * region
        every, kept = self._groups()
        saving = range(self._first_saving(), len(self.stages) - 1)
        return (2 + every + kept) * _in_pages(region) + sum(map(self._saved, saving))

    def _step(self, order: list[tuple[int, str]], inside: int) -> tuple[int, int]:
        """Operations and moved bytes of a step; ``inside``: bytes of the weights that every program has inside."""
        runs = Counter(self._names(order))
        calls = self.settings["gradient_accumulation_steps"]
        flops = {
            name: times * product_flops(self.graph.programs[name]) for name, times in runs.items()
        }
        for name in self._heads() & flops.keys():
            if self.split is not None and self.footprints[name].skips_zero_rows:
                rows = self._chunks() * self.split.label_rows
                flops[name] = flops[name] * self._entries() // rows
        return (
            calls * sum(flops.values()),
            calls
            * sum(times * (self.footprints[name].moved + inside) for name, times in runs.items()),
        )

    def _entries(self) -> int:
        """Label entries of a call, of all copies that it holds."""
        entries = self.graph.rows * self.graph.max_length
        return entries if self.labels is None else min(entries, self.labels * self.graph.copies)

    def _chunks(self) -> int:
        """Calls of the head for a call of the layers, whose copies' entries share them."""
        return 1 if self.split is None else -(-self._entries() // self.split.label_rows)

    def _heads(self) -> set[str]:
        """Return the programs of a split graph's output head."""
        if self.split is None:
            return set()
        stage = self.stages[-1]
        return {self._program(family) for family in (stage.forward, stage.backward) if family}

    def _names(self, order: list[tuple[int, str]]) -> Iterator[str]:
        """Yield the names of the programs that run, in order."""
        return (self._program(getattr(self.stages[stage], kind)) for stage, kind in order)

    def _order(self, first_order: bool) -> Iterator[tuple[int, str]]:
        """The programs that a call of a step runs, in order: numbers of stages, and the stage's name of the program."""
        head = len(self.stages) - 1
        chunks = self._chunks()
        if self.step is not None:
            yield from ((stage, "forward") for stage in range(self.frozen))
            yield from self._probes(self.step, 0, chunks)
            return
        forward = [(stage, "forward") for stage in range(head)]
        if self.settings["loss"] != "full":  # the losses' own weights come first
            yield from [*forward, *[(head, "forward")] * chunks]
        saving = self._first_saving()
        yield from forward[:saving]
        yield from ((stage, "saving") for stage in range(saving, head))
        yield from [(head, "backward")] * chunks
        yield from ((stage, "from_saved") for stage in reversed(range(saving, head)))
        every, kept = self._groups()
        trained = [stage for stage in range(saving) if self.stages[stage].backward is not None]
        for number in reversed(range(len(trained))):
            # The last group's activations are kept; other groups are recomputed except their end.
            first = number // every * every
            if number // every < kept - 1 and number == min(first + every, len(trained)) - 1:
                yield from forward[trained[first] : trained[number]]
            yield trained[number], "backward"

    def _probes(self, step: StepPlan, level: int, chunks: int) -> Iterator[tuple[int, str]]:
        head = len(self.stages) - 1
        last = level + 1 == len(step.levels)
        end = head if last else step.levels[level + 1].begin
        begin = min(end, max(step.levels[level].begin, self.frozen))
        probes = step.levels[level].probes
        # Copies that are computed together pass a stage one after another, or as rows of one call.
        together = step.copies != "one"
        times = probes // self.graph.copies if together else 1
        for _ in range(1 if together else probes):
            for stage in range(begin, end):
                yield from [(stage, "forward")] * times
            if last:
                yield from [(head, "forward")] * (times * chunks)
            else:
                yield from self._probes(step, level + 1, chunks)

    def _read_weights(self, total: int) -> tuple[StageWeights, ...]:
        if self.split is None:
            return ((("weights", total),),)
        sizes = {name: self.graph.weights[name].nbytes for name in bound_weights(self.split)}
        read = [
            tuple((name, sizes[name]) for name in stage.bind.values() if name in sizes)
            for stage in self.stages
        ]
        return ((), *read[1:])  # the first stage looks rows up


def _in_pages(size: int) -> int:
    return -(-size // _PAGES) * _PAGES


def _moments(settings: dict[str, Any]) -> int:
    """Return the number of optimizer state values per trained value."""
    return 2 if settings["optimizer"] == "adamw" else 1


def _product(shape: Any) -> int:
    total = 1
    for size in shape:
        total *= int(size)
    return total


def bytes_from_disk(runs: Iterable[int], weights: Sequence[StageWeights], room: int) -> int:
    """Bytes that a step reads of its weights once others like it have run (MeBP, section 3.2).

    The system keeps the pages that were used last. A step of a first-order method goes through the layers and back, so
    that the ones that it used last are used next, and only what is beyond memory is read again; a step that only goes
    forward reads every layer again once one does not fit.

    Args:
        runs: the numbers of the stages that a step runs, in order.
        weights: of each stage; stages may share tensors.
        room: bytes of memory for them.
    """
    order = list(runs)
    kept: OrderedDict[tuple[str, int], int] = OrderedDict()
    held, missed, dropped = 0, 0, False
    for first in (True, False):
        missed = 0
        last = None
        for stage in order:
            if stage == last and sum(size for _, size in weights[stage]) <= room:
                continue  # still there, all of it
            for name, size in weights[stage]:
                for piece in range(-(-size // _PIECE)):
                    key = name, piece
                    if key in kept:
                        kept.move_to_end(key)
                        continue
                    kept[key] = min(_PIECE, size - piece * _PIECE)
                    missed += kept[key]
                    held += kept[key]
                    while held > max(room, kept[key]):
                        held -= kept.popitem(last=False)[1]
                        dropped = True
            last = stage
        if first and not dropped:
            return 0
    return missed
