"""Draw the loss and the completions of the run that ``make demo`` made.

    zoexport finetune smollm2-135m --data examples/own_messages/mails.jsonl -o demo
    python examples/own_messages/picture.py demo/loss.png

``mails.jsonl`` has 60 mails with the answers of a person who always writes in the same style.
"""

import sys
from pathlib import Path

import zoexport
from zoexport.core.figures import loss_curve

MAILS = Path(__file__).with_name("mails.jsonl")


def draw(run: zoexport.Run, picture: Path) -> None:
    """Write the picture of a run."""
    evaluations = {one["step"]: one["loss"] for one in run.trained.evaluations}
    completions = [
        (one.prompt.partition(": ")[2], one.before, one.after) for one in run.comparisons
    ]
    title = "SmolLM2-135M on 54 mails: loss per step"
    loss_curve(
        picture, run.trained.losses, title=title, evaluations=evaluations, answers=completions
    )


if __name__ == "__main__":
    output = Path(sys.argv[1])
    # The run is complete, so this only reads it.
    draw(zoexport.finetune("smollm2-135m", MAILS, output=output.parent), output)
