"""Program files of strangers: what they say of sizes and offsets is looked at before it is used."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

from tests.support import linear_program
from tests.support.strangers import in_child, rewrite, step, steps
from zoexport.core.files import sha256

ALTERED = 150


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return linear_program.write(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([2**63 - 1, 2**63 - 1], "2^64 bytes or more"),
        ([2**62, 64], f"{2**62 + 64} bytes"),
        ([2**41], f"{2**41} bytes"),
        ([-64], "2^64 bytes or more"),
    ],
)
def test_planned_memory_is_added_up(bundle: Path, sizes: list[int], found: str) -> None:
    """Two buffers of 2^63 - 1 bytes are no buffer of 0 bytes."""
    file = deserialize_pte_binary((bundle / "model.bin").read_bytes())
    for plan in file.program.execution_plan:
        plan.non_const_buffer_sizes = [0, *sizes]  # the first is a place holder
    (bundle / "model.bin").write_bytes(bytes(serialize_pte_binary(file)))
    rewrite(bundle)
    message = in_child(step, bundle)
    assert f"tensors that take {found}, and" in message and "in this machine" in message


def change(bundle: Path, alter: Callable[[Any], None]) -> str:
    """The message of a step with both methods altered."""
    file = deserialize_pte_binary((bundle / "model.bin").read_bytes())
    for plan in file.program.execution_plan:
        alter(plan)
    (bundle / "model.bin").write_bytes(bytes(serialize_pte_binary(file)))
    rewrite(bundle)
    return in_child(step, bundle)


def test_a_tensor_without_memory_is_refused(bundle: Path) -> None:
    def alter(plan: Any) -> None:
        place = next(
            index
            for index, value in enumerate(plan.values)
            if getattr(value.val, "allocation_info", None) is not None
            and index not in [*plan.inputs, *plan.outputs]
        )
        plan.values[place].val.allocation_info = None

    assert "a tensor without memory" in change(bundle, alter)


def views(plan: Any) -> list[int]:
    """Where the instructions are that give a tensor the memory of another one."""
    names = [one.name for one in plan.operators]
    return [
        place
        for place, instruction in enumerate(plan.chains[0].instructions)
        if getattr(instruction.instr_args, "op_index", None) is not None
        and names[instruction.instr_args.op_index] == "executorch_prim::et_view"
    ]


def test_a_view_of_a_tensor_without_memory_is_refused(bundle: Path) -> None:
    def alter(plan: Any) -> None:
        call = plan.chains[0].instructions[views(plan)[0]].instr_args
        viewed = copy.deepcopy(plan.values[call.args[0]])
        viewed.val.allocation_info = None
        plan.values.append(viewed)
        call.args[0] = len(plan.values) - 1

    assert "a tensor without memory" in change(bundle, alter)


@pytest.mark.parametrize("too_late", [False, True])
def test_a_view_has_memory_from_where_it_is_made(bundle: Path, too_late: bool) -> None:
    def alter(plan: Any) -> None:
        instructions = plan.chains[0].instructions
        view = instructions[views(plan)[-1]]
        result = view.instr_args.args[2]
        plan.values[result].val.allocation_info = None
        if too_late:
            instructions.remove(view)
            readers = [n for n, one in enumerate(instructions) if result in one.instr_args.args]
            instructions.insert(readers[0] + 1, view)

    message = change(bundle, alter)
    assert "a tensor without memory" in message if too_late else message == ""


def test_an_input_that_is_a_constant_is_refused(bundle: Path) -> None:
    """ExecuTorch would copy the caller's input over it, and the other method would read that."""

    def alter(plan: Any) -> None:
        tensor = plan.values[plan.inputs[3]].val
        constants = [value.val for value in plan.values if hasattr(value.val, "data_buffer_idx")]
        tensor.data_buffer_idx = max(one.data_buffer_idx for one in constants)
        tensor.allocation_info = None

    assert "an input that is a constant" in change(bundle, alter)


def test_a_write_into_a_constant_changes_no_file(bundle: Path) -> None:
    """The file is mapped: the process goes on with pages of its own."""
    methods = 0

    def alter(plan: Any) -> None:
        nonlocal methods
        constants = [one.val for one in plan.values if getattr(one.val, "data_buffer_idx", 0) > 0]
        largest = max(constants, key=lambda one: math.prod(one.sizes))
        viewed = {plan.chains[0].instructions[place].instr_args.args[0] for place in views(plan)}
        written = next(
            value
            for instruction in plan.chains[0].instructions
            for index in [getattr(instruction.instr_args, "args", [0])[-1]]
            for value in [plan.values[index].val]
            if getattr(value, "allocation_info", None) is not None
            and value.scalar_type == largest.scalar_type
            and math.prod(value.sizes) <= math.prod(largest.sizes)
            and index not in [*plan.inputs, *plan.outputs, *viewed]
        )
        written.allocation_info, written.data_buffer_idx = None, largest.data_buffer_idx
        methods += 1

    message = change(bundle, alter)
    assert message == "" and methods > 0
    stated = json.loads((bundle / "manifest.json").read_text("utf-8"))["files"]["model.bin"]
    assert sha256(bundle / "model.bin") == stated["sha256"]


@pytest.mark.parametrize("shift", [0, 4, 64])
def test_tensors_of_an_instruction_that_overlap_are_refused(bundle: Path, shift: int) -> None:
    """Operators copy from one to the other as if they did not; the same memory for both is allowed."""

    def alter(plan: Any) -> None:
        def place(index: int) -> Any:
            return getattr(plan.values[index].val, "allocation_info", None)

        call, result = next(
            (instruction.instr_args, result)
            for number, instruction in enumerate(plan.chains[0].instructions)
            if hasattr(instruction.instr_args, "op_index") and number not in views(plan)
            for result in [instruction.instr_args.args[-1]]
            if place(result) is not None
            and any(
                place(index) is not None for index in instruction.instr_args.args if index != result
            )
        )
        read = next(index for index in call.args if index != result and place(index) is not None)
        plan.values[result].val.allocation_info = copy.copy(place(read))
        plan.values[result].val.allocation_info.memory_offset_low += shift
        plan.non_const_buffer_sizes = [size + 4096 for size in plan.non_const_buffer_sizes]

    message = change(bundle, alter)
    assert ("tensors of one instruction whose planned memory overlaps" in message) == (shift > 0)


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_arguments_that_are_not_there(bundle: Path, kept: int) -> None:
    """What lies beside an operator's arguments is not read as one."""

    def alter(plan: Any) -> None:
        names = [f"{one.name}.{one.overload}" for one in plan.operators]
        for instruction in plan.chains[0].instructions:
            call = instruction.instr_args
            if hasattr(call, "op_index") and names[call.op_index].startswith("zoexport::zo_"):
                call.args = call.args[:kept]

    message = change(bundle, alter)
    assert "the arguments must be those of the operator's schema" in message


@pytest.mark.parametrize("word", [0x7FFFFFF0, -4])
def test_offsets_are_looked_at(bundle: Path, word: int) -> None:
    """The file begins with the offset of its first table: here one beyond the file, and one at its end."""
    content = bytearray((bundle / "model.bin").read_bytes())
    content[:4] = (word if word > 0 else len(content) + word).to_bytes(4, "little")
    (bundle / "model.bin").write_bytes(content)
    rewrite(bundle)
    assert "while opening, ExecuTorch error" in in_child(step, bundle)


@pytest.mark.parametrize("seed", [1, 2])
def test_altered_programs(bundle: Path, seed: int) -> None:
    """Programs with altered words end in a message, or run; none ends the process."""
    messages = json.loads(in_child(steps, bundle, seed, ALTERED))
    assert len(messages) == ALTERED and sum(map(bool, messages)) > ALTERED // 10
