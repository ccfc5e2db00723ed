"""``make bench-mlx``: what MLX holds in memory during a MeBP step, weights streamed against everything loaded.

``python -m research.mlx.measure PAGE`` cuts SmolLM2-135M after some of its layers, compiles each for ios-mlx
and takes one step over 256 tokens, all of them labels: in zoexport-runner, and in a process that loads everything
(``resident``). The table goes between the page's lines ``<!-- bench-mlx -->``.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research.support import page
from zoexport import models
from zoexport.compiler.build import compile_bundle
from zoexport.core.children import child, last_line
from zoexport.core.errors import BundleError
from zoexport.core.memory import anonymous_peak
from zoexport.tools.bench import conditions, runner

MODEL = "smollm2-135m"
LAYERS = (10, 20, 30)
LENGTH = 256
SETTINGS = {"lora.target_modules": "all-linear", "weights": "int4"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A model of ``layers``: megabytes of its weights file, and peaks of anonymous memory; seconds of the step."""

    layers: int
    weights: float
    streamed: float | None
    resident: float | None
    seconds: float


def measure(layers: int, folder: Path, length: int = LENGTH) -> Row:
    """Cut the model, compile it into ``folder``, and take a step over ``length`` tokens each way."""
    bundle = compile_bundle(
        str(cut_model(layers, folder / f"model-{layers}")),
        method="mebp",
        target="ios-mlx",
        output=folder / f"bundle-{layers}",
        settings={**SETTINGS, "max_length": str(length)},
        recipe=None,
        force=False,
        progress=lambda *_: None,
    )
    path = Path(bundle["bundle"])
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    examples = folder / "examples.jsonl"
    vocabulary = manifest["model"]["vocab_size"]
    tokens = [7919 * place % vocabulary for place in range(length + 1)]
    row = {"tokens": tokens[:-1], "labels": tokens[1:]}
    examples.write_text(json.dumps({"candidates": [row], "target": 0}) + "\n", encoding="utf-8")
    sample = runner.run_steps(path, examples, threads=1, steps=1, warmup=0)
    return Row(
        layers,
        round((path / manifest["weights"]["file"]).stat().st_size / 1e6, 1),
        sample.peak_anonymous_mb,
        resident_peak(path),
        round(sample.seconds[0], 1),
    )


def cut_model(layers: int, folder: Path) -> Path:
    """The model with its first ``layers`` layers, as a Hugging Face directory."""
    loaded = models.load(models.resolve(MODEL))
    model: Any = loaded.model
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    model.save_pretrained(folder)
    for path in loaded.tokenizer_files:
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def resident_peak(bundle: Path) -> float | None:
    """The anonymous memory of a process that loads everything, in MB.

    Raises:
        BundleError: it failed; carries what it said.
    """
    command = [sys.executable, str(Path(__file__).with_name("resident.py")), str(bundle)]
    with (
        tempfile.TemporaryFile() as errors,
        child(command, errors=errors) as process,
        anonymous_peak(process.pid) as peak,
    ):
        if process.wait() != 0:
            raise BundleError(
                f"bundle {bundle}",
                found=last_line(errors),
                expected="functions that MLX runs",
                fix="Compile the bundle with this version of MLX.",
            )
        return peak()


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, with what they depend on."""
    machine = conditions.machine()
    lines = [
        "| layers | weights file | peak, weights streamed | peak, everything loaded | seconds a step |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {row.layers} | {row.weights} MB | {row.streamed} MB | {row.resident} MB | {row.seconds} |"
            for row in rows
        ),
        "",
        f"SmolLM2-135M cut after so many layers; one step over {LENGTH} tokens, all of them labels, LoRA of rank 16 on "
        "all linear layers, int4. Streamed: zoexport-runner. Loaded: the same functions in a Python process that holds "
        f"every weight and activation. {conditions.MEMORY[0].upper()}{conditions.MEMORY[1:]}. {machine['cpu']}, MLX on "
        f"its CPU (a phone runs it on the GPU), {datetime.date.today():%Y-%m-%d}.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and renew the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    path = parser.parse_args(arguments).page
    rows = []
    with tempfile.TemporaryDirectory(prefix="zoexport-") as folder:
        for layers in LAYERS:
            rows.append(measure(layers, Path(folder)))
            sys.stderr.write(f"{rows[-1]}\n")
    page.publish(path, "bench-mlx", table(rows))


if __name__ == "__main__":
    main()
