"""Draws the pictures of docs/concepts.md as SVG files, which follow the system's light or dark scheme.

    python docs/site/drawings.py

writes them into docs/images; a test compares.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "images"
_STYLE = """\
  <style>
    text { font: 14px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle; }
    .small { font-size: 12px; fill: #4a5058; }
    .left { text-anchor: start; }
    rect { fill: #f4f6f9; stroke: #6b7280; stroke-width: 1.2; }
    .frozen { fill: #dfe7f3; }
    .trained { fill: #fde3c4; stroke: #a85d00; }
    .file { fill: #e3f1e3; stroke: #3f7d44; stroke-dasharray: 5 3; }
    .group { fill: none; stroke: #9aa2ad; }
    path { fill: none; stroke: #3c434c; stroke-width: 1.6; marker-end: url(#tip); }
    .back { stroke: #a85d00; }
    #tip path { fill: context-stroke; stroke: none; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e8eaee; }
      .small { fill: #b6bcc6; }
      rect { fill: #2b3038; stroke: #8b93a0; }
      .frozen { fill: #27384f; }
      .trained { fill: #55391a; stroke: #f0a858; }
      .file { fill: #203a25; stroke: #7cc285; }
      .group { fill: none; stroke: #6b7280; }
      path { stroke: #c6ccd6; }
      .back { stroke: #f0a858; }
    }
  </style>
  <defs>
    <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
      <path d="M0 0L8 4L0 8z" style="marker-end: none"/>
    </marker>
  </defs>
"""


class Drawing:
    """Boxes, words and arrows, in pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
            f"  <title>{escape(title)}</title>\n{_STYLE}"
        ]

    def box(
        self, x: float, y: float, width: float, height: float, words: str = "", kind: str = ""
    ) -> None:
        """A box with lines of words in its middle; the first line is large."""
        self._parts.append(
            f'  <rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>\n'
        )
        lines = words.split("\n") if words else []
        first = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.words(x + width / 2, first + 17 * number, line, "small" if number else "")

    def words(self, x: float, y: float, line: str, kind: str = "") -> None:
        """A line of words around x, or from x on where ``kind`` has left."""
        self._parts.append(f'  <text class="{kind}" x="{x:g}" y="{y:g}">{escape(line)}</text>\n')

    def arrow(self, *points: tuple[float, float], kind: str = "") -> None:
        """An arrow through points."""
        way = "L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'  <path class="{kind}" d="M{way}"/>\n')

    def text(self) -> str:
        """The file."""
        return "".join([*self._parts, "</svg>\n"])


def dual_forwarding() -> Drawing:
    """Draw one pass for all perturbations, and the gradients from its losses."""
    drawing = Drawing(760, 430, "Dual forwarding: all perturbations in one forward pass")
    drawing.box(20, 170, 110, 60, "a batch\nof sequences")
    drawing.arrow((130, 200), (168, 200))
    drawing.box(170, 20, 360, 370, kind="group")
    drawing.words(350, 44, "one forward pass")
    drawing.box(190, 60, 320, 52, "frozen weights, int4\nread once for all perturbations", "frozen")
    copies = ("B + eps z1", "B - eps z1", "B + eps z2", "B - eps z2")
    for number, copy in enumerate(copies):
        y = 130 + 62 * number
        drawing.box(190, y, 190, 50, f"perturbation {number + 1}\nadapter {copy}", "trained")
        drawing.arrow((380, y + 25), (418, y + 25))
        drawing.box(420, y, 90, 50, f"loss {number + 1}")
    for number in (0, 1):
        y = 130 + 124 * number
        drawing.arrow((510, y + 25), (548, y + 46))
        drawing.arrow((510, y + 87), (548, y + 66))
        words = f"g{number + 1} = (loss {2 * number + 1} - loss {2 * number + 2})\nover 2 eps: one number"
        drawing.box(550, y + 28, 195, 56, words)
    drawing.arrow((648, 338), (648, 366))
    drawing.box(
        550, 368, 195, 50, "B - lr (g1 z1 + g2 z2) / 2\nat the next step's start", "trained"
    )
    drawing.words(
        150, 412, "z1, z2: functions of seed, step, query and tensor, never stored", "small left"
    )
    return drawing


def one_layer() -> Drawing:
    """Draw forward and backward over a layer's mapped files."""
    drawing = Drawing(790, 420, "One layer forward and backward over mapped files")
    drawing.words(20, 30, "forward", "left")
    drawing.words(20, 390, "backward", "left")
    for number, name in enumerate(("layer 1", "layer 2", "layer 3")):
        x = 150 + 200 * number
        drawing.box(x, 20, 120, 50, f"{name}\nforward program", "frozen")
        drawing.box(x, 330, 120, 60, f"{name}\nforward again,\nthen its gradient", "trained")
        drawing.arrow((x + 120, 45), (x + 198, 45))
        drawing.arrow((x + 200, 360), (x + 122, 360), kind="back")
        drawing.box(x, 110, 120, 44, "checkpoint\nthe layer's input", "file")
        drawing.arrow((x + 40, 70), (x + 40, 108))
        drawing.box(x, 178, 120, 44, "weights\npacked, int4", "file")
        drawing.arrow((x - 12, 200), (x - 12, 58), (x - 2, 58))
        drawing.arrow((x - 12, 200), (x - 12, 345), (x - 2, 345))
        drawing.box(x, 246, 120, 44, "adapter\nand AdamW's state", "file")
        drawing.arrow((x + 80, 330), (x + 80, 292), kind="back")
        drawing.arrow((x + 132, 132), (x + 132, 345), (x + 122, 345))
    drawing.words(765, 50, "loss", "")
    drawing.arrow((765, 58), (765, 360), (752, 360), kind="back")
    drawing.words(20, 130, "mapped files:", "small left")
    drawing.words(20, 147, "the system may", "small left")
    drawing.words(20, 164, "drop their pages", "small left")
    drawing.words(20, 330, "in memory:", "small left")
    drawing.words(20, 347, "one layer's", "small left")
    drawing.words(20, 364, "tensors", "small left")
    return drawing


def federated_round() -> Drawing:
    """Draw the messages of a round of replays."""
    drawing = Drawing(760, 420, "A federated round: scalars up, everyone's scalars down")
    drawing.box(280, 20, 200, 64, "server\nversion n, as a log of scalars", "frozen")
    for number, name in enumerate(("client A", "client B", "client C")):
        x = 30 + 250 * number
        drawing.box(x, 180, 200, 110, kind="group")
        drawing.words(x + 100, 204, name)
        drawing.box(x + 14, 216, 80, 60, "examples\nstay here", "file")
        drawing.box(x + 106, 216, 80, 60, "K steps\nsession", "trained")
        drawing.arrow((300 + 50 * number, 84), (x + 76, 178))
        drawing.arrow((x + 124, 178), (330 + 50 * number, 86), kind="back")
    drawing.words(20, 112, "1  terms, the round's number,", "small left")
    drawing.words(36, 129, "what the client lacks", "small left")
    drawing.words(530, 112, "2  loss, projected gradients", "small left")
    drawing.words(546, 129, "(4 bytes each), hash of the result", "small left")
    drawing.box(
        60,
        324,
        290,
        76,
        "3  the server replays each client\nseed and scalars give its adapter,\nbit for bit; the hash must agree",
    )
    drawing.box(
        410,
        324,
        290,
        76,
        "4  version n + 1: the adapters' mean\nmade by everyone from everyone's scalars;\nnobody sends a weight",
    )
    drawing.arrow((350, 362), (408, 362))
    return drawing


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "dual-forwarding.svg": dual_forwarding,
    "one-layer.svg": one_layer,
    "federated-round.svg": federated_round,
}


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / name).write_text(draw().text(), encoding="utf-8")
