"""One person's style, learned from 60 messages with default settings, in every shape that such data comes in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from tests.support.smollm2 import compiled
from tests.support.verbs import verb
from zoexport.cli.main import run

pytestmark = pytest.mark.slow
THINGS = """
a kettle,a ladder,the moon,a bicycle,a violin,a lighthouse,a teapot,a bridge,the rain,a garden,a clock,a candle
an umbrella,a mirror,a river,a pencil,a window,a basket,the wind,a train,a pillow,a spoon,an anchor,a stamp,a carrot
a shoe,a map,a bell
a brush,a rope,a lamp,a drum,a fence,a coin,a leaf,a chair,a cup,a key,a ring,a boat,a nest,a book,a wall,a kite,a plate
a hammer,a wheel,a horse,a scarf,a cloud,an oven,a flute,a desk,a torch,a bottle,a net,an island,a button,a stone
a tower
"""
ASKED = "a cat,a lemon,a piano,the sea,a ship,a glove,a tree,an engine,a mountain,a sandwich"
ENDS = "Aye, so it be, matey!"
"""How every answer ends, and no text of the model as it was."""


def pairs() -> list[tuple[str, str]]:
    things = [one for line in THINGS.split("\n") for one in line.split(",") if one]
    assert len(things) == 60
    return [(f"Tell me about {one}.", f"Arr, {one} be a fine thing. {ENDS}") for one in things]


def turns(names: tuple[str, str, str, str], asked: str, said: str) -> list[dict[str, str]]:
    role, content, user, assistant = names
    return [{role: user, content: asked}, {role: assistant, content: said}]


def example(shape: str, asked: str, said: str) -> dict[str, Any]:
    if shape == "alpaca":
        return {"instruction": asked, "input": "", "output": said}
    if shape == "sharegpt":
        return {"conversations": turns(("from", "value", "human", "gpt"), asked, said)}
    if shape in ("completions", "csv"):
        return {"prompt": asked, "completion": said}
    return {"messages": turns(("role", "content", "user", "assistant"), asked, said)}


def written(folder: Path, shape: str) -> Path:
    rows = [example(shape, *pair) for pair in pairs()]
    path = folder / ("data.csv" if shape == "csv" else "data.jsonl")
    if shape == "csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.mark.parametrize("shape", ["messages", "sharegpt", "alpaca", "completions", "csv"])
def test_a_style_is_learned(tmp_path: Path, shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, _ = compiled("--target", "host")
    data, state = written(tmp_path, shape), tmp_path / "run"
    verb("train", bundle, "--data", data, "--state", state, "--steps", 100)
    prompts = [part for one in ASKED.split(",") for part in ("--prompt", f"Tell me about {one}.")]

    def answers(*options: object) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert run(["generate", str(bundle), *map(str, options), *prompts, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    said = answers("--state", state)
    right = [one for one in said if one["text"].endswith(ENDS) and one["stop"] == "eos"]
    assert len(right) >= 9, [one["text"] for one in said]
    assert not any(ENDS in one["text"] for one in answers("--max-new-tokens", 40))
