"""What a compiled program computes, read from its file: its matrix products and its planned memory.

Products inside a delegate cannot be seen: programs of split bundles have none.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core import manifest as manifests

QUANTIZED = (
    "linear_int4",
    "linear_int4_bf16",
    "rounded_linear_int4",
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
    def bytes(self) -> int:
        """Of both factors and the result, each once: what a product moves if it reads nothing again from memory."""
        weight = self.depth * self.columns
        if not self.quantized:
            weight *= 4
        elif self.int4:
            weight = weight // 2 + weight // self.group_size * 2
        return self.batches * (weight + 4 * self.rows * (self.depth + self.columns))

    @property
    def quantized(self) -> bool:
        """Whether one factor is a packed weight."""
        return self.operator.removesuffix(_GRADIENT) in QUANTIZED

    @property
    def int4(self) -> bool:
        """Whether that weight has two codes a byte, and scales of groups."""
        return self.quantized and "_int4" in self.operator

    @property
    def gradient(self) -> bool:
        """Whether it is a linear layer's gradient by its input."""
        return self.operator.endswith(_GRADIENT)

    def __str__(self) -> str:
        return f"{self.operator} {self.rows} x {self.depth} x {self.columns}"


@dataclasses.dataclass(frozen=True)
class Content:
    """A program: how often it computes each product in a call, and the bytes that are planned for it.

    Attributes:
        attention_flops: of the products within ``attention`` and its gradient, for tokens that see each other.
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
    """What the programs of a bundle compute, by the program's name.

    Raises:
        BundleError: the bundle is missing or damaged.
    """
    manifest = manifests.read(bundle)
    if manifest["engine"] == "vulkan":
        return _of_vulkan(bundle, manifest)
    from executorch.exir._serialize._program import deserialize_pte_binary

    plans: dict[tuple[str, str], Any] = {}
    for file in sorted({program["file"] for program in manifest["programs"]}):
        read: Any = deserialize_pte_binary((bundle / file).read_bytes())
        plans |= {(file, plan.name): plan for plan in read.program.execution_plan}
    return {
        program["name"]: _content(plans[program["file"], program["method"]])
        for program in manifest["programs"]
    }


def _of_vulkan(bundle: Path, manifest: Mapping[str, Any]) -> dict[str, Content]:
    """Of a file of shaders' calls (docs/android-gpu.md), whose weights have kinds and no operators of their own."""
    from zoexport.ir.counts import attention_flops

    files = {program["file"] for program in manifest["programs"]}
    stated = {file: json.loads((bundle / file).read_text("utf-8")) for file in files}
    found = {}
    for program in manifest["programs"]:
        calls = stated[program["file"]]["programs"][program["method"]]
        products: Counter[Product] = Counter()
        attention = 0
        for call in calls["calls"]:
            if call["op"] == "product":
                operands = (call[key] for key in ("a", "b"))
                weights = [
                    one["kind"] for one in operands if isinstance(one, dict) and "kind" in one
                ]
                sizes = (call[key] for key in ("batch", "rows", "depth", "columns"))
                products[Product(" ".join(["product", *weights]), *sizes)] += 1
            elif call["op"] in ("attention", "attention_gradient"):
                q = [call[key] for key in ("batches", "tokens", "heads", "depth")]
                gradient = call["op"] == "attention_gradient"
                seen = call["causal"], call["window"]
                attention += attention_flops(q, call["width"], *seen, gradient=gradient)
        found[program["name"]] = Content(dict(products), 4 * calls["words"], attention)
    return found


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
    from zoexport.ir.counts import attention_flops

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
