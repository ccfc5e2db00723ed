"""A federation as a page: a table of its rounds, and curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.figures import check_can_draw, new_figure, save_png, table
from zoexport.core.files import atomic_folder
from zoexport.federated.store import read_federation

PAGE, PICTURE = "federation.md", "federation.png"
HEADER = ("round", "clients", "refused", "loss", "held out", "up", "down", "GFLOP", "s")


def row(content: Mapping[str, Any]) -> list[Any]:
    """Return a round's cells under :data:`HEADER`."""
    flops = content["flops"]
    held_out = content.get("evaluation", {}).get("loss")
    return [
        content["round"] + 1,
        f"{len(content['clients'])}/{len(content['asked'])}",
        len(content["refused"]),
        content["loss"],
        held_out,
        content["bytes_up"],
        content["bytes_down"] + content.get("sync_bytes_down", 0),
        None if flops is None else flops / 1e9,
        content["seconds"],
    ]


def check(folder: Path) -> None:
    """Check before the first round that a report can be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    check_can_draw(folder / PICTURE)


def write(folder: Path, state: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
    """Write page and picture of a federation's rounds into a folder, which they replace.

    Raises:
        ConfigError: the place cannot be written.
    """
    federation = read_federation(state)
    terms = "\n".join(f"- {key}: {value}" for key, value in federation["terms"].items())
    refused = [
        f"- round {content['round'] + 1}, client {entry['client']}: {entry['reason']}"
        for content in rounds
        for entry in content["refused"]
    ]
    text = "\n".join(
        [
            "# Federated training",
            "",
            f"![Loss against rounds, bytes sent and operations]({PICTURE})",
            "",
            "```",
            table(HEADER, [row(content) for content in rounds]),
            "```",
            "",
            "Bytes are those of messages, both ways without Flower's own framing; GFLOP are planned, not measured.",
            "",
            "## Terms",
            "",
            terms,
            "",
            "## Replies that did not count",
            "",
            *(refused or ["None."]),
            "",
        ]
    )
    with atomic_folder(folder, replace=True) as output:
        (output / PAGE).write_text(text, encoding="utf-8")
        draw(output / PICTURE, rounds)


def draw(path: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
    """Draw the loss against rounds, against bytes sent up, and against operations."""
    figure = new_figure(path, 12, 4)
    axes = figure.subplots(1, 3, sharey=True)
    numbers = [content["round"] + 1 for content in rounds]
    sent = list(itertools.accumulate(content["bytes_up"] / 1e3 for content in rounds))
    known = all(content["flops"] is not None for content in rounds)
    done = [content["flops"] / 1e9 for content in rounds] if known else []
    against = [
        ("round", numbers),
        ("kB sent up", sent),
        ("planned GFLOP", list(itertools.accumulate(done))),
    ]
    for one, (label, values) in zip(axes, against, strict=True):
        if values:
            losses = [
                math.nan if content["loss"] is None else content["loss"] for content in rounds
            ]
            one.plot(values, losses, color="tab:blue", label="clients, mean of their steps")
        points = [
            (value, content["evaluation"]["loss"])
            for value, content in zip(values, rounds, strict=False)
            if "evaluation" in content
        ]
        if points:
            one.plot(*zip(*points, strict=True), color="tab:orange", label="held out")
        one.set_xlabel(label)
        one.grid(alpha=0.3)
    axes[0].set_ylabel("loss")
    axes[0].legend()
    save_png(figure, path)
