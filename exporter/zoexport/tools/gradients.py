"""One backward pass a sequence: what becomes of each linear weight's gradient goes to a mapped file, layer by layer.

No weight requires a gradient. A linear layer's forward is replaced by :class:`_Linear`, which keeps its input x and not
its weight W; its backward computes the weight's gradient ``dy^T x`` from that, hands it on at once, and gets W again
for ``dx = dy W``, from its file where a device map keeps it there. So the memory is that of the model (or of the layer
that runs), one layer's gradient, and one sequence's activations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812, as everyone calls it

from zoexport.core.errors import ModelError
from zoexport.tools.linears import Linears, shapes
from zoexport.tools.mapped import MappedTensors, mapped_zeros

if TYPE_CHECKING:
    from zoexport.data.examples import Candidate

Share = Callable[[float], None]


@contextlib.contextmanager
def squared_gradients(
    model: Any, linears: Linears, sequences: Sequence[Candidate], folder: Path, progress: Share
) -> Iterator[MappedTensors]:
    """Yield the diagonal of the empirical Fisher matrix (SensZOQ, section 2.2), for linear weights.

        (1/n) sum_i (grad_W f(W; x_i))^2,  f the mean cross-entropy of sequence i's labels

    Args:
        model: fp32, in eval mode, no gradients; its layers may be under accelerate's hooks.
        linears: of :func:`~zoexport.tools.linears.linear_weights`, from before such hooks.
        sequences: at least one.
        folder: for the scratch file, see :func:`~zoexport.tools.mapped.mapped_zeros`.
        progress: called with the share of the sequences that is done.

    Yields:
        By linear weight's name, float32 (rows, columns); gone when the block is left.

    Raises:
        ModelError: a loss or gradient is not finite. ConfigError: no room for the file.
    """
    with mapped_zeros(shapes(linears), folder) as squares:
        taps = [_Tap(name) for name in linears]

        def add(tap: _Tap) -> None:
            gradient = tap.gradient()
            square = gradient.square_()
            if not bool(torch.isfinite(square.sum())):
                raise _not_finite(f"gradient of {tap.name}")
            squares[tap.name].add_(square.cpu())

        def collect(tap: _Tap, dy: torch.Tensor, x: torch.Tensor) -> None:
            tap.pairs.append((dy, x))
            # A shared weight's gradient is whole with its last use.
            if len(tap.pairs) == tap.uses:
                add(tap)
                tap.reset()

        with _tapped(taps, linears, collect) as anchor:
            for done, sequence in enumerate(sequences):
                progress(done / len(sequences))
                loss = sequence_loss(model, sequence)
                torch.autograd.grad(loss, anchor, allow_unused=True)
                for tap in taps:
                    # A use that the loss does not depend on got no gradient.
                    if tap.pairs:
                        add(tap)
                    tap.reset()
        _average(squares, len(sequences))
        yield squares


@contextlib.contextmanager
def hessian_gradients(
    model: Any, linears: Linears, sequences: Sequence[Candidate], folder: Path, progress: Share
) -> Iterator[MappedTensors]:
    """Hessian times gradient, for GraSP (Wang et al. 2020; SensZOQ, section 4.2).

        (1/n) sum_i H(W; x_i) grad_W f(W; x_i) = (1/n) sum_i grad_W (1/2) ||grad_W f(W; x_i)||^2

    over all linear weights together, other weights being constants. The right side takes two backward passes: the first
    keeps each layer's dy and x, whose product is its gradient, and the second differentiates half the squared norm of
    these products. No gradient is kept; activations are, of both passes.

    Arguments, result and errors are those of :func:`squared_gradients`.
    """
    with mapped_zeros(shapes(linears), folder) as products:
        taps = [_Tap(name) for name in linears]
        first = True

        def collect(tap: _Tap, dy: torch.Tensor, x: torch.Tensor) -> None:
            if first:
                tap.pairs.append((dy, x))
                return
            product = _rows(dy).T @ _rows(x)
            if not bool(torch.isfinite(product.sum())):
                raise _not_finite(f"Hessian-gradient product of {tap.name}")
            products[tap.name].add_(product.cpu())

        def half_squared_norm(sequence: Candidate, anchor: torch.Tensor) -> torch.Tensor:
            loss = sequence_loss(model, sequence)
            torch.autograd.grad(loss, anchor, create_graph=True, allow_unused=True)
            norms = [_apply(_HalfSquare, *tap.rows()) for tap in taps if tap.pairs]
            return torch.stack([norm.cpu() for norm in norms]).sum()

        with _tapped(taps, linears, collect) as anchor:
            for done, sequence in enumerate(sequences):
                progress(done / len(sequences))
                first = True
                norm = half_squared_norm(sequence, anchor)
                first = False
                torch.autograd.grad(norm, anchor, allow_unused=True)
                del norm  # the graphs of both passes
                for tap in taps:
                    tap.reset()
        _average(products, len(sequences))
        yield products


def sequence_loss(model: Any, sequence: Candidate) -> torch.Tensor:
    """Return the mean cross-entropy over a sequence's labels, a scalar.

    Raises:
        ModelError: it is not finite.
    """
    tokens = torch.tensor([sequence.tokens])
    logits = model(input_ids=tokens, use_cache=False).logits[0]
    labels = torch.tensor(sequence.labels, device=logits.device)
    loss = F.cross_entropy(logits.float(), labels)  # ignores labels of -100, as ours
    if not bool(torch.isfinite(loss)):
        raise _not_finite("loss")
    return loss


class _Tap:
    """One linear weight, in the passes of one sequence.

    Attributes:
        uses: products with it in the forward pass.
        pairs: of each use whose gradient has come, output gradient and input (..., outputs), (..., inputs).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        self.uses = 0
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Output gradients (n, outputs) and inputs (n, inputs) of all uses."""
        if len(self.pairs) == 1:
            ((dy, x),) = self.pairs
            return _rows(dy), _rows(x)
        return (
            torch.cat([_rows(dy) for dy, _ in self.pairs]),
            torch.cat([_rows(x) for _, x in self.pairs]),
        )

    def gradient(self) -> torch.Tensor:
        """``dy^T x`` (outputs, inputs)."""
        dy, x = self.rows()
        return dy.T @ x


Collect = Callable[[_Tap, torch.Tensor, torch.Tensor], None]


class _Layer:
    """A linear layer whose products report their gradients."""

    def __init__(self, module: torch.nn.Linear, tap: _Tap, collect: Collect) -> None:
        self._module = module
        self._tap = tap
        self._collect = collect

    def collect(self, dy: torch.Tensor, x: torch.Tensor) -> None:
        self._collect(self._tap, dy, x)

    def forward(self, anchor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self._tap.uses += 1
        return _apply(_Linear, x, anchor, self)

    @property
    def bias(self) -> torch.Tensor | None:
        return self._module.bias

    @contextlib.contextmanager
    def weight(self) -> Iterator[torch.Tensor]:
        """Yield W (outputs, inputs), loaded temporarily if accelerate has offloaded it."""
        hook: Any = getattr(self._module, "_hf_hook", None)
        # In the forward pass accelerate itself has loaded it.
        if hook is None or not self._module.weight.is_meta:
            yield self._module.weight
            return
        hook.pre_forward(self._module)
        try:
            yield self._module.weight
        finally:
            hook.post_forward(self._module, None)


class _Linear(torch.autograd.Function):
    """y = x W^T + b. The anchor requires a gradient and gets none; thus y always requires one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, anchor: torch.Tensor, layer: _Layer) -> torch.Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        with layer.weight() as weight:
            return F.linear(x, weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        ctx.layer.collect(dy, x)
        dx = _apply(_Transposed, dy, ctx.layer) if ctx.needs_input_grad[0] else None
        return dx, None, None


class _Transposed(torch.autograd.Function):
    """dx = dy W, itself differentiable: the second pass of :func:`hessian_gradients` goes through it."""

    @staticmethod
    def forward(ctx: Any, dy: torch.Tensor, layer: _Layer) -> torch.Tensor:
        ctx.layer = layer
        ctx.save_for_backward(dy)
        with layer.weight() as weight:
            return dy @ weight

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        (dy,) = ctx.saved_tensors
        ctx.layer.collect(dy, cotangent)
        with ctx.layer.weight() as weight:
            return F.linear(cotangent, weight), None


class _HalfSquare(torch.autograd.Function):
    """||dy^T x||^2 / 2; the product, as large as the weight, is computed twice and never kept."""

    @staticmethod
    def forward(ctx: Any, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(dy, x)
        return (dy.T @ x).square().sum() / 2

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        dy, x = ctx.saved_tensors
        gradient = (dy.T @ x) * cotangent
        return x @ gradient.T, dy @ gradient


@contextlib.contextmanager
def _tapped(taps: Sequence[_Tap], linears: Linears, collect: Collect) -> Iterator[torch.Tensor]:
    """While inside, every product with a linear weight is a :class:`_Linear`.

    Yields:
        The anchor that all of them depend on.
    """
    anchor = torch.zeros((), requires_grad=True)
    with contextlib.ExitStack() as stack:
        for tap in taps:
            for module in linears[tap.name]:
                # accelerate's own forward loads the weight, then calls this one.
                slot = "_old_forward" if hasattr(module, "_old_forward") else "forward"
                layer = _Layer(module, tap, collect)
                before = vars(module).get(slot)
                setattr(module, slot, lambda x, layer=layer: layer.forward(anchor, x))
                stack.callback(_restore, module, slot, before)
        yield anchor


def _restore(module: torch.nn.Linear, slot: str, before: Any) -> None:
    if before is None:
        delattr(module, slot)
    else:
        setattr(module, slot, before)


def _apply(function: Any, *arguments: Any) -> torch.Tensor:
    return function.apply(*arguments)  # which torch leaves untyped


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _average(sums: MappedTensors, count: int) -> None:
    for name in sums:
        sums[name].div_(count)


def _not_finite(what: str) -> ModelError:
    return ModelError(
        what,
        found="values that are not finite",
        expected="numbers: fp32 has room for every gradient of a sound model",
        fix="Check the model's weights; a text that it was made for may help too.",
    )
