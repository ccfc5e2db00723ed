"""Quantized activations on the NPU: ExecuTorch's QNN quantizer, calibrated on rows of tokens.

Every activation gets one scale and one zero point, from the smallest and largest value that it takes while the program
runs on calibration rows. Weights keep their codes: int8 weights have a scale for each output channel, as QNN has,
and int4 weights one for each group, in steps (``core.int4.quantize_int4``), which is QNN's block-wise expansion.
What calibration does not show is cut off on the device, and two things would be shown wrongly:

- Adapters start at zero and grow. They are calibrated at values up to ``ADAPTER_RANGE``.
- A causal mask of -3e38 would take the whole range of a sum. ``MASKED`` does as well: e^-128 is 0 even in float32 next
  to the scores of a row, and 16 bits still distinguish scores that differ by 0.002.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from zoexport.core.graph import Program, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.ir.samples import sample_inputs

ADAPTER_RANGE = 0.5
MASKED = -128.0
_ROWS = 64
"""Rows of tokens that are calibrated on: fewer cut off values that others reach (with 16, some in a thousand)."""
_PERTURBATION = {"epsilon": 1e-2, "sign": 1.0}
"""By role: copies are perturbed as they are in training."""
_LARGEST_CODE = 7
"""Of QNN's 4 bits, whose range is symmetric."""
_FROM = -1e4
"""Constants below are masks: no weight of a model is."""


def soften_masks(graph: TrainingGraph, program: Program) -> None:
    """Replace what stands for minus infinity in the constants of a program."""
    for value in program.weights():
        tensor = graph.weights[value.name]
        if tensor.is_floating_point() and tensor.numel() and float(tensor.min()) < _FROM:
            graph.weights[value.name] = tensor.clamp(min=MASKED)


def quantize(
    exported: torch.export.ExportedProgram,
    graph: TrainingGraph,
    program: Program,
    *,
    activations: str,
    weights: str,
    soc: str,
    progress: Progress,
) -> torch.export.ExportedProgram:
    """Return an exported program with quantizers around what the HTP computes on integers.

    Args:
        exported: ``program`` with its weights inside. graph: what it is of.
        program: in the form of ``form``.
        activations: int8 or int16. weights: int4 or int8.
        soc: the chip, which decides what can be quantized. progress: see ``core.progress.Progress``.

    Raises:
        ValueError: the quantizer knows a constraint of the chip that the program breaks.
    """
    from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from torchao.quantization.pt2e import MinMaxObserver
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = QnnQuantizer(soc_model=QcomChipset[soc])
    kind = "4w_block" if weights == "int4" else "8w"
    quantizer.set_default_quant_config(
        QuantDtype[f"use_{activations.removeprefix('int')}a{kind}"],
        is_linear_per_channel=True,
        # Not the default, a moving average: it cuts off what only some rows reach.
        act_observer=MinMaxObserver,
    )
    module: Any = exported.module()
    scales = _group_scales(graph, program, module) if weights == "int4" else {}
    quantizer.set_block_size_map({name: (1, size) for name, (_, size) in scales.items()})
    # Results of operators on the CPU: a range would cut off log-probabilities that calibration did not meet.
    on_cpu = [node.name for node in module.graph.nodes if node.target is operator.getitem]
    quantizer.add_discard_nodes(on_cpu)
    prepared = prepare_pt2e(module, quantizer)
    for node in prepared.graph.nodes:
        if node.name in scales:
            observer: Any = prepared.get_submodule(node.args[1].target)
            observer.max_val = _LARGEST_CODE * scales[node.name][0]
            observer.min_val = -observer.max_val
            observer.original_dtype, observer.calibrated = torch.float32, True
    inputs = calibration_inputs(graph, program)
    with torch.no_grad():
        for number, arguments in enumerate(inputs):
            progress(f"calibrating {program.name}", number / len(inputs))
            prepared(*arguments)
        converted = convert_pt2e(prepared)
        return torch.export.export(converted, tuple(inputs[0]), strict=False)


def _group_scales(
    graph: TrainingGraph, program: Program, module: Any
) -> dict[str, tuple[torch.Tensor, int]]:
    """Return scales, float32 (N, groups), and group size of each linear layer with int4 weights."""
    names = {
        f"weight_{number}": f"{value.name}.scales"
        for number, value in enumerate(program.inputs)
        if value.role == "weight"
    }
    found = {}
    for node in module.graph.nodes:
        if node.target is not torch.ops.aten.linear.default:
            continue
        scales = graph.weights.get(names.get(str(node.args[1].target), ""))
        if scales is not None:
            width = node.args[1].meta["val"].shape[1]
            found[node.name] = scales.float(), width // scales.shape[1]
    return found


def calibration_inputs(graph: TrainingGraph, program: Program) -> list[list[torch.Tensor]]:
    """Return the program's arguments for each of the calls that calibrate.

    Tokens are those of ``Measured.calibration``, or are spread over the vocabulary. Adapters' B matrices, zero at
    first, are spread over up to ``ADAPTER_RANGE``; every other call keeps them as small as perturbations are.
    """
    tokens = next(value for value in program.inputs if value.role == "tokens")
    rows, length = tokens.sizes()
    calls = max(1, _ROWS // rows)
    generator = torch.Generator().manual_seed(0)
    sampled = sample_inputs(graph, program)
    vocabulary = int(sampled[tokens.name].max()) + 1
    found: list[list[torch.Tensor]] = []
    for call in range(calls):
        values = dict(sampled)
        values[tokens.name] = _tokens(graph, call, (rows, length), vocabulary, generator)
        for value in program.arguments():
            if value.role == "state" and not graph.initial[value.name].any():
                spread = ADAPTER_RANGE if call % 2 else 0.1 * ADAPTER_RANGE
                uniform = torch.rand(value.sizes(), generator=generator)
                values[value.name] = spread * (2 * uniform - 1)
            elif value.role == "label_positions":
                values[value.name] = torch.randint(
                    0, rows * length, value.sizes(), generator=generator
                )
            elif value.role in _PERTURBATION:
                values[value.name] = torch.full(value.sizes(), _PERTURBATION[value.role])
        found.append([values[value.name] for value in program.arguments()])
    return found


def _tokens(
    graph: TrainingGraph,
    call: int,
    shape: tuple[int, ...],
    vocabulary: int,
    generator: torch.Generator,
) -> torch.Tensor:
    given: Any = graph.measured.calibration
    if given is None:
        return torch.randint(0, vocabulary, shape, generator=generator)
    picked = torch.arange(call * shape[0], (call + 1) * shape[0]) % len(given)
    return given[picked, : shape[1]].clone()
