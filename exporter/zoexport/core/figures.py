"""A run as a picture and as text: the loss curve, and tables for a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_file

_ANSWER_WIDTH, _ANSWER_LINES = 68, 2
"""Characters per line beside a curve, and lines per text."""
_INKS = {False: ("black", "dimgray", "tab:blue"), True: ("#e8eaee", "#b6bcc6", "#6cb4ee")}
"""Colors of text, of less important text, and of the run, by whether the picture is dark."""
_DARK = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "legend.facecolor"), "#1e2129"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), "#e8eaee"),
    **dict.fromkeys(("xtick.color", "ytick.color"), "#b6bcc6"),
    "grid.color": "#5a6070",
}


def smoothed(losses: Sequence[float], span: int) -> list[float]:
    """Return an exponential moving average that is not drawn towards zero at its start.

    Args:
        losses: one a step; those that are not finite are passed over.
        span: steps over which a value loses most of its weight, at least 1.

    Returns:
        As many values; NaN before the first finite loss.
    """
    keep = 1.0 - 2.0 / (span + 1.0)
    total, weight, values = 0.0, 0.0, []
    for loss in losses:
        if math.isfinite(loss):
            total = keep * total + (1.0 - keep) * loss
            weight = keep * weight + (1.0 - keep)
        values.append(total / weight if weight else math.nan)
    return values


def loss_curve(
    path: Path,
    losses: Sequence[float],
    *,
    title: str,
    evaluations: Mapping[int, float] | None = None,
    span: int | None = None,
    answers: Sequence[tuple[str, str, str]] = (),
    dark: bool = False,
) -> None:
    """Draw the loss of a run as a PNG file, next to the model's responses.

    Args:
        path: the PNG file, written atomically.
        losses: loss of step 1, 2, ...
        title: title of the figure.
        evaluations: validation losses by the number of completed steps (0: as compiled).
        span: span of the smoothed curve; None: a tenth of the run.
        answers: prompts with their responses before and after the run.
        dark: draw light text on a dark background, for pages in dark mode.

    Raises:
        ConfigError: there is nothing to draw, matplotlib is not installed, or the place cannot be written.
    """
    evaluations = evaluations or {}
    if not losses and not evaluations:
        raise ConfigError(
            f"picture {path}",
            found="no losses",
            expected="a run of at least one step",
            fix="Train first.",
        )
    check_can_draw(path)
    import matplotlib

    with matplotlib.rc_context(_DARK if dark else {}):
        figure = new_figure(path, 12 if answers else 8, 4.5)
        axes = figure.add_subplot(1, 2 if answers else 1, 1)
        steps, blue = range(1, len(losses) + 1), _INKS[dark][2]
        if losses:
            axes.plot(steps, losses, color=blue, alpha=0.3, linewidth=1, label="each step")
            curve = smoothed(losses, span or max(len(losses) // 10, 1))
            axes.plot(steps, curve, color=blue, linewidth=2, label="smoothed")
        if evaluations:
            points = sorted(evaluations.items())
            axes.plot(*zip(*points, strict=True), "o", color="tab:orange", label="held out")
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.grid(alpha=0.3)
        axes.legend()
        if answers:
            _write_answers(figure.add_subplot(1, 2, 2), answers, dark)
        save_png(figure, path)


def _write_answers(axes: Any, answers: Sequence[tuple[str, str, str]], dark: bool) -> None:
    """Write each prompt with its responses before and after, from the top down."""
    strong, weak, blue = _INKS[dark]
    axes.set_axis_off()
    axes.set_title("the same prompts, before and after")
    for number, (prompt, before, after) in enumerate(answers):
        top = 0.96 - number / len(answers)
        lines = (
            (prompt, strong, "bold"),
            (f"before: {before}", weak, "normal"),
            (f"after: {after}", blue, "normal"),
        )
        for text, color, weight in lines:
            wrapped = textwrap.wrap(text, _ANSWER_WIDTH, max_lines=_ANSWER_LINES, placeholder="...")
            for line in wrapped:
                axes.text(
                    0.0,
                    top,
                    # A dollar sign begins a formula otherwise.
                    line.replace("$", r"\$"),
                    color=color,
                    weight=weight,
                    va="top",
                    transform=axes.transAxes,
                )
                top -= 0.052
            top -= 0.008


def check_can_draw(path: Path) -> None:
    """Check that figures can be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"picture {path}",
            found="no matplotlib",
            expected="the package that draws it",
            fix="Install it: pip install 'zoexport[plot]'.",
        ) from error


def new_figure(path: Path, width: float, height: float) -> Any:
    """Return an empty figure of ``width`` x ``height`` inches for the picture ``path``.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    check_can_draw(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Not pyplot: that would choose a backend for the whole process, and may open a display.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Any, path: Path) -> None:
    """Write a figure as a PNG file, whole or not at all.

    Raises:
        ConfigError: the place cannot be written.
    """
    with atomic_file(path) as temporary:
        # Without the version in the file the same run gives the same bytes.
        figure.canvas.print_png(str(temporary), metadata={"Software": "zoexport"})


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligned columns, numbers to the right.

    Args:
        header: the columns' names.
        rows: as many cells each; floats are shown with four significant digits, None as a dash.

    Returns:
        The lines, without a newline at the end.
    """
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [
        bool(rows) and all(isinstance(row[column], (int, float, type(None))) for row in rows)
        for column in range(len(header))
    ]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if numbers else cell.ljust(width)
            for cell, width, numbers in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
