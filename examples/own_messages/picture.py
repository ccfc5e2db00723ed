"""Draw the loss and the completions of the run that ``make demo`` made.

    zoexport finetune smollm2-135m --data examples/own_messages/mails.jsonl -o demo
    python examples/own_messages/picture.py demo/loss.png

The second picture, ``demo/loss-dark.png``, is for pages in dark mode.
``mails.jsonl`` has 60 mails with the answers of a person who always writes in the same style.
"""

import sys
from pathlib import Path

import zoexport
from zoexport.core.figures import loss_curve

MAILS = Path(__file__).with_name("mails.jsonl")


def draw(run: zoexport.Run, picture: Path) -> None:
    """Write the picture of a run, and NAME-dark.png beside NAME.png."""
    evaluations = {one["step"]: one["loss"] for one in run.trained.evaluations}
    completions = [
        (one.prompt.partition(": ")[2], one.before, one.after) for one in run.comparisons
    ]
    title = "SmolLM2-135M on 54 mails: loss per step"
    for path, dark in ((picture, False), (picture.with_stem(f"{picture.stem}-dark"), True)):
        loss_curve(
            path,
            run.trained.losses,
            title=title,
            evaluations=evaluations,
            answers=completions,
            dark=dark,
        )


if __name__ == "__main__":
    output = Path(sys.argv[1])
    # The run is complete, so this only reads it.
    draw(zoexport.finetune("smollm2-135m", MAILS, output=output.parent), output)
