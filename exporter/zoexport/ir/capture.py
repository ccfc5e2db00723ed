"""Capture: a Hugging Face language model becomes one program, ``forward``.

The graph has a symbolic batch and a fixed sequence length. Rows are padded on the right, so the causal mask
alone keeps padding out of every label position. A masked language model has none: its mask is computed from the tokens,
so that no program needs an attention mask as input.

Rotary frequencies that depend on the length of the rows (longrope, dynamic NTK) are captured for short rows;
``position_limit`` excludes longer rows.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import Dim as ExportDim
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
)

from zoexport.core.encoders import model_inputs, pad_token
from zoexport.core.errors import ModelError, ModelPhases
from zoexport.core.graph import Dim, ModelGraph, Program, Value
from zoexport.core.interpreted import InterpretedGraph
from zoexport.core.sizes import sizes
from zoexport.ir.complex_numbers import complex_as_pairs
from zoexport.ir.graphs import described, output_node, writes
from zoexport.ir.normalize import normalize
from zoexport.ir.repeated import Repeated, Unlike

ROWS = "rows"
_MAX_ROWS = 1 << 16


class _LogitsOnly(torch.nn.Module):
    """The model as a function of token ids alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids (rows, max_length) to logits (rows, max_length, vocabulary)."""
        logits: torch.Tensor = self.model(**model_inputs(self.model, tokens)).logits
        return logits


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's and the model's chatter out of the user's terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        previous = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(previous)


_BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary embeddings whose frequencies depend on the length of the longest row."""


def position_limit(model: torch.nn.Module) -> int | None:
    """Return the most tokens that a row may have, or None if the configuration does not limit them.

    With longrope this is the original context length: longer rows have other rotary frequencies.
    """
    limits = [capture_limit(model)]
    for module in _rotary_by_length(model):
        for layer_type, kind in _rotary_kinds(module).items():
            if kind == "longrope":
                parameters = module.config.rope_parameters
                own = parameters if layer_type is None else parameters[layer_type]
                limits.append(own["original_max_position_embeddings"])
    return min((limit for limit in limits if limit is not None), default=None)


def capture_limit(model: torch.nn.Module) -> int | None:
    """Return how many positions a model has, or None if the configuration does not limit them.

    A model can be captured at this length even if its rows must be shorter (``position_limit``).
    """
    config = getattr(model, "config", None)
    # MPT's slopes are made for so many positions.
    limit = getattr(config, "max_seq_len", None)
    if config is not None:
        limit = getattr(sizes(config), "max_position_embeddings", limit)
    if not isinstance(limit, int) or limit < 1:  # XLNet has -1
        return None
    # RoBERTa's position table has a row for padding, and positions count from the one after it.
    padding = [
        table.padding_idx + 1
        for name, table in model.named_modules()
        if isinstance(table, torch.nn.Embedding)
        and table.padding_idx is not None
        and table.num_embeddings == limit
        and "position" in name
    ]
    return limit - max(padding, default=0)


def _rotary_by_length(model: torch.nn.Module) -> list[Any]:
    """Return the rotary embeddings whose frequencies depend on the length of the longest row."""
    return [
        module
        for module in model.modules()
        if any(kind in _BY_LENGTH for kind in _rotary_kinds(module).values())
    ]


def _rotary_kinds(module: Any) -> dict[str | None, str]:
    """Return the kinds of a rotary embedding by layer type (None: all layers), as transformers names them."""
    kind = getattr(module, "rope_type", None)
    if isinstance(kind, str):
        return {None: kind}
    return dict(kind) if isinstance(kind, dict) else {}


@contextlib.contextmanager
def _short_rotary(model: torch.nn.Module) -> Iterator[None]:
    """Keep rotary frequencies that depend on the length of the rows at those of short rows."""
    with contextlib.ExitStack() as stack:
        for module in _rotary_by_length(model):
            kinds, buffers = module.rope_type, dict(module._buffers)
            stack.callback(setattr, module, "rope_type", kinds)
            stack.callback(module._buffers.update, buffers)
            if isinstance(kinds, str):
                module.rope_type = "default"
            else:
                module.rope_type = dict.fromkeys(kinds, "default")
            for name in buffers:
                # A forward pass over longer rows leaves their frequencies in the module.
                if name.endswith("original_inv_freq"):
                    short = buffers[name].clone()
                    module._buffers[name.replace("original_inv_freq", "inv_freq")] = short
        yield


def capture(model: torch.nn.Module, length: int, *, max_length: int | None = None) -> ModelGraph:
    """Capture ``model`` at a sequence length.

    Args:
        model: a causal or masked language model in eval mode, fp32, whose output has ``logits``.
        length: tokens a row in the graph, at least 2.
        max_length: most tokens of the rows that the programs are for; None: ``length``.

    Returns:
        A training graph with the single program ``forward``: inputs are every parameter, buffer and
        constant (role ``weight``) and ``tokens`` int64 (rows, length); the output is ``logits``
        float32 (rows, length, vocabulary). Names of weights are the model's own paths.

    Raises:
        ModelError: torch.export cannot take the model, or it has fewer positions than ``max_length``.
    """
    rows = length if max_length is None else max_length
    limit = position_limit(model)
    if limit is not None and rows > limit:
        positions = capture_limit(model)
        raise ModelError(
            "setting 'max_length'",
            found=str(rows),
            expected=f"at most the model's {limit} positions"
            if limit == positions
            else f"at most {limit} tokens, as longer rows have other rotary frequencies (longrope)",
            fix=f"Choose --set max_length={limit} or less.",
        )
    example = torch.zeros((3, length), dtype=torch.int64)
    phases = ModelPhases(type(model).__name__, "capturing it with torch.export")
    with phases.explained(), torch.no_grad(), quiet(), _short_rotary(model):
        try:
            exported = _exported(_LogitsOnly(model), example)
        except GuardOnDataDependentSymNode as error:
            found = f"sizes that depend on the values of tokens ({error.cond})"
            raise _refused(type(model).__name__, found) from error
        if any(map(writes, exported.graph.nodes)):
            exported = exported.run_decompositions({})
        _check_exported(exported, type(model).__name__)
        graph = _as_training_graph(exported, length)
    graph.max_length = rows
    graph.pad_token = pad_token(model)
    return graph


def _check_exported(exported: torch.export.ExportedProgram, name: str) -> None:
    """Check that sizes depend on the shape of the tokens alone, and that no weight changes.

    Raises:
        ModelError: they do not, or one changes.
    """
    for spec in exported.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise _refused(name, f"a forward pass that changes {spec.target}")
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and any(map(free_unbacked_symbols, value.shape)):
            raise _refused(name, f"sizes that depend on the values of tokens ({described(node)})")


def _refused(name: str, found: str) -> ModelError:
    return ModelError(
        f"model {name}",
        found=found,
        expected="a function of the tokens with the same operations for all tokens",
        fix="Choose another model.",
    )


def _exported(model: torch.nn.Module, tokens: torch.Tensor) -> torch.export.ExportedProgram:
    def export() -> torch.export.ExportedProgram:
        rows = ExportDim(ROWS, min=1, max=_MAX_ROWS)
        return torch.export.export(
            model,
            (tokens,),
            dynamic_shapes=({0: rows},),
            strict=False,
            # Some conditions on strides (Llama 4's experts) hold for all rows, which torch cannot show.
            prefer_deferred_runtime_asserts_over_guards=True,
        )

    repeated = Repeated(model)
    with repeated.traced_once():
        exported = export()
    try:
        repeated.write_out(exported.graph, exported.graph_signature)
    except Unlike:
        return export()
    return exported


def _as_training_graph(exported: torch.export.ExportedProgram, max_length: int) -> ModelGraph:
    signature = exported.graph_signature
    weights: dict[str, torch.Tensor] = {}
    names: dict[tuple[Any, ...], str] = {}
    inputs: list[Value] = []
    module = exported.graph_module
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    kept: dict[str, torch.fx.Node] = {}
    parameters: set[str] = set()
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(Value("tokens", "tokens", "int64", (Dim(ROWS, 1, _MAX_ROWS), max_length)))
            continue
        if not node.users:
            module.graph.erase_node(node)
            continue
        assert spec.target is not None
        tensor = _tensor_of(exported, spec.kind, spec.target).detach()
        identity = (tensor.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.numel() and identity in names:
            # Tied weights are one tensor under two names.
            node.replace_all_uses_with(kept[names[identity]])
            module.graph.erase_node(node)
            continue
        name = spec.target.removeprefix("model.")
        names[identity] = name
        kept[name] = node
        weights[name] = tensor
        if spec.kind is InputKind.PARAMETER:
            parameters.add(name)
        inputs.append(
            Value(name, "weight", str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        )
    module.graph.lint()
    returned: Any = output_node(module).args[0]
    shape = returned[0].meta["val"].shape
    outputs = [
        Value("logits", "logits", "float32", (Dim(ROWS, 1, _MAX_ROWS), max_length, int(shape[-1])))
    ]
    graph = InterpretedGraph(module.graph)
    program = Program("forward", graph, inputs, outputs)
    complex_as_pairs(program)
    normalize(program)
    return ModelGraph(
        {"forward": program}, weights, [], {}, max_length, max_length, rows=0, parameters=parameters
    )


def _tensor_of(
    exported: torch.export.ExportedProgram, kind: InputKind, target: str
) -> torch.Tensor:
    if kind is InputKind.PARAMETER or (kind is InputKind.BUFFER and target in exported.state_dict):
        found = exported.state_dict[target]
    else:
        found = exported.constants[target]
    assert isinstance(found, torch.Tensor)
    return found
