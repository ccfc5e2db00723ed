"""The baselines in a process of its own, ``python -m zoexport.tools.bench.eager_process MODEL THREADS``.

It loads the model once and then answers requests, a JSON object a line: ``{"bundle", "examples", "steps", "warmup"}``.
An answer is ``{"sample": {...}}`` or ``{"error": {...}}``. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.children import child, last_line, python
from zoexport.core.errors import ModelError, ZoExportError, rebuilt
from zoexport.core.memory import anonymous_peak, give_back, status
from zoexport.session import Bundle
from zoexport.tools.bench.runner import LEARNING_RATE, Sample, with_peak

Baseline = Callable[[Path, Path, int, int], Sample]
"""(bundle, examples, steps, warm-up steps) to a sample."""


@contextlib.contextmanager
def baseline(model: str, threads: int) -> Iterator[Baseline]:
    """Start the process; it loads the model when it is first asked.

    Args:
        model: a MODEL argument. threads: for PyTorch.

    Raises:
        ModelError: the model cannot be loaded, or is not the one that a bundle was compiled from.
    """
    command, environment = python("zoexport.tools.bench.eager_process", model, threads)
    with (
        tempfile.TemporaryFile() as log,
        child(command, stdin=subprocess.PIPE, errors=log, environment=environment) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def ask(bundle: Path, examples: Path, steps: int, warmup: int) -> Sample:
            request = {"bundle": str(bundle), "examples": str(examples)}
            answer: dict[str, Any] = {}
            with (
                anonymous_peak(process.pid) as peak,
                contextlib.suppress(BrokenPipeError, ValueError),  # it has ended; said below
            ):
                print(
                    json.dumps({**request, "steps": steps, "warmup": warmup}),
                    file=requests,
                    flush=True,
                )
                answer = json.loads(answers.readline())
            if "sample" in answer:
                return with_peak(Sample(**answer["sample"]), peak())
            if "error" in answer:
                raise rebuilt(answer["error"])
            raise ModelError(
                f"baseline of {model}",
                found=f"a PyTorch process that ended with status {process.wait()} ({last_line(log)})",
                expected="steps of the model",
                fix="Pass --no-eager to measure without it; where memory was short, close other programs.",
            )

        yield ask


def main(arguments: list[str]) -> int:
    """Run the process: answer requests until its standard input ends."""
    model, threads = arguments
    # Libraries that print must not break the protocol.
    output = sys.stdout
    sys.stdout = sys.stderr
    side: _Side | None = None
    for line in sys.stdin:
        try:
            if side is None:
                side = _Side(model, int(threads))
            answer: dict[str, Any] = {"sample": dataclasses.asdict(side.sample(json.loads(line)))}
        except ZoExportError as error:
            answer = {"error": error.with_type()}
        give_back()  # or the next request, whose memory is watched from its beginning, would have it too
        output.write(json.dumps(answer) + "\n")
        output.flush()
    return 0


class _Side:
    """A loaded model."""

    def __init__(self, model: str, threads: int) -> None:
        import torch

        from zoexport import models

        torch.set_num_threads(threads)
        self.loaded = models.load(models.resolve(model))
        # Capture wants plain operators; a user of the model runs attention and experts with fused kernels.
        loaded: Any = self.loaded.model
        with contextlib.suppress(ValueError):  # an architecture that has none keeps the plain one
            loaded.set_attn_implementation("sdpa")
        if models.has_experts(loaded):
            loaded.set_experts_implementation("grouped_mm")

    def sample(self, request: dict[str, Any]) -> Sample:
        """Take the steps of a request."""
        import torch
        from safetensors.torch import load_file

        from zoexport.core.manifest import INITIAL_STATE

        bundle = Path(request["bundle"])
        manifest = Bundle.open(bundle).manifest
        self._check(manifest)
        lines = Path(request["examples"]).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line)["candidates"][0] for line in lines]
        tokens = torch.tensor([row["tokens"] for row in rows])
        labels = torch.tensor([row["labels"] for row in rows])
        initial = load_file(str(bundle / INITIAL_STATE))
        # The file sorts its names; the noise numbers the slots in the manifest's order.
        slots = {slot["name"]: initial[slot["name"]] for slot in manifest["state"]}
        trainer = _trainer(self.loaded.model, slots, manifest)
        del initial, slots
        _forget_peak()
        try:
            anonymous = 0.0
            timed = []
            for _ in range(request["warmup"] + request["steps"]):
                timed.append(trainer.step(tokens, labels))
                anonymous = max(anonymous, status("RssAnon") or 0.0)
        finally:
            trainer.close()
        timed = timed[request["warmup"] :]
        return Sample(
            seconds=[step.seconds for step in timed],
            parts={
                part: sum(step.parts[part] for step in timed) / len(timed)
                for part in timed[0].parts
            },
            load_seconds=None,
            peak_rss_mb=status("VmHWM"),
            peak_anonymous_mb=anonymous or None,
        )

    def _check(self, manifest: Mapping[str, Any]) -> None:
        expected = manifest["model"]["sha256"]
        if self.loaded.sha256 != expected:
            raise ModelError(
                f"model {self.loaded.name}",
                found=f"weights with SHA-256 {self.loaded.sha256[:16]}...",
                expected=f"the weights that the bundle was compiled from, {expected[:16]}...",
                fix="Pass --no-eager, or compile the bundle again from this model.",
            )


def _trainer(model: Any, slots: dict[str, Any], manifest: Mapping[str, Any]) -> Any:
    """Return a bundle's baseline: zeroth order if its method has queries, else first order."""
    from zoexport.methods import config_of
    from zoexport.tools.bench.autograd import EagerFirstOrder
    from zoexport.tools.bench.eager import EagerZerothOrder

    config: Any = config_of(manifest)
    settings = manifest["settings"]
    if "num_queries" in settings:
        return EagerZerothOrder(
            model,
            slots,
            scaling=config.scaling,
            num_queries=settings["num_queries"],
            eps=settings["eps"],
            learning_rate=LEARNING_RATE,
        )
    return EagerFirstOrder(
        model,
        slots,
        scaling=config.scaling,
        learning_rate=LEARNING_RATE,
        **{
            key: settings[key] for key in ("optimizer", "momentum", "weight_decay", "max_grad_norm")
        },
    )


def _forget_peak() -> None:
    """Reset VmHWM, if the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
