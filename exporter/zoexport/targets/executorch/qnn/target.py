"""The target android-npu: ExecuTorch with Qualcomm's QNN on the Hexagon NPU."""

from __future__ import annotations

from pathlib import Path

from zoexport.core import qnn
from zoexport.core.adb import choose_phone
from zoexport.core.config import as_dict, with_values
from zoexport.core.errors import ConfigError, Problem, nearest
from zoexport.core.features import Feature
from zoexport.core.graph import LayerGraph, Program, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Footprint, InnerValue, Lowered
from zoexport.targets import targets
from zoexport.targets.executorch.generating import GeneratesOnCpu
from zoexport.targets.executorch.program_file import FILE


def _multiplies_int4(config: TrainingSettings) -> bool:
    return config.weights == "int4" and config.activations == "int16"


def _chips(config: TrainingSettings) -> list[str]:
    """Return the chips of ``soc``, in its order."""
    return list(dict.fromkeys(as_dict(config)["soc"].replace(" ", "").split(",")))


class QnnTarget(GeneratesOnCpu):
    """ExecuTorch with the QNN delegate for the HTP, and zoexport's own kernels on the CPU."""

    def check_available(self) -> list[Problem]:
        """Return a problem if QNN's libraries are missing."""
        found = qnn.find()
        return [found] if isinstance(found, Problem) else []

    def defaults(self, config: TrainingSettings) -> TrainingSettings:
        """Return ``config`` with values for what the user left out; int4 weights as the HTP multiplies them.

        Raises:
            DeviceError: ``soc`` is auto, and no phone can be asked for its chip.
        """
        if config.soc == "auto":
            chip = choose_phone(None).shell("getprop", "ro.soc.model").strip()
            config = with_values(config, {"soc": chip})
        if _multiplies_int4(config) and config.scale_steps is None:
            config = with_values(config, {"scale_steps": True})
        return super().defaults(config)

    def supports(self, config: TrainingSettings) -> list[Problem]:
        """Settings that the HTP, or ExecuTorch's QNN backend, has no way to run."""
        settings = as_dict(config)
        problems = [
            problem
            for chip in _chips(config)
            for problem in self._wrong_chip(chip, settings["activations"])
        ]
        if settings["compute"] != "fp16":
            problems.append(
                Problem(
                    f"setting compute={settings['compute']}",
                    "the HTP's floating-point units compute in fp16",
                    "Leave compute at fp16.",
                )
            )
        if settings["activations"] != "fp32" and settings["weights"] == "fp32":
            problems.append(
                Problem(
                    f"settings weights=fp32, activations={settings['activations']}",
                    "the HTP has no product of integers and fp16 weights",
                    "Choose weights=int8 or int4, or leave activations at fp32.",
                )
            )
        if settings["activations"] == "int8" and settings["weights"] == "int4":
            problems.append(
                Problem(
                    "settings weights=int4, activations=int8",
                    "the HTP multiplies 4-bit weights, of which a group shares a scale, by int16 alone",
                    "Choose activations=int16 or weights=int8.",
                )
            )
        if _multiplies_int4(config) and not settings["scale_steps"]:
            problems.append(
                Problem(
                    "setting scale_steps=off",
                    "the HTP multiplies int16 activations by 4-bit weights whose scales are steps of a row's",
                    "Leave scale_steps out.",
                )
            )
        if settings["activations"] != "fp32" and config.staged:
            problems.append(
                Problem(
                    f"setting activations={settings['activations']}",
                    "programs of single layers are lowered in fp16 alone: gradients have no known range",
                    "Leave activations at fp32, or choose granularity=model where the method has it.",
                )
            )
        return problems

    def _wrong_chip(self, soc: str, activations: str) -> list[Problem]:
        if self.check_available():  # said already, and the list is part of what is missing
            return []
        from zoexport.targets.executorch.qnn.lower import chips, has_fp16

        known = chips()
        if soc in known and (activations != "fp32" or has_fp16(soc)):
            return []
        if soc in known:
            return [
                Problem(
                    f"settings soc={soc}, activations=fp32",
                    "this chip's HTP (version 68) has no floating-point arithmetic",
                    "Choose activations=int8 and weights=int8.",
                )
            ]
        return [
            Problem(
                f"setting soc={soc}",
                f"ExecuTorch's QNN backend knows {', '.join(known)}",
                f"Choose one of these.{nearest(soc, known)}",
            )
        ]

    def programs_config(self, config: TrainingSettings) -> TrainingSettings:
        """If activations are quantized, QNN's quantizer takes programs of floating-point numbers."""
        if config.activations == "fp32":
            return config
        return with_values(config, {"activations": "fp32"})

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """For each chip, one .pte with every whole program as a method, or one for each program of a stage.

        A phone tries the chips in their order.
        """
        from zoexport.targets.executorch.qnn.lower import lower_qnn
        from zoexport.targets.executorch.qnn.lower_stages import lower_qnn_stages

        lowered = None
        for chip in _chips(config):
            prefix = "" if lowered is None else f"{chip}-"
            own = (
                lower_qnn_stages(graph, chip, folder, progress, prefix)
                if isinstance(graph, LayerGraph)
                else lower_qnn(graph, config, chip, folder, progress, prefix + FILE)
            )
            lowered = own if lowered is None else lowered.before(own)
        assert lowered is not None
        return lowered

    def footprint(self, graph: TrainingGraph, program: Program) -> Footprint:
        """Return what the values of a program take on a CPU; QNN does not say what the HTP takes."""
        from zoexport.targets.executorch.emit import planned_bytes
        from zoexport.targets.executorch.footprints import moved_bytes

        return Footprint(planned_bytes(program), 0, moved_bytes(program))

    def inner_values(
        self, graph: TrainingGraph, config: TrainingSettings, program: str
    ) -> list[InnerValue]:
        """Return a whole program's inner values, computed in QNN's emulation in fp16.

        Raises:
            ConfigError: activations are quantized, and so are all inner values.
        """
        if config.activations != "fp32":
            raise ConfigError(
                f"setting activations={config.activations}",
                found="a program whose inner values are integers with scales of QNN's own",
                expected="activations=fp32, which the NPU rounds to fp16",
                fix="Compile with activations=fp32 to look inside.",
            )
        from zoexport.targets.executorch.qnn.inner import inner_values

        settings = as_dict(config)
        return inner_values(graph, program, _chips(config)[0], settings["eps"])


targets.register(
    "android-npu",
    QnnTarget(
        name="android-npu",
        summary="Android phones' Hexagon NPU: ExecuTorch with Qualcomm's QNN",
        notice=qnn.LICENCE,
        engine="qnn",
        fallback="android-cpu",
        has=frozenset({Feature.WHOLE, Feature.STAGES}),
        takes={},
        # The chip of most phones that have an NPU.
        preferred={"compute": "fp16", "soc": "SM8650"},
        fixed_labels=True,
        generating_lengths=(1, 8, 32, 128),
        shows_inner_values=True,
    ),
)
