"""drop_inputs: some of an adapter's inputs are left out while it is trained (dropout, Srivastava et al. 2014).

Before, in a program of a split graph::

    h = aten.matmul(x, A)

After, with the input ``dropout.lora_B.<module>`` (rows, length, in), which holds 0 or 1 / (1 - p) as PEFT has it, and
1 while nothing is dropped::

    h = aten.matmul(x * dropout, A)

Left alone: what the frozen layer reads, and programs without adapters. Refused: adapters in the output head, which sees
label positions alone.
"""

from __future__ import annotations

from torch.fx import Node

from zoexport.core.errors import ConfigError
from zoexport.core.graph import Program, TrainingGraph, Value
from zoexport.ir.graphs import (
    add_input,
    aten,
    call,
    is_call,
    keep_path,
    operand,
    placeholders,
    shape_of,
)
from zoexport.passes.split_layers import HEAD

ROLE = "dropout"
_A, _B = "lora_A.", "lora_B."


def drop_inputs(graph: TrainingGraph) -> TrainingGraph:
    """Multiply the input of every adapter by one of the program's.

    Raises:
        ConfigError: an adapter is in the output head.
    """
    for program in graph.programs.values():
        for name, a in list(placeholders(program).items()):
            if name.startswith(_A):
                if program.family == HEAD:
                    raise ConfigError(
                        "setting lora.dropout",
                        found=f"an adapter of {name.removeprefix(_A)}, which is in the output head",
                        expected="adapters in the model's layers",
                        fix="Leave lora.dropout out, or choose other lora.target_modules.",
                    )
                _drop(graph, program, a, name.removeprefix(_A))
    return graph


def _drop(graph: TrainingGraph, program: Program, a: Node, module: str) -> None:
    width, _ = shape_of(a)
    shape = (graph.rows, graph.length, width)
    mask = add_input(program, Value(f"{ROLE}.{_B}{module}", ROLE, "float32", shape))
    nodes = program.module.graph
    for product in list(a.users):
        assert is_call(product, aten.matmul) and product.args[1] is a
        x = operand(product)
        with nodes.inserting_before(product):
            factor = mask
            if shape_of(x) != shape:
                factor = call(nodes, aten.reshape.default, mask, list(shape_of(x)))
                keep_path(factor, product)
            dropped = call(nodes, aten.mul.Tensor, x, factor)
        keep_path(dropped, product)
        product.replace_input_with(x, dropped)
