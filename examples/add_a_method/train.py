"""Add a method in one file, compare it with its reference in PyTorch, and train with it.

python train.py smollm2-135m data.jsonl run
"""

import sys
from pathlib import Path

import forward  # registers the method "forward"

import zoexport


def main(model: str, data: str, output: str) -> None:
    """Compile a model with the new method and take 20 steps."""
    folder = Path(output)
    bundle = zoexport.compile(
        model,
        method=forward.NAME,
        target="host",
        output=folder / "bundle",
        max_length=64,
        lora_r=8,
        force=True,
    )
    report = bundle.parity(steps=2, model=model)
    if not report.passed:
        raise SystemExit(f"{forward.NAME} differs from its reference: {report.to_dict()}")
    print(f"parity: losses differ by at most {report.max_relative_loss_error:.1e}")
    trained = bundle.train(data, state=folder / "state", steps=20)
    before, after = bundle.evaluate(data).loss, bundle.evaluate(data, state=trained.state).loss
    print(f"loss {before:.4f} before, {after:.4f} after {trained.steps} steps")


if __name__ == "__main__":
    main(*sys.argv[1:4])
