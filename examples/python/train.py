"""Compile a model, train it, complete a prompt, and export the adapter for PEFT.

python train.py smollm2-135m data.jsonl run "Once upon a time"
"""

import sys
from pathlib import Path

import zoexport


def main(model: str, data: str, output: str, prompt: str, steps: int = 20) -> None:
    """Go once from a model to an adapter."""
    folder = Path(output)
    bundle = zoexport.compile(
        model, target="android-cpu", output=folder / "bundle", max_length=64, lora_r=8, force=True
    )
    trained = bundle.train(
        data,
        state=folder / "state",
        steps=steps,
        learning_rate=1e-3,
        progress=lambda step: print(f"step {step.step} of {step.total}: loss {step.loss:.4f}"),
    )
    before = bundle.evaluate(data).loss
    after = bundle.evaluate(data, state=trained.state).loss
    print(f"loss {before:.4f} before, {after:.4f} after {trained.steps} steps")
    print(bundle.generate(prompt, state=trained.state, max_new_tokens=16).text)
    bundle.export_adapter(folder / "adapter", state=trained.state, force=True)


if __name__ == "__main__":
    main(*sys.argv[1:5])
