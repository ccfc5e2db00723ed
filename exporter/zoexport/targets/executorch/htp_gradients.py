"""Gradients in the range of fp16: what a backward program needs on the HTP that a forward one does not.

``scale_gradients``. Gradients of a mean loss are small: at some thousand labels and layers they leave the range of fp16
(6e-8 and up). A backward program is linear in what it is given, so it is given dy / s and its results are multiplied
by s, both on the CPU in float32, with s the largest element of dy::

    dx, dA = backward(h, A, B, dy)     ->     s = max(abs(dy));  dx', dA' = backward(h, A, B, dy / s);  dx = s dx', ...

The head's backward program does so with the gradient of its logits.

``norm_gradients``. The gradient of a root mean square norm n = r x, r = rsqrt(mean(x^2) + eps), as autograd writes it::

    dx = r dn + expand(sum(dn x) * -0.5 * r^3) / d * (2 * x)     ->     dx = r dn - n (r mean(dn n))

Squares of x and cubes of r leave the range; n does not, and r is mean(abs(n)) / mean(abs(x)), as n = r x.

``softmax_gradients``. That of a softmax p, whose two products are rounded before one is taken from the other::

    ds = dp p - p sum(dp p)                            ->     ds = p (dp - sum(dp p))

``sigmoid_gradients``. The HTP's sigmoid is off by up to 0.4 % where its operand was reshaped (QNN 2.51), but for
x sigmoid(x), which is another operator of it::

    s = sigmoid(x)                                     ->     s = 0.5 + 0.5 tanh(0.5 x)

``place_parts``. Parts of a gradient among zeros, which the HTP would write element by element::

    g = slice_scatter(0, a, -1, 0, n) + slice_scatter(0, b, -1, n, 2 n)      ->     g = cat([a, b], -1)
    g = slice_scatter(0, a, -1, n, 2 n)                ->     g = cat([zeros, a], -1)
"""

from __future__ import annotations

import math

from torch.fx import Graph, Node

from zoexport.core.types import Program
from zoexport.ir.graphs import (
    arguments,
    aten,
    call,
    is_call,
    operand,
    output_node,
    outputs,
    placeholders,
    shape_of,
    zo,
)
from zoexport.ir.row_ops import Op, Read, RowProgram
from zoexport.targets.executorch.htp_norms import LEAST_WIDTH

_LEAST = 1e-30
"""Taken for s where every element is smaller: 0 / s is 0."""
_LEAST_NORMAL = 2.0**-14
"""The least number that fp16 holds with all its digits."""


def scale_gradients(program: Program) -> None:
    """Rewrite a backward program, whose recorded shapes are numbers, to scale what it is given and gives."""
    nodes = program.module.graph
    given = _given(program)
    order = {node: number for number, node in enumerate(nodes.nodes)}
    with nodes.inserting_after(max(given, key=order.__getitem__)):
        anchor = nodes.call_function(aten.clone.default)  # a place among the nodes, erased below
    with nodes.inserting_before(anchor):
        scale = _largest(nodes, given)
        for node in given:
            readers = [user for user in node.users if order.get(user, 0)]
            scaled = _by_scale(nodes, Op.DIV, node, scale)
            for reader in readers:
                reader.replace_input_with(node, scaled)
    nodes.erase_node(anchor)
    result = output_node(program.module)
    returned = outputs(program)
    with nodes.inserting_before(result):
        found = [
            _by_scale(nodes, Op.MUL, node, scale) if value.role.endswith("_gradient") else node
            for value, node in zip(program.outputs, returned.values(), strict=True)
        ]
    result.args = (tuple(found),)
    program.module.recompile()


def _given(program: Program) -> list[Node]:
    """The gradients by which all results are linear: the program's inputs, or that of the head's logits."""
    inputs = zip(program.inputs, placeholders(program).values(), strict=True)
    found = [node for value, node in inputs if value.role == "output_gradient"]
    if found:
        return found
    return [
        part
        for node in program.module.graph.nodes
        if is_call(node, zo.label_gradient)
        for part in node.users
        if part.args[1] == 2
    ]


def _largest(nodes: Graph, given: list[Node]) -> Node:
    """The largest element without its sign of all values, at least :data:`_LEAST`: (1, 1)."""
    count = len(given)
    largest = []
    whole = RowProgram((1,), constants=[_LEAST])
    for number, node in enumerate(given):
        *lead, width = shape_of(node)
        rows = math.prod(lead)
        of_rows = RowProgram((rows,), [Read(width, 0, (width,))], [width, width, 1], [2])
        of_rows.code = [(Op.ABS, 1, 0, 0, 0), (Op.MAXIMUM, 2, 1, 0, 0)]
        largest.append(_rows(nodes, [node], of_rows))
        whole.reads.append(Read(rows, 0, (0,)))
        whole.widths.append(rows)
        # Registers: what is read, the largest of each, and the largest so far.
        whole.code.append((Op.MAXIMUM, count + 2 * number, number, 0, 0))
        before = count + 2 * number - 1 if number else -1
        whole.code.append((Op.MAX, count + 2 * number + 1, count + 2 * number, before, 0))
    whole.widths += [1] * (2 * count)
    whole.outputs = [3 * count - 1]
    return _rows(nodes, largest, whole)


def _by_scale(nodes: Graph, op: Op, node: Node, scale: Node) -> Node:
    """``node`` divided by the scale or multiplied by it, in its own shape: a view after it would be a delegate."""
    *lead, width = shape_of(node)
    strides = [math.prod(shape_of(node)[axis + 1 :]) for axis in range(len(lead))]
    reads = [Read(width, 0, tuple(strides)), Read(1, 0, (0,) * len(lead))]
    program = RowProgram(tuple(lead), reads, [width, 1, width], [2], [(op, 2, 0, 1, 0)])
    return _rows(nodes, [node, scale], program)


def _rows(nodes: Graph, inputs: list[Node], program: RowProgram) -> Node:
    return call(nodes, zo.rows_1.default, inputs, program.encoded(), program.constants)


def norm_gradients(program: Program) -> None:
    """Rewrite the gradients of norms in a backward program, whose recorded shapes are numbers."""
    nodes = program.module.graph
    for node in list(nodes.nodes):
        found = _of_norm(node)
        if found is not None:
            made = _gradient(nodes, node, *found)
            node.replace_all_uses_with(made)
    nodes.eliminate_dead_code()
    program.module.recompile()


def _gradient(nodes: Graph, term: Node, x: Node, root: Node, dn: Node) -> Node:
    """The second term of dx; the first, r dn, reads the new r too."""
    with nodes.inserting_before(root.next):
        normed = call(nodes, aten.mul.Tensor, x, root)
        ratio = root
        if shape_of(x)[-1] >= LEAST_WIDTH:
            # Rows of zeros (padding may be) have no gradient, and must not divide by zero.
            size = call(nodes, aten.clamp.default, _mean_size(nodes, x), _LEAST_NORMAL)
            ratio = call(nodes, aten.div.Tensor, _mean_size(nodes, normed), size)
    for user in list(root.users):
        if is_call(user, aten.mul) and user is not normed:
            if {*user.all_input_nodes} == {x, root}:
                user.replace_all_uses_with(normed)
            else:
                user.replace_input_with(root, ratio)
    with nodes.inserting_before(term):
        common = call(nodes, aten.mul.Tensor, dn, normed)
        common = call(nodes, aten.mean.dim, common, [-1], True)
        common = call(nodes, aten.mul.Tensor, common, ratio)
        return call(nodes, aten.neg.default, call(nodes, aten.mul.Tensor, normed, common))


def _mean_size(nodes: Graph, node: Node) -> Node:
    return call(nodes, aten.mean.dim, call(nodes, aten.abs.default, node), [-1], True)


def _of_norm(node: Node) -> tuple[Node, Node, Node] | None:
    """x, r and dn where ``node`` is expand(sum(dn x) * -0.5 * r^3) / d * (2 * x)."""
    if not is_call(node, aten.mul) or len(node.all_input_nodes) != 2:
        return None
    chain, twice = node.all_input_nodes
    if not (is_call(twice, aten.mul) and twice.args[1] == 2.0 and is_call(chain, aten.div)):
        return None
    power, spread = operand(twice), operand(chain)
    if not (is_call(power, aten.pow) and power.args[1] == 1.0 and is_call(spread, aten.expand)):
        return None
    x, scaled = operand(power), operand(spread)
    if not is_call(scaled, aten.mul) or len(scaled.all_input_nodes) != 2:
        return None
    half, cube = scaled.all_input_nodes
    if not (is_call(half, aten.mul) and half.args[1] == -0.5):
        return None
    if not (is_call(cube, aten.pow) and cube.args[1] == 3 and is_call(operand(cube), aten.rsqrt)):
        return None
    total = operand(half)
    product = operand(total) if is_call(total, aten.sum) else None
    if product is None or not is_call(product, aten.mul) or x not in product.all_input_nodes:
        return None
    (dn,) = [arg for arg in product.all_input_nodes if arg is not x]
    return x, operand(cube), dn


def softmax_gradients(program: Program) -> None:
    """Rewrite the gradients of softmaxes in a backward program."""
    nodes = program.module.graph
    for node in list(nodes.nodes):
        if not is_call(node, aten.sub) or node.kwargs or len(node.all_input_nodes) != 2:
            continue
        product, other = arguments(node)
        if not (is_call(product, aten.mul) and is_call(other, aten.mul)):
            continue
        for dp, p in (arguments(product), arguments(product)[::-1]):
            total = [arg for arg in other.args if arg is not p]
            if not is_call(p, aten._softmax) or len(total) != 1 or not is_call(total[0], aten.sum):
                continue
            if operand(total[0]) is product:
                with nodes.inserting_before(node):
                    rest = call(nodes, aten.sub.Tensor, dp, total[0])
                    made = call(nodes, aten.mul.Tensor, p, rest)
                node.replace_all_uses_with(made)
    nodes.eliminate_dead_code()
    program.module.recompile()


def sigmoid_gradients(program: Program) -> None:
    """Rewrite the sigmoids of a backward program."""
    nodes = program.module.graph
    for node in list(nodes.nodes):
        if not is_call(node, aten.sigmoid):
            continue
        x = operand(node)
        readers = [user for user in node.users if not (is_call(user, aten.mul) and x in user.args)]
        if not readers:
            continue
        with nodes.inserting_after(node):
            half = call(nodes, aten.mul.Scalar, x, 0.5)
        with nodes.inserting_before(half.next):
            made = call(nodes, aten.mul.Scalar, call(nodes, aten.tanh.default, half), 0.5)
            made = call(nodes, aten.add.Scalar, made, 0.5)
        for reader in readers:
            reader.replace_input_with(node, made)
    nodes.eliminate_dead_code()
    program.module.recompile()


def place_parts(program: Program) -> None:
    """Rewrite parts among zeros in a backward program, whose recorded shapes are numbers."""
    nodes = program.module.graph
    for node in list(nodes.nodes):
        pair = [_part(arg) for arg in node.all_input_nodes] if is_call(node, aten.add) else []
        if len(pair) == 2 and not node.kwargs and pair[0] and pair[1]:
            first, second = sorted(pair, key=lambda part: part[2])  # type: ignore[index]
            if first[1] == second[1] and first[2] == 0 and first[3] == second[2]:
                if second[3] == shape_of(node)[first[1]]:
                    with nodes.inserting_before(node):
                        made = call(nodes, aten.cat.default, [first[0], second[0]], first[1])
                    node.replace_all_uses_with(made)
    nodes.eliminate_dead_code()
    for node in list(nodes.nodes):
        found = _part(node)
        if found is None:
            continue
        part, axis, begin, end = found
        with nodes.inserting_before(node):
            zeros, size = operand(node), shape_of(node)[axis]
            pieces = [part]
            if begin > 0:
                pieces.insert(0, call(nodes, aten.slice.Tensor, zeros, axis, 0, begin))
            if end < size:
                pieces.append(call(nodes, aten.slice.Tensor, zeros, axis, end, size))
            made = call(nodes, aten.cat.default, pieces, axis)
        node.replace_all_uses_with(made)
    nodes.eliminate_dead_code()
    program.module.recompile()


def _part(node: Node) -> tuple[Node, int, int, int] | None:
    """The part, axis, begin and end where ``node`` is a part among zeros."""
    if not is_call(node, aten.slice_scatter) or not is_call(operand(node), aten.full):
        return None
    zeros, part, *place = arguments(node)
    axis, begin, end, step = [*place, *[0, None, None, 1][len(place) :]]
    if arguments(zeros)[1] != 0 or step != 1:
        return None
    size = shape_of(node)[axis]
    begin, end, _ = slice(begin, end).indices(size)
    return part, axis % len(shape_of(node)), begin, end
