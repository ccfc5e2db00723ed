"""Matrix products and planned memory of a compiled program, read from its file.

Products inside a delegate are not counted; programs of split bundles have no delegates.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.ir.counts import attention_flops
from zoexport.session import Bundle

QUANTIZED = (
    "linear_int4",
    "linear_int4_bf16",
    "rounded_linear",
    "linear_int8",
    "linear_int8_bf16",
)
_GRADIENT = "_input_gradient"


@dataclasses.dataclass(frozen=True)
class Product:
    """One kind of product: ``batches`` times (rows, depth) by (depth, columns).

    Attributes:
        operator: ``matmul``, ``linear_int4``, ``linear_int4_input_gradient``, ``linear_int8``, ...; of a linear layer
            the depth is its inputs and the columns its outputs, of its gradient the other way round.
        group_size: int4 weights that share a scale; 0 for others.
    """

    operator: str
    batches: int
    rows: int
    depth: int
    columns: int
    group_size: int = 0

    @property
    def flops(self) -> int:
        """Additions and multiplications."""
        return 2 * self.batches * self.rows * self.depth * self.columns

    @property
    def int4(self) -> bool:
        """Whether one factor is an int4 weight."""
        return "_int4" in self.operator

    @property
    def gradient(self) -> bool:
        """Whether it is a linear layer's gradient by its input."""
        return self.operator.endswith(_GRADIENT)

    def __str__(self) -> str:
        return f"{self.operator} {self.rows} x {self.depth} x {self.columns}"


@dataclasses.dataclass(frozen=True)
class Content:
    """How often a call of a program computes each product, and the bytes that are planned for the program.

    Attributes:
        attention_flops: operations of the products within ``attention`` and its gradient, for visible tokens.
    """

    products: Mapping[Product, int]
    planned_bytes: int
    attention_flops: int = 0

    @property
    def flops(self) -> int:
        """Floating-point operations of all products of a call, those within attention among them."""
        products = sum(product.flops * count for product, count in self.products.items())
        return products + self.attention_flops


def contents(bundle: Path) -> dict[str, Content]:
    """Return what the programs of a bundle for ExecuTorch compute, by the program's name.

    Raises:
        BundleError: the bundle is missing or damaged.
    """
    manifest = Bundle.open(bundle).manifest
    from executorch.exir._serialize._program import deserialize_pte_binary

    plans: dict[tuple[str, str], Any] = {}
    for file in sorted({program["file"] for program in manifest["programs"]}):
        read: Any = deserialize_pte_binary((bundle / file).read_bytes())
        plans |= {(file, plan.name): plan for plan in read.program.execution_plan}
    return {
        program["name"]: _content(plans[program["file"], program["entry_point"]])
        for program in manifest["programs"]
    }


def _content(plan: Any) -> Content:
    products: Counter[Product] = Counter()
    attention = 0
    for chain in plan.chains:
        for instruction in chain.instructions:
            call = instruction.instr_args
            if type(call).__name__ == "KernelCall":
                operator = plan.operators[call.op_index].name
                values = [plan.values[index].val for index in call.args]
                arguments = list(map(_argument, values))
                attention += flops_of_attention(operator, arguments)
                product = product_of(operator, arguments)
                if product is not None:
                    products[product] += 1
    return Content(dict(products), sum(plan.non_const_buffer_sizes), attention)


def flops_of_attention(operator: str, arguments: Sequence[Any]) -> int:
    """Floating-point operations of the products within a call of attention or its gradient; 0 of another operator.

    Args:
        operator, arguments: as :func:`product_of` takes them.
    """
    place = {"zoexport::attention": 5, "zoexport::attention_gradient": 8}.get(operator)
    if place is None:
        return 0
    causal, window = arguments[place : place + 2]
    gradient = operator.endswith("_gradient")
    return attention_flops(arguments[0], arguments[2][-1], causal, window, gradient=gradient)


def _argument(value: Any) -> Any:
    kind = type(value).__name__
    if kind == "Tensor":
        return tuple(value.sizes)
    if kind == "Int":
        return value.int_val
    return value.bool_val if kind == "Bool" else None


def product_of(operator: str, arguments: Sequence[Any]) -> Product | None:
    """The product that a call of an operator is, or None.

    Args:
        operator: such as ``zoexport::linear_int4``.
        arguments: of each its shape where it is a tensor, its value where it is a boolean or an integer, else None.
    """
    name = operator.removeprefix("zoexport::")
    if name in ("matmul", "add_matmul"):
        a, b, transpose_a, transpose_b = arguments[1:5] if name == "add_matmul" else arguments[:4]
        rows, depth = (a[-1], a[-2]) if transpose_a else (a[-2], a[-1])
        return Product(name, math.prod(a[:-2]), rows, depth, b[-2] if transpose_b else b[-1])
    layer = name.removesuffix(_GRADIENT)
    if layer not in QUANTIZED:
        return None
    x, codes, scales = arguments[:3]
    # Two int4 weights share a byte.
    int4 = "_int4" in layer
    outputs, inputs = codes[0], codes[1] * (2 if int4 else 1)
    group = inputs // scales[1] if int4 else 0
    depth, columns = (inputs, outputs) if name == layer else (outputs, inputs)
    return Product(name, 1, math.prod(x[:-1]), depth, columns, group)
