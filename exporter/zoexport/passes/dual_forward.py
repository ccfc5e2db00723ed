"""dual_forward: one forward pass for all 2q perturbed copies (P-RGE sections 3.1-3.2, Algorithm 1).

Before, one copy::

    d = aten.matmul(h, B)                            # h (rows, seq, rank), B (rank, out)

After, with the master B as state::

    B'     = zoexport.zo_update(B, g, learning_rate, seed, step)      # the last step's update, over all queries
    copies = zoexport.zo_perturb(B', eps, seed, step, q)   # (2q, rank, out): B' + eps z_i, B' - eps z_i
    d      = aten.bmm(aten.reshape(h, [2q, -1, rank]), copies), as rows of the 2q copies, one after another

``one_sided_forward`` (FZOO) is the same with ``zo_update_signs`` and the q + 1 copies of
``zo_perturb_signs``: B', B' + eps z_i.

``sequential_forward`` is the baseline MeZO (appendix A.1, Algorithm 2): one copy, chosen by the inputs ``query``
and ``sign``, so that a step calls the program 2q times.

What does not depend on an adapter stays at one copy: ``bind_rows`` repeats a value only where a
computation of the copies reads it. Left alone: programs without adapters.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from zoexport.core.errors import VerifyError
from zoexport.core.graph import Program, Slot, TrainingGraph, Value
from zoexport.ir.graphs import (
    add_input,
    aten,
    call,
    copy_program,
    described,
    is_call,
    operand,
    outputs,
    placeholders,
    record,
    set_outputs,
    shape_of,
    zo,
)

_NOISE = (
    Value("seed", "seed", "int64", (1,)),
    Value("step", "step", "int64", (1,)),
    Value("learning_rate", "learning_rate", "float32", (1,)),
    Value("epsilon", "epsilon", "float32", (1,)),
)
_ONE_COPY = (
    Value("query", "query", "int64", (1,)),
    Value("sign", "sign", "float32", (1,)),
)

VARIES = "varies_by_copy"
"""The ``meta`` key of nodes at which the computation of the copies begins."""


@dataclasses.dataclass(frozen=True)
class _Form:
    """Operators that update and perturb a state tensor; ``copies`` per call of ``perturb``."""

    update: Any
    perturb: Any
    copies: int

    @property
    def sequential(self) -> bool:
        """True if each call makes one copy, chosen by the inputs ``query`` and ``sign``."""
        return self.copies == 1


def dual_forward(graph: TrainingGraph, queries: int) -> TrainingGraph:
    """Derive ``train`` from ``forward``: all 2q copies in one call."""
    form = _Form(zo.zo_update.default, zo.zo_perturb.default, 2 * queries)
    return _zeroth_order(graph, queries, form)


def one_sided_forward(graph: TrainingGraph, queries: int) -> TrainingGraph:
    """Derive ``train`` from ``forward``: one copy that is not moved and q that are, in one call."""
    form = _Form(zo.zo_update_signs.default, zo.zo_perturb_signs.default, queries + 1)
    return _zeroth_order(graph, queries, form)


def sequential_forward(graph: TrainingGraph, queries: int) -> TrainingGraph:
    """Derive ``train`` from ``forward``: one copy a call."""
    form = _Form(zo.zo_update.default, zo.zo_perturb_one.default, 1)
    return _zeroth_order(graph, queries, form)


def _zeroth_order(graph: TrainingGraph, queries: int, form: _Form) -> TrainingGraph:
    program = copy_program(graph.programs["forward"], "train")
    slots = [slot for slot in graph.slots if slot.role == "trainable"]
    masters = placeholders(program)
    noise = {
        value.name: add_input(program, value)
        for value in (
            *_NOISE,
            Value("projected_gradients", "projected_gradients", "float32", (queries,)),
            *(_ONE_COPY if form.sequential else ()),
        )
    }
    results = [
        (value, node)
        for value, node in zip(program.outputs, outputs(program).values(), strict=True)
    ]
    place = {node: number for number, node in enumerate(program.module.graph.nodes)}
    for slot in slots:
        master = masters[slot.name]
        reads = list(master.users)
        # Insert copies at their first use: those of later layers are not in memory yet.
        first = min(reads, key=place.__getitem__)
        with program.module.graph.inserting_before(first):
            updated, perturbed = _perturb(program, slot, master, noise, queries, form)
        for read in reads:
            _read_copies(program, slot, read, master, perturbed, form.copies)
        results.append((Value(slot.name, "state", slot.dtype, slot.shape), updated))
    set_outputs(program, results)
    program.module.graph.eliminate_dead_code()
    graph.programs["train"] = program
    graph.copies = form.copies
    return graph


def _perturb(
    program: Program,
    slot: Slot,
    master: torch.fx.Node,
    noise: dict[str, torch.fx.Node],
    queries: int,
    form: _Form,
) -> tuple[torch.fx.Node, torch.fx.Node]:
    nodes = program.module.graph
    updated = call(
        nodes,
        form.update,
        master,
        noise["projected_gradients"],
        noise["learning_rate"],
        noise["seed"],
        noise["step"],
        slot.tensor_id,
    )
    if form.sequential:
        perturbed = call(
            nodes,
            form.perturb,
            updated,
            noise["epsilon"],
            noise["sign"],
            noise["seed"],
            noise["step"],
            noise["query"],
            slot.tensor_id,
        )
    else:
        perturbed = call(
            nodes,
            form.perturb,
            updated,
            noise["epsilon"],
            noise["seed"],
            noise["step"],
            slot.tensor_id,
            queries,
        )
    return updated, perturbed


def _read_copies(
    program: Program,
    slot: Slot,
    read: torch.fx.Node,
    master: torch.fx.Node,
    perturbed: torch.fx.Node,
    copies: int,
) -> None:
    if not is_call(read, aten.matmul) or read.args[1] is not master:
        raise VerifyError(
            f"[dual_forward] {slot.name}",
            found=f"a use in {described(read)}",
            expected="only uses as the right side of a matrix product",
            fix="Run dual_forward before passes that rewrite the adapters.",
        )
    nodes = program.module.graph
    left = operand(read)
    rank, _ = slot.shape
    trailing = list(shape_of(read)[1:])
    with nodes.inserting_before(read):
        # The copies begin here; recorded shapes are those of one copy until bind_rows has run.
        stacked = record(nodes, left, aten.reshape.default, left, [copies, -1, rank])
        stacked.meta[VARIES] = True
        product = record(nodes, read, aten.bmm.default, stacked, perturbed)
        rows = record(nodes, read, aten.reshape.default, product, [-1, *trailing])
    read.replace_all_uses_with(rows)
    nodes.erase_node(read)
