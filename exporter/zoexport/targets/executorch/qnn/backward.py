"""Backward programs as fp16 can compute them: what autograd writes of norms, softmaxes and sigmoids, said otherwise.

``norm_gradients``. The gradient of a root mean square norm n = r x, r = rsqrt(mean(x^2) + eps)::

    dx = r dn + expand(sum(dn x) * -0.5 * r^3) / d * (2 * x)     ->     dx = r dn - n (r mean(dn n))

Squares of x and cubes of r leave the range of fp16; n does not, and r is mean(abs(n)) / mean(abs(x)), as n = r x.

``layer_norm_gradients``. That of a layer norm, which reads the norm's mean and r; the HTP's operator gives neither::

    y, mean, r = native_layer_norm(x, w, b)      ->     y = layer_norm(x, w, b);  mean = mean(x);  r as above
    dx = (r / d) (dn d - sum(dn) - n sum(dn n))  ->     dx = r (dn - mean(dn) - n mean(dn n))

A sum of fp16 stops at 65504, a mean does not.

``softmax_gradients``. That of a softmax p, whose two products are rounded before one is taken from the other::

    ds = dp p - p sum(dp p)                      ->     ds = p (dp - sum(dp p))

``sigmoid_gradients``. The HTP's sigmoid is off by up to 0.4 % where its operand was reshaped (QNN 2.51), but for
x sigmoid(x), which is another operator of it::

    s = sigmoid(x)                               ->     s = 0.5 + 0.5 tanh(0.5 x)
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import arguments, aten, call, is_call, operand, shape_of
from zoexport.ir.rewrite import Rule, rewrite
from zoexport.targets.executorch.qnn.norms import LEAST_WIDTH

_LEAST_NORMAL = 2.0**-14
"""The least number that fp16 holds with all its digits."""


def norm_gradients(program: Program) -> None:
    """Rewrite the gradients of norms in a backward program, whose recorded shapes are numbers."""
    _apply(program, ((aten.mul,), _norm_gradient))


def _apply(program: Program, *rules: tuple[tuple[Any, ...], Rule]) -> None:
    rewrite(program, rules)
    program.module.graph.eliminate_dead_code()


def _norm_gradient(term: Node) -> Node | None:
    """The second term of dx; the first, r dn, reads the new r too."""
    found = _of_norm(term)
    if found is None:
        return None
    x, root, dn = found
    nodes = term.graph
    with nodes.inserting_before(root.next):
        normed = call(nodes, aten.mul.Tensor, x, root)
        ratio = _ratio(nodes, normed, x) if shape_of(x)[-1] >= LEAST_WIDTH else root
    for user in list(root.users):
        if is_call(user, aten.mul) and user is not normed:
            if {*user.all_input_nodes} == {x, root}:
                user.replace_all_uses_with(normed)
            else:
                user.replace_input_with(root, ratio)
    common = call(nodes, aten.mul.Tensor, dn, normed)
    common = _mean(nodes, common)
    common = call(nodes, aten.mul.Tensor, common, ratio)
    return call(nodes, aten.neg.default, call(nodes, aten.mul.Tensor, normed, common))


def _of_norm(node: Node) -> tuple[Node, Node, Node] | None:
    """x, r and dn where ``node`` is expand(sum(dn x) * -0.5 * r^3) / d * (2 * x)."""
    if len(node.all_input_nodes) != 2:
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


def layer_norm_gradients(program: Program) -> None:
    """Rewrite the layer norms of a backward program, and their gradients."""
    _apply(
        program, ((aten.native_layer_norm,), _with_statistics), ((aten.mul,), _layer_norm_gradient)
    )


def _with_statistics(norm: Node) -> tuple[Node, ...] | None:
    x, shape, weight, bias, eps = arguments(norm)
    if len(shape) != 1:
        return None
    nodes = norm.graph
    result = call(nodes, aten.layer_norm.default, x, shape, weight, bias, eps)
    mean = _mean(nodes, x)
    plain = call(nodes, aten.layer_norm.default, x, shape, None, None, eps)
    return result, mean, _ratio(nodes, plain, call(nodes, aten.sub.Tensor, x, mean))


def _layer_norm_gradient(node: Node) -> Node | None:
    found = _of_layer_norm(node)
    if found is None:
        return None
    root, dn, normed = found
    nodes = node.graph
    common = _mean(nodes, call(nodes, aten.mul.Tensor, dn, normed))
    rest = call(nodes, aten.sub.Tensor, dn, _mean(nodes, dn))
    rest = call(nodes, aten.sub.Tensor, rest, call(nodes, aten.mul.Tensor, normed, common))
    return call(nodes, aten.mul.Tensor, rest, root)


def _of_layer_norm(node: Node) -> tuple[Node, Node, Node] | None:
    """r, dn and n where ``node`` is (r / d) (dn d - sum(dn) - n sum(dn n))."""
    if len(node.all_input_nodes) != 2:
        return None
    share, rest = node.all_input_nodes
    if not (
        is_call(share, aten.div) and is_call(rest, aten.sub) and is_call(rest.args[0], aten.sub)
    ):
        return None
    first, second = arguments(operand(rest))
    last = arguments(rest)[1]
    if not (is_call(first, aten.mul) and is_call(second, aten.sum) and is_call(last, aten.mul)):
        return None
    dn, width = arguments(first)
    if len(last.all_input_nodes) != 2 or operand(second) is not dn or share.args[1] != width:
        return None
    normed, total = last.all_input_nodes
    if not is_call(total, aten.sum) or {*operand(total).all_input_nodes} != {dn, normed}:
        return None
    return operand(share), dn, normed


def _ratio(nodes: Graph, normed: Node, x: Node) -> Node:
    """r from n = r x, of rows that may be zero (those of padding): these have no gradient."""
    size = call(nodes, aten.clamp.default, _mean_size(nodes, x), _LEAST_NORMAL)
    return call(nodes, aten.div.Tensor, _mean_size(nodes, normed), size)


def _mean(nodes: Graph, node: Node) -> Node:
    return call(nodes, aten.mean.dim, node, [-1], True)


def _mean_size(nodes: Graph, node: Node) -> Node:
    return _mean(nodes, call(nodes, aten.abs.default, node))


def softmax_gradients(program: Program) -> None:
    """Rewrite the gradients of softmaxes in a backward program."""
    _apply(program, ((aten.sub,), _softmax_gradient))


def _softmax_gradient(node: Node) -> Node | None:
    if node.kwargs or len(node.all_input_nodes) != 2:
        return None
    product, other = arguments(node)
    if not (is_call(product, aten.mul) and is_call(other, aten.mul)):
        return None
    for dp, p in (arguments(product), arguments(product)[::-1]):
        total = [arg for arg in other.args if arg is not p]
        if not is_call(p, aten._softmax) or len(total) != 1 or not is_call(total[0], aten.sum):
            continue
        if operand(total[0]) is product:
            rest = call(node.graph, aten.sub.Tensor, dp, total[0])
            return call(node.graph, aten.mul.Tensor, p, rest)
    return None


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
