"""Lowering to the Hexagon NPU: what a program computes on the HTP is one delegate of Qualcomm's QNN.

Noise, update and the labels' log-probabilities are zoexport's operators on the CPU, before and after the delegate in
the same method of the same .pte: 2q copies of each adapter go in, logits come out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoexport.core import qnn
from zoexport.core.config import as_dict
from zoexport.core.graph import TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Lowered
from zoexport.ir.capture import quiet
from zoexport.ir.graphs import copy_graph, operand, outputs, record, set_outputs
from zoexport.targets.entries import program_entry
from zoexport.targets.executorch.program_file import FILE, refused, write_programs
from zoexport.targets.executorch.qnn.exported import (
    delegates_of,
    export_program,
    fallback_of,
    products_among,
)
from zoexport.targets.executorch.qnn.form import for_htp
from zoexport.targets.executorch.qnn.quantize import quantize, soften_masks

OURS = "zoexport's own, computed on the CPU"


def lower_qnn(
    graph: TrainingGraph,
    config: TrainingSettings,
    soc: str,
    folder: Path,
    progress: Progress,
    file: str = FILE,
) -> Lowered:
    """Lower every program of ``graph`` into ``folder/file``.

    Args:
        graph: of whole programs.
        config: its settings. soc: the chip, one of :func:`chips`.
        folder: the bundle's folder. progress: see ``core.progress.Progress``.

    Raises:
        LoweringError: ExecuTorch or QNN refused a program.
        ZoExportError: QNN's libraries cannot be loaded.
    """
    graph = copy_graph(graph)
    _evaluate_by_training(graph)
    quantized = config.activations != "fp32"
    exported = {}
    programs = {name: for_htp(graph, name) for name in graph.programs}
    try:
        with qnn.lowering(), quiet():
            for name, program in programs.items():
                progress(f"exporting {name}", None)
                if quantized:
                    soften_masks(graph, program)
                exported[name] = export_program(program, graph.weights)
                if quantized:
                    exported[name] = quantize(
                        exported[name],
                        graph,
                        program,
                        activations=as_dict(config)["activations"],
                        weights=config.weights,
                        soc=soc,
                        progress=progress,
                    )
            phase = f"lowering to the NPU of {soc}"
            progress(phase, None)
            with _reported(progress, phase):
                edge, reasons = to_edge(
                    exported, soc, fp16=not quantized, groups=quantized and config.weights == "int4"
                )
            delegates = {name: delegates_of(edge.exported_program(name)) for name in exported}
            fallback = {name: fallback_of(edge.exported_program(name)) for name in exported}
            progress("writing the program file", None)
            executorch = edge.to_executorch()
    except Exception as error:
        raise refused(f"lowering to the NPU of {soc}", error) from error
    required, backends = write_programs(executorch, folder, file)
    return Lowered(
        "qnn",
        graph,
        [program_entry(program, file) for program in programs.values()],
        required,
        delegates,
        fallback,
        fallback_reasons={
            name: {operator: reasons[name].get(operator, OURS) for operator in operators}
            for name, operators in fallback.items()
        },
        products_outside={name: products_among(found) for name, found in fallback.items()},
        backends=backends,
        packing=f"qnn-{config.weights}" if quantized else "fp16",
    )


def _evaluate_by_training(graph: TrainingGraph) -> None:
    """Remove ``evaluate``, which would contain all weights again, and let ``train`` return its outputs.

    The session evaluates with ``train``, without perturbations, and reads the first copy.
    """
    del graph.programs["evaluate"]
    train = graph.programs["train"]
    first, *rest = zip(train.outputs, outputs(train).values(), strict=True)
    value, logprobs = first
    with train.module.graph.inserting_after(logprobs):
        is_argmax = record(train.module.graph, logprobs, operator.getitem, operand(logprobs), 1)
    name = "label_is_argmax"
    own = dataclasses.replace(value, name=name, role=name), is_argmax
    set_outputs(train, [first, own, *rest])


def chips() -> list[str]:
    """Return the names of the chips that ExecuTorch's backend knows."""
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset

    return sorted(chip.name for chip in QcomChipset if chip.value)


def has_fp16(soc: str) -> bool:
    """Return whether a chip's HTP supports fp16 (V69 and later). QNN itself checks it late."""
    from executorch.backends.qualcomm.serialization.qc_schema import (
        HtpArch,
        QcomChipset,
        _soc_info_table,
    )

    return bool(_soc_info_table[QcomChipset[soc]].htp_info.htp_arch >= HtpArch.V69)


def to_edge(
    exported: dict[str, Any], soc: str, *, fp16: bool, groups: bool = False
) -> tuple[Any, dict[str, dict[str, str]]]:
    """Return the lowered programs, and for each why an operator was not delegated.

    Args:
        exported: by name. soc: the chip.
        fp16: whether floating-point operators compute in fp16.
        groups: whether weights are 4 bits wide, with a scale for each group.
    """
    from executorch.backends.qualcomm._passes import (
        ConvertLinearToConv2d,
        I64toI32,
        RecomposeRmsNorm,
    )
    from executorch.backends.qualcomm._passes.qnn_pass_manager import get_qnn_pass_manager_cls
    from executorch.backends.qualcomm.serialization.qc_schema import (
        QcomChipset,
        QnnExecuTorchBackendType,
    )
    from executorch.backends.qualcomm.utils.constants import QCOM_PASS_ACTIVATE_KEY
    from executorch.backends.qualcomm.utils.qnn_manager_lifecycle import QnnManagerContext
    from executorch.backends.qualcomm.utils.utils import (
        generate_htp_compiler_spec,
        generate_qnn_executorch_compiler_spec,
        qnn_edge_config,
    )
    from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower

    from zoexport.targets.executorch.qnn.partition import ExplainingPartitioner

    spec = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[soc], backend_options=generate_htp_compiler_spec(use_fp16=fp16)
    )

    def lowered(name: str, program: Any, decomposed: frozenset[str]) -> tuple[Any, dict[str, str]]:
        manager = get_qnn_pass_manager_cls(QnnExecuTorchBackendType.kHtpBackend)()
        legal = manager.transform_for_export_pipeline(program)
        jobs = manager.get_capture_program_passes()
        # It would cast every 64-bit input, the seed among them; form casts those that index.
        jobs[I64toI32][QCOM_PASS_ACTIVATE_KEY] = False
        # It would recompose those norms too that norms leaves alone.
        jobs[RecomposeRmsNorm][QCOM_PASS_ACTIVATE_KEY] = False
        # The HTP has no fully connected layer over 4-bit weights in groups; as a convolution it has.
        jobs[ConvertLinearToConv2d][QCOM_PASS_ACTIVATE_KEY] = groups
        passes = manager.get_to_edge_transform_passes(legal, passes_job=jobs, compiler_specs=spec)
        partitioner = ExplainingPartitioner(spec, decomposed)
        try:
            # Contexts have the names of nodes.
            with QnnManagerContext({name: spec}):
                one = to_edge_transform_and_lower(
                    {name: legal},
                    transform_passes={name: passes},
                    partitioner={name: [partitioner]},
                    compile_config=qnn_edge_config(),
                )
        except RuntimeError as error:
            # ExecuTorch keeps some operators whole for the HTP, and has no kernel for those that it then refuses.
            refused = frozenset(partitioner.reasons)
            if "was not decomposed or delegated" not in str(error) or refused <= decomposed:
                raise
            return lowered(name, program, decomposed | refused)
        return one.exported_program(name), partitioner.reasons

    # One after another: together, they would have to fall into equally many delegates, and each would load the others'.
    found = {name: lowered(name, program, frozenset()) for name, program in exported.items()}
    edge = EdgeProgramManager(
        {name: program for name, (program, _) in found.items()}, compile_config=qnn_edge_config()
    )
    return edge, {name: reasons for name, (_, reasons) in found.items()}


class _Contexts(logging.Handler):
    """Reports how many of a program's contexts QNN has compiled, which ExecuTorch tells its log alone."""

    def __init__(self, progress: Progress, phase: str) -> None:
        super().__init__()
        self.progress, self.phase = progress, phase

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on "Processing Method(0): (3/9)"."""
        found = re.search(r"\((\d+)/(\d+)\)$", record.getMessage())
        if found:
            number, count = map(int, found.groups())
            self.progress(self.phase, (number - 1) / count)


@contextlib.contextmanager
def _reported(progress: Progress, phase: str) -> Iterator[None]:
    """Read ExecuTorch's log inside of ``quiet``, and keep it from the terminal."""
    log = logging.getLogger("executorch")
    handler, before = _Contexts(progress, phase), (log.propagate, logging.root.manager.disable)
    log.addHandler(handler)
    log.propagate = False
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        log.propagate = before[0]
        logging.disable(before[1])
        log.removeHandler(handler)
