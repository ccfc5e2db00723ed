"""What ``zoexport plan`` says of each recipe, as docs/models.md shows it.

    python -m tests.support.recipes

renews the table. Models are their published configurations (graphs/shapes), without weights and tokenizers.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from zoexport.core.recipes import comment, known
from zoexport.tools.plan import plan_training

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- plans of recipes -->\n", "<!-- end -->"
HEADER = """\
| recipe | planned for | target | app | `zoexport train` | bundle | state, scratch | a step |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def model_of(recipe: str) -> str:
    """The configuration that a recipe is planned for."""
    model = recipe.rpartition("-")[0]
    return "smollm2-135m" if model == "any" else model


def row(recipe: str) -> str:
    """A recipe's line of the table."""
    words = shlex.split(comment(known()[recipe])[1])
    target = words[words.index("--target") + 1]
    found = plan_training(
        f"shape:{model_of(recipe)}",
        method=None,
        target=target,
        settings=dict(word.split("=") for word in words if "=" in word),
        recipe=recipe,
        progress=lambda *_: None,
    )
    memory, disk = found["anonymous_mb_by_process"], dict(found["breakdown"]["disk"])
    bundle = disk.pop("bundle")
    cells = (
        f"`{recipe}`",
        model_of(recipe),
        f"`{target}`",
        f"{memory['runner']:.0f} MB",
        f"{memory['train']:.0f} MB",
        f"{bundle:.0f} MB",
        f"{sum(disk.values()):.0f} MB",
        f"{found['flops_per_step'] / 1e9:.0f} GFLOP",
    )
    return f"| {' | '.join(cells)} |\n"


def rows_of_page() -> dict[str, str]:
    """The lines that the page has, by recipe."""
    lines = PAGE.read_text("utf-8").partition(BEGIN + HEADER)[2].partition(END)[0]
    return {line.split("`")[1]: line for line in lines.splitlines(keepends=True)}


if __name__ == "__main__":
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    table = HEADER + "".join(map(row, known()))
    PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2], "utf-8")
