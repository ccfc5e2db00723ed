"""Masks against brute force: plain autograd in float64 over the original transformers model, and a sort."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from tests.support.tiny_models import SENTENCES, save_tiny, tiny, tiny_tokenizer
from zoexport import models
from zoexport.core.errors import ConfigError, DataError, ModelError
from zoexport.core.mask import Mask, read_mask
from zoexport.tools import mask_choice as choose
from zoexport.tools.mask_choice import coverage
from zoexport.tools.mask_text import read_text
from zoexport.tools.sensitivity import MaskConfig, averaged_squares, choose_mask, make_mask

ROWS = [
    {"text": SENTENCES[0]},
    {"text": SENTENCES[4]},
    {"prompt": "The plot makes no sense. It was", "completion": " terrible"},
    {
        "prompt": "A warm and funny film. It was",
        "completion": " great",
        "choices": [" terrible", " great"],
    },
]
CONFIG = MaskConfig(density=0.01, max_length=64)


def quiet(phase: str, done: float | None) -> None:
    pass


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama_tied", tmp_path_factory.mktemp("llama"))


def load(folder: Path, *, lazy: bool = False) -> models.LoadedModel:
    return models.load(models.resolve(str(folder)), lazy=lazy)


def losses(model: Any) -> list[torch.Tensor]:
    """For each row of ROWS, the mean of minus the log-probabilities of what is predicted."""
    tokenizer = tiny_tokenizer()
    found = []
    for row in ROWS:
        prompt = tokenizer(row.get("prompt", ""))["input_ids"]
        tokens = prompt + tokenizer(row.get("completion", row.get("text")))["input_ids"]
        first = max(len(prompt), 1)
        logits = model(input_ids=torch.tensor([tokens])).logits[0].double()
        logs = torch.log_softmax(logits, dim=-1)
        found.append(
            -torch.stack([logs[t - 1, tokens[t]] for t in range(first, len(tokens))]).mean()
        )
    return found


def exact(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    """Averaged squared gradients, or GraSP's scores, by linear weight, float64 (outputs, inputs)."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double()
    head = model.get_output_embeddings()
    layers = {
        f"{path}.weight": module
        for path, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not head
    }
    weights = [layer.weight for layer in layers.values()]
    found = {name: torch.zeros_like(layer.weight) for name, layer in layers.items()}
    for loss in losses(model):
        gradients = torch.autograd.grad(loss, weights, create_graph=kind == "grasp")
        if kind == "grasp":
            # H g is the gradient of g . stop(g)
            product = sum((g * g.detach()).sum() for g in gradients)
            parts = torch.autograd.grad(product, weights)
            scores = [-w.detach() * hg for w, hg in zip(weights, parts, strict=True)]
        else:
            scores = [g.square() for g in gradients]
        for name, score in zip(found, scores, strict=True):
            found[name] += score / len(ROWS)
    transposed = {name for name, layer in layers.items() if isinstance(layer, Conv1D)}
    return {name: s.T if name in transposed else s for name, s in found.items()}


def best(scores: Mapping[str, torch.Tensor], count: int) -> dict[str, list[int]]:
    """Where the highest scores are, all weights in one row and sorted as a whole."""
    flat = torch.cat([score.flatten() for score in scores.values()])
    order = torch.sort(flat, descending=True, stable=True).indices[:count].sort().values
    found, start = {}, 0
    for name, score in scores.items():
        inside = order[(order >= start) & (order < start + score.numel())]
        found[name] = (inside - start).tolist()
        start += score.numel()
    return found


def places(mask: Mask) -> dict[str, list[int]]:
    return {name: found.tolist() for name, found in mask.places.items()}


# ---- what is chosen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sensitive", "grasp"])
@pytest.mark.parametrize("name", ["llama_tied", "gpt2", "qwen2", "olmo2", "gemma3", "opt"])
def test_gradients_choose_what_brute_force_does(
    name: str, kind: str, tmp_path: Path, data: Path
) -> None:
    folder = save_tiny(name, tmp_path / "model")
    scores = exact(folder, kind)
    total = sum(score.numel() for score in scores.values())
    count = round(0.01 * total)
    config = MaskConfig(density=0.01, kind=kind, max_length=64)
    mask, share = choose_mask(load(folder), data, config, tmp_path, progress=quiet)
    # The smallest of GraSP's scores.
    ordered = scores if kind == "sensitive" else {n: -s for n, s in scores.items()}
    assert places(mask) == best(ordered, count)
    assert mask.facts.shapes == {n: list(s.shape) for n, s in scores.items()}
    assert (mask.facts.loss, mask.facts.sequences) == ("label tokens", len(ROWS))
    if kind == "sensitive":
        flat = torch.cat([score.flatten() for score in scores.values()])
        assert share == pytest.approx(float(flat.topk(count).values.sum() / flat.sum()), rel=1e-5)
    else:
        assert share is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "rows.jsonl"]


@pytest.mark.parametrize("kind", ["largest", "smallest"])
def test_magnitudes_choose(kind: str, llama: Path, tmp_path: Path) -> None:
    config = MaskConfig(density=0.003, kind=kind)
    mask, _ = choose_mask(load(llama, lazy=True), None, config, tmp_path, progress=quiet)
    loaded = load(llama)
    sign = 1 if kind == "largest" else -1
    scores = {n: sign * loaded.weights.read(n).abs() for n in mask.facts.shapes}
    assert places(mask) == best(scores, round(0.003 * sum(s.numel() for s in scores.values())))
    assert (mask.facts.corpus, mask.facts.loss, mask.facts.sequences) == ("", "", 0)


def test_random_choices_depend_on_the_seed_alone(llama: Path, tmp_path: Path) -> None:
    def chosen(seed: int) -> Mask:
        config = MaskConfig(density=0.1, kind="random", seed=seed)
        return choose_mask(load(llama, lazy=True), None, config, tmp_path, progress=quiet)[0]

    first, again, other = chosen(1), chosen(1), chosen(2)
    assert places(first) == places(again)
    sizes = {name: rows * columns for name, (rows, columns) in first.facts.shapes.items()}
    assert first.count() == other.count() == round(0.1 * sum(sizes.values()))
    overlap = 0
    for name, size in sizes.items():
        found = first.places[name]
        # Six standard deviations of a binomial distribution.
        assert abs(found.numel() - 0.1 * size) < 6 * (0.09 * size) ** 0.5
        halves = int((found < size // 2).sum())
        assert abs(halves - found.numel() / 2) < 3 * found.numel() ** 0.5
        overlap += len(set(found.tolist()) & set(other.places[name].tolist()))
    assert abs(overlap / first.count() - 0.1) < 0.02


def test_each_layer_has_its_share(llama: Path, tmp_path: Path, data: Path) -> None:
    config = MaskConfig(density=0.01, scope="layer", max_length=64)
    mask, _ = choose_mask(load(llama), data, config, tmp_path, progress=quiet)
    for name, score in exact(llama, "sensitive").items():
        assert places(mask)[name] == best({name: score}, round(0.01 * score.numel()))[name]


def test_one_weight_at_least_and_all_at_most(llama: Path, tmp_path: Path) -> None:
    def count(density: float) -> int:
        config = MaskConfig(density=density, kind="largest")
        return choose_mask(load(llama, lazy=True), None, config, tmp_path, progress=quiet)[
            0
        ].count()

    assert count(1e-9) == 1
    assert count(1.0) == sum(
        p.numel() for n, p in tiny("llama_tied").named_parameters() if "proj" in n
    )


def test_the_text_is_drawn_with_the_seed(llama: Path, data: Path, tmp_path: Path) -> None:
    loaded = load(llama)
    every = read_text(data, loaded, CONFIG)
    drawn = [
        read_text(data, loaded, MaskConfig(sequences=2, seed=seed)).sequences for seed in range(9)
    ]
    assert all(len(pair) == 2 and all(one in every.sequences for one in pair) for pair in drawn)
    assert len({str(pair) for pair in drawn}) > 1
    # An example with choices ends with the right one.
    assert every.sequences[3].tokens[-1] == tiny_tokenizer()(" great")["input_ids"][-1]
    # Blank lines are no examples.
    spaced = tmp_path / "spaced.jsonl"
    spaced.write_bytes(b"\xef\xbb\xbf\n \r\n" + data.read_bytes().replace(b"\n", b"\n\t\n"))
    assert read_text(spaced, loaded, MaskConfig(sequences=2, seed=8)).sequences == drawn[8]

    text = tmp_path / "text.txt"
    text.write_text("\ufeff" + "\n\n".join(SENTENCES), encoding="utf-8")
    tokens = tiny_tokenizer()("\n\n".join(SENTENCES))["input_ids"]
    found = read_text(text, loaded, MaskConfig(max_length=40))
    assert (found.loss, found.name) == ("all tokens", "text.txt")
    assert len(found.sequences) == len(tokens) // 40
    assert [s.tokens for s in found.sequences][1] == tokens[40:80]
    assert found.sequences[1].labels == [*tokens[41:80], -100]


# ---- the selection ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 37, 400, 511, 512])
def test_equal_scores_are_chosen_in_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(count)
    values = torch.tensor([-1e30, -2.5, -1e-40, -0.0, 0.0, 1e-40, 2.5, 2.5000002, 1e30])
    scores = {
        name: values[torch.randint(len(values), shape, generator=generator)]
        for name, shape in {"a": (16, 8), "b": (8, 32), "c": (64, 2)}.items()
    }
    monkeypatch.setattr(choose, "_PIECE", 24)
    shapes = {name: (score.shape[0], score.shape[1]) for name, score in scores.items()}
    found = choose.top(shapes, lambda name, begin, end: scores[name][begin:end], count)
    assert {name: places.tolist() for name, places in found.items()} == best(scores, count)


def test_coverage_is_the_chosen_share(llama: Path, data: Path, tmp_path: Path) -> None:
    config = MaskConfig(density=0.02, kind="random", seed=3)
    mask, _ = choose_mask(load(llama, lazy=True), None, config, tmp_path, progress=quiet)
    with averaged_squares(load(llama), data, CONFIG, tmp_path, progress=quiet) as squares:
        found = coverage(mask, squares)
        measured = {name: squares[name].clone() for name in squares}
        with pytest.raises(ConfigError, match="other names or shapes"):
            coverage(mask, {"other.weight": torch.ones(2, 2)})
    scores = exact(llama, "sensitive")
    for name, score in scores.items():
        torch.testing.assert_close(measured[name].double(), score, rtol=1e-4, atol=1e-9)
    chosen = sum(float(s.flatten()[mask.places[n]].sum()) for n, s in scores.items())
    assert found == pytest.approx(chosen / sum(float(s.sum()) for s in scores.values()), rel=1e-5)
    with pytest.raises(ModelError, match="zero for every"):
        coverage(mask, {name: torch.zeros_like(square) for name, square in measured.items()})


# ---- refusals ---------------------------------------------------------------------------------------------------


def make(model: Path, output: Path, **arguments: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "data": None,
        "settings": {},
        "device_map": None,
        "force": False,
        "progress": quiet,
    }
    return make_mask(str(model), output=output, **(values | arguments))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": "0"}, "setting 'density': found '0'; expected a number above 0"),
        (
            {"density": "1.5"},
            "setting 'density': found 1.5; expected a share above 0 and at most 1",
        ),
        ({"density": "nan"}, "found 'nan'"),
        ({"kind": "bigest"}, "Did you mean 'largest'"),
        ({"scope": "block"}, "expected one of model, layer"),
        ({"sequences": "0"}, "at least 1"),
        ({"max_length": "1"}, "at least 2"),
        ({"densty": "0.1"}, "Did you mean 'density'"),
        (
            {"kind": "random", "scope": "layer", "density": "1e-4"},
            "layers.0.self_attn.k_proj.weight with 32 x 64 weights; density 0.0001 chooses none",
        ),
    ],
)
def test_settings_that_cannot_be(
    settings: dict[str, str], message: str, llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        make(llama, tmp_path / "m.mask", settings=settings)
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_options_that_a_kind_does_not_use(llama: Path, data: Path, tmp_path: Path) -> None:
    for option in ({"data": data}, {"device_map": "disk"}):
        with pytest.raises(ConfigError, match="kind=largest, which takes no gradients"):
            make(llama, tmp_path / "m.mask", settings={"kind": "largest"}, **option)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.jsonl", None, "no such file"),
        ("no.txt", None, "no such file"),
        ("empty.jsonl", b"\n\n", "no examples"),
        ("empty.txt", b" \n", "no text"),
        ("short.txt", b"a", "1 tokens"),
        ("bytes.txt", b"ab\xff", "0xff that is not UTF-8"),
        ("bad.jsonl", b'{"txt": "x"}\n', "'text'"),
    ],
)
def test_text_that_cannot_be_read(
    name: str, content: bytes | None, message: str, llama: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as error:
        make(llama, tmp_path / "m.mask", data=path)
    assert message in str(error.value)
    assert not (tmp_path / "m.mask").exists()


def test_an_output_that_is_there(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.mask"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="force=True"):
        make(llama, path, settings={"kind": "random"})
    assert path.read_text() == "mine"
    make(llama, path, settings={"kind": "random"}, force=True)
    assert read_mask(path).facts.kind == "random"
    with pytest.raises(ConfigError, match="a folder"):
        make(llama, tmp_path, settings={"kind": "random"}, force=True)


def test_models_that_give_no_gradients(llama: Path, data: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"text": " ".join(SENTENCES * 3)}))
    with pytest.raises(ConfigError, match="at most 128, which is how many positions"):
        make(llama, tmp_path / "m.mask", data=long)
    bare = save_tiny("llama", tmp_path / "bare", tokenizer=False)
    with pytest.raises(ModelError, match="no tokenizer"):
        make(bare, tmp_path / "m.mask", data=data)

    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3] = (
            3e38  # its products are infinite, and their squares
        )
    model.save_pretrained(tmp_path / "large")
    tiny_tokenizer().save_pretrained(tmp_path / "large")
    with pytest.raises(ModelError, match=r"^loss: found values that are not finite"):
        make(tmp_path / "large", tmp_path / "m.mask", data=data)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    tiny_tokenizer().save_pretrained(tmp_path / "nan")
    for settings in ({}, {"kind": "largest"}):
        with pytest.raises(ModelError, match=r"the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
            make(
                tmp_path / "nan",
                tmp_path / "m.mask",
                data=None if settings else data,
                settings=settings,
            )
    assert not (tmp_path / "m.mask").exists()
