"""The loss curve's file and the tables."""

from __future__ import annotations

import builtins
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zoexport.core.errors import ConfigError
from zoexport.core.figures import loss_curve, smoothed, table


def test_smoothing_starts_at_the_first_loss() -> None:
    assert smoothed([3.0, 3.0, 3.0], 5) == pytest.approx([3.0, 3.0, 3.0])
    assert smoothed([1.0, 2.0, 4.0], 1) == pytest.approx([1.0, 2.0, 4.0])
    curve = smoothed([4.0, 0.0, 0.0, 0.0], 3)
    # Weights halve with each step: 4, then 4 * 1/3, 4 * 1/7, 4 * 1/15.
    assert curve == pytest.approx([4.0, 4 / 3, 4 / 7, 4 / 15])
    gap = smoothed([math.nan, 2.0, math.inf, 2.0], 3)
    assert math.isnan(gap[0]) and gap[1:] == pytest.approx([2.0, 2.0, 2.0])
    assert smoothed([], 3) == []


def _pixels(path: Path) -> np.ndarray[Any, Any]:
    """The picture as (height, width, 4), decoded by matplotlib's own reader."""
    from matplotlib import image

    return np.asarray(image.imread(path))


def _share_of(pixels: np.ndarray[Any, Any], red: int, green: int, blue: int) -> float:
    distance = np.abs(pixels[..., :3] * 255 - np.array([red, green, blue])).max(axis=-1)
    return float((distance < 30).mean())


def test_answers_are_beside_the_curve(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    sizes, inks = [], []
    for number, count in enumerate((0, 1, 3)):
        path = tmp_path / f"{number}.png"
        answers = [("A prompt of $5 " * 9, "before it", "after it")] * count
        loss_curve(path, [2.0, 1.0, 0.5], title="a run", answers=answers)
        pixels = _pixels(path)
        sizes.append(pixels.shape[:2])
        inks.append(int((pixels[:, 600:, :3].min(axis=-1) < 0.5).sum()))
    assert sizes == [(450, 800), (450, 1200), (450, 1200)]
    assert inks[2] > 2 * inks[1] > 0


def test_picture_has_both_curves_and_the_evaluations(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    losses = [2.0 + math.sin(step) / 2 - step / 100 for step in range(100)]
    path = tmp_path / "pictures" / "loss.png"
    loss_curve(path, losses, title="smollm2-135m, prge")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (800, 450)
    assert zlib.crc32(b"IEND") == struct.unpack(">I", content[-4:])[0]
    without = _pixels(path)
    # tab:blue is the smoothed curve, tab:orange would be the evaluations.
    assert _share_of(without, 31, 119, 180) > 0.001
    assert _share_of(without, 255, 127, 14) == 0
    loss_curve(path, losses, title="smollm2-135m, prge", evaluations={0: 2.4, 100: 1.1})
    assert _share_of(_pixels(path), 255, 127, 14) > 0.0005
    again = tmp_path / "again.png"
    loss_curve(again, losses, title="smollm2-135m, prge", evaluations={100: 1.1, 0: 2.4})
    assert again.read_bytes() == path.read_bytes()
    loss_curve(again, losses, title="another title", evaluations={100: 1.1, 0: 2.4})
    assert again.read_bytes() != path.read_bytes()
    loss_curve(again, [math.nan, 1.0], title="one step")
    loss_curve(again, [], title="evaluation only", evaluations={0: 1.0})


def test_dark_picture_has_light_text_on_dark(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    path = tmp_path / "loss-dark.png"
    loss_curve(path, [2.0, 1.0], title="a run", answers=[("prompt", "b", "a")], dark=True)
    pixels = _pixels(path)[..., :3]
    assert (pixels < 0.3).all(axis=-1).mean() > 0.9 and (pixels > 0.8).all(axis=-1).any()


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no losses"):
        loss_curve(tmp_path / "loss.png", [], title="empty")
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"no matplotlib.*zoexport\[plot\]"):
        loss_curve(tmp_path / "loss.png", [1.0], title="a run")


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="a place that can be written"):
        loss_curve(tmp_path / "file" / "loss.png", [1.0], title="a run")


def test_table() -> None:
    text = table(["name", "loss", "steps"], [["a", 1.23456, 10], ["longer", None, 5]])
    assert text.splitlines() == [
        "name     loss  steps",
        "------  -----  -----",
        "a       1.235     10",
        "longer      -      5",
    ]
    assert table(["a"], []) == "a\n-"
