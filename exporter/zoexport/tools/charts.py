"""Curves as SVG inside a page: drawn by matplotlib, coloured by the page's own style, with no text from any file."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"

LIGHT = ("#0b57a4", "#a83400", "#1a6b37", "#7a2d8f", "#7a5600", "#b3124f")
DARK = ("#7ab8ff", "#ffb27a", "#7fd89b", "#d7a3ee", "#e6c35c", "#ff8fb0")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
MOST = len(LIGHT) * len(DASHES)
"""Curves that look different."""

# matplotlib writes these colours; the page's style defines their light and dark values.
_INK, _GRID = "#010203", "#010204"
_STANDS_FOR = {
    _INK: "var(--ink)",
    _GRID: "var(--grid)",
    **{f"#0102{0x10 + n:02x}": f"var(--run-{n})" for n in range(len(LIGHT))},
}


@dataclass(frozen=True)
class Curve:
    """Points (step, value) of run ``number``.

    ``marked`` is one that stands out; ``dots`` shows each point.
    """

    number: int
    label: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    marked: tuple[float, float] | None = None


def chart(name: str, curves: Sequence[Curve], *, y: str, alt: str) -> str:
    """Return the SVG element of a chart over steps.

    Args:
        name: unique in the page; ids begin with it.
        curves: labelled by letters of ours, never by names from files.
        y: what the values are. alt: what who does not see it is told.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 12, "path.simplify": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.6, 3.5), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for curve in curves:
            colour = f"#0102{0x10 + curve.number % len(LIGHT):02x}"
            dash = DASHES[curve.number // len(LIGHT) % len(DASHES)]
            axes.plot(
                *zip(*curve.points, strict=True),
                color=colour,
                linestyle=dash,
                linewidth=1.6,
                marker="o" if curve.dots else None,
                markersize=4,
                label=curve.label,
            )
            if curve.marked is not None:
                axes.plot(
                    *curve.marked,
                    marker="D",
                    markersize=10,
                    color=colour,
                    fillstyle="none",
                    markeredgewidth=2,
                    linestyle="none",
                )
        axes.set_xlabel("step", color=_INK)
        axes.set_ylabel(y, color=_INK)
        axes.grid(color=_GRID, linewidth=0.7)
        axes.tick_params(colors=_INK)
        for spine in axes.spines.values():
            spine.set_color(_GRID)
        if len(curves) > 1:
            axes.legend(frameon=False, labelcolor=_INK)
        axes.patch.set_visible(False)
        figure.patch.set_visible(False)
        written = io.BytesIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return _inlined(written.getvalue(), name, alt)


def _inlined(content: bytes, name: str, alt: str) -> str:
    """matplotlib's file as an element: without its own style and facts, ids its own, colours the page's."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(content)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                value = f"{name}-{value}"
            elif key.endswith("href"):
                value = f"#{name}-{value[1:]}"
            value = re.sub(r"url\(#", f"url(#{name}-", value)
            if key == "style":
                # The font comes from the page.
                value = re.sub(r"font:\s*([\d.]+px)[^;]*", r"font-size: \1", value)
                for colour, stands_for in _STANDS_FOR.items():
                    value = value.replace(colour, stands_for)
            element.set(key, value)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    return ElementTree.tostring(root, encoding="unicode")
