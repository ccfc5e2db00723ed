"""Bundles made by hand, and the small model that a callback engine runs in place of their programs.

The model is causal: the hidden state at position t is the mean of the embeddings of tokens 0 .. t, the logits are
h W + (h A) B. It is written from the definitions in docs/formats.md and uses nothing of the session.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoexport.core import manifest as manifests
from zoexport.core import rng
from zoexport.session import Tensor

VOCAB, HIDDEN, RANK = 13, 6, 3
SLOT, FROZEN = "lora_B.proj", "lora_A.proj"
TENSOR_ID = 5
NO_LABEL = -100
Floats = NDArray[np.float32]
Candidate = tuple[list[int], list[int]]


def safetensors(tensors: Mapping[str, Floats]) -> bytes:
    """Return the content of a float32 file of tensors, in the given order."""
    header: dict[str, Any] = {}
    data = b""
    for name, values in tensors.items():
        content = np.ascontiguousarray(values, np.float32).tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path: Path) -> dict[str, Floats]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(content[8 + size + begin : 8 + size + end], np.float32)
            found[name] = values.reshape(entry["shape"])
    return found


def initial_values() -> dict[str, Floats]:
    generator = np.random.default_rng(11)
    return {
        FROZEN: generator.normal(size=(HIDDEN, RANK)).astype(np.float32),
        SLOT: (0.1 * generator.normal(size=(RANK, VOCAB))).astype(np.float32),
    }


def tensor_spec(name: str, role: str, dtype: str, *shape: Any) -> dict[str, Any]:
    """Return an input or output of a program as the manifest lists it."""
    return {"name": name, "role": role, "dtype": dtype, "shape": list(shape)}


def slot(
    name: str, role: str, tensor_id: int, dtype: str, shape: Sequence[int], module: str = ""
) -> dict[str, Any]:
    """Return a parameter as the manifest lists it."""
    return {**tensor_spec(name, role, dtype, *shape), "tensor_id": tensor_id, "module": module}


def stage_program(
    family: str, length: int | None, inputs: list[Any], outputs: list[Any]
) -> dict[str, Any]:
    """Return a program of a split bundle, for rows of ``length`` tokens or for any rows."""
    suffix = "" if length is None else f"@{length}"
    return {
        "name": family + suffix,
        "family": family,
        "length": length,
        "file": "model.bin",
        "entry_point": (family + suffix).replace("@", "_"),
        "inputs": inputs,
        "outputs": outputs,
    }


def array(tensor: Tensor) -> NDArray[Any]:
    """Return a copy of what the host gave to an engine; values of 16 bits as float16."""
    kinds = {"f": "f4", "q": "i8", "l": "i8", "i": "i4", "B": "u1", "b": "i1", "H": "f2"}
    raw = np.frombuffer(bytes(tensor.data.cast("B")), kinds[tensor.data.format])
    return raw.reshape(tensor.shape).copy()


def spsa(
    num_queries: int, copies: str, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The plan of one level, with the difference of the settings."""
    difference = (settings or {}).get("difference", "central")
    level = {"begin": 0, "directions": num_queries, "difference": difference}
    return {"levels": [level], "copies": copies}


def run_settings(method: str) -> dict[str, Any]:
    """Return the default settings of a run with a method; those of prge for methods that only tests have."""
    from zoexport.core.config import as_dict, fields
    from zoexport.methods import methods

    config = methods.get(method if method in methods.names() else "prge").config
    runtime = {key for key, (_, info) in fields(config).items() if info.runtime}
    found = {key: value for key, value in as_dict(config()).items() if key in runtime}
    return {key: value for key, value in found.items() if value is not None}


def write(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    method: str,
    model: str,
    vocab: int,
    settings: Mapping[str, Any],
    **parts: Any,
) -> Path:
    """Write the files of a bundle and a manifest that lists them.

    Args:
        settings: those that differ from the defaults of the method and of these bundles.
        parts: keys of the manifest, beside or in place of the common ones.
    """
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    content = {
        "zoexport_version": "0",
        "tools": {},
        "method": method,
        "target": "test",
        "engine": "test",
        "model": {
            "name": model,
            "source": "test",
            "architecture": "Test",
            "vocab_size": vocab,
            "parameters": 1,
            "sha256": "0" * 64,
        },
        "settings": {
            **run_settings(method),
            "batch_size": 3,
            "gradient_accumulation_steps": 1,
            "weights": "fp32",
            "activations": "fp32",
            "lr_scheduler_type": "constant",
            "loss": "full",
            "seed": 7,
            **settings,
        },
        "rng": rng.SPEC_ID,
        "packing": "fp32",
        "rotated_weights": [],
        "provenance": [],
        "required_ops": [],
        "delegates": 0,
        "delegate_list": {},
        "fallback_ops": {},
        "tolerances": {"loss": 1.5e-5},
        "tokenizer": [],
        **parts,
    }
    manifests.write(folder, content, [folder / name for name in files])
    return folder


def write_split(
    folder: Path, adapter: bytes, weights: bytes, program: bytes = b"programs", **parts: Any
) -> Path:
    """Write a bundle of stages with a file of weights, as :func:`write` does."""
    names = ("adapter.safetensors", "weights.safetensors", "model.bin")
    files = dict(zip(names, (adapter, weights, program), strict=True))
    return write(folder, files, **{"weights": {"file": names[1]}, **parts})


def write_bundle(
    folder: Path,
    *,
    method: str = "prge",
    num_queries: int = 2,
    rows: int = 2,
    max_length: int = 8,
    max_labels: int = 10,
    min_labels: int = 1,
    settings: Mapping[str, Any] | None = None,
    engine: str = "test",
    program: bytes = bytes(range(256)) * 5,
    evaluates: bool = True,
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a bundle whose programs the host runs.

    Args:
        evaluates: whether there is a program that perturbs nothing.
        changes: replace keys of the manifest.
    """
    copies = 2 * num_queries if method == "prge" else 1
    entries = {"name": "labels", "min": min_labels, "max": max_labels}
    slots = [
        slot(name, role, tensor_id, "float32", initial_values()[name].shape, "proj")
        for name, role, tensor_id in ((SLOT, "trainable", TENSOR_ID), (FROZEN, "frozen", 6))
    ]
    states = [tensor_spec(each["name"], "state", "float32", *each["shape"]) for each in slots]
    rows_in = [
        tensor_spec("tokens", "tokens", "int64", rows, max_length),
        tensor_spec("label_positions", "label_positions", "int64", entries),
        tensor_spec("label_tokens", "label_tokens", "int64", entries),
    ]
    noise = [
        tensor_spec("seed", "seed", "int64", 1),
        tensor_spec("step", "step", "int64", 1),
        tensor_spec("projected_gradients", "projected_gradients", "float32", num_queries),
        tensor_spec("learning_rate", "learning_rate", "float32", 1),
        tensor_spec("epsilon", "epsilon", "float32", 1),
    ]
    if method == "mezo":
        noise += [
            tensor_spec("query", "query", "int64", 1),
            tensor_spec("sign", "sign", "float32", 1),
        ]
    programs = [
        {
            "name": "train",
            "file": "model.bin",
            "entry_point": "train",
            "inputs": [*rows_in, *states, *noise],
            "outputs": [
                tensor_spec("logprobs", "label_logprobs", "float32", copies, entries),
                states[0],
            ],
        },
        {
            "name": "evaluate",
            "file": "model.bin",
            "entry_point": "evaluate",
            "inputs": [*rows_in, *states],
            "outputs": [
                tensor_spec("logprobs", "label_logprobs", "float32", 1, entries),
                tensor_spec("is_argmax", "label_is_argmax", "float32", 1, entries),
            ],
        },
    ]
    if not evaluates:
        programs.pop()
        argmax = tensor_spec("is_argmax", "label_is_argmax", "float32", copies, entries)
        programs[0]["outputs"].append(argmax)
    parts = {
        "engine": engine,
        "programs": programs,
        "state": slots,
        "rows": rows,
        "max_labels": max_labels,
        "copies": copies,
        "step": spsa(num_queries, "one" if method == "mezo" else "call", settings),
        **(changes or {}),
    }
    own = {
        "max_length": max_length,
        "num_queries": num_queries,
        "eps": 1e-2,
        "learning_rate": 0.5,
        **(settings or {}),
    }
    return write(
        folder,
        {"adapter.safetensors": safetensors(initial_values()), "model.bin": program},
        method=method,
        model="naïve \u2028 model",  # the bundle id is over UTF-8
        vocab=VOCAB,
        settings=own,
        **parts,
    )


def zo_update(
    master: Floats, gradients: Floats, learning_rate: float, seed: int, step: int
) -> Floats:
    """The update of the step before ``step``, as docs/noise.md defines it."""
    if not gradients.any():
        return master.copy()
    z = [rng.normals(seed, TENSOR_ID, j, step - 1, master.size) for j in range(len(gradients))]
    total = gradients[0] * z[0]
    for g, normals in zip(gradients[1:], z[1:], strict=True):
        total = total + g * normals
    scale = np.float32(learning_rate) / np.float32(len(gradients))
    return (master.ravel() - scale * total).reshape(master.shape)


class LinearModel:
    """An engine for the bundles above. ``calls`` records what it was given, by program."""

    def __init__(self) -> None:
        generator = np.random.default_rng(3)
        self.embedding = generator.normal(size=(VOCAB, HIDDEN))
        self.output = generator.normal(size=(HIDDEN, VOCAB))
        self.calls: list[tuple[str, dict[str, NDArray[Any]]]] = []

    def __call__(
        self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        given = {name: array(tensor) for name, tensor in inputs.items()}
        self.calls.append((program, given))
        master = given[SLOT]
        if program == "train":
            seed = int(given["seed"][0]) & (2**64 - 1)
            step = int(given["step"][0])
            master = zo_update(
                master, given["projected_gradients"], given["learning_rate"][0], seed, step
            )
            if SLOT in outputs:
                _fill(outputs[SLOT], master)
            copies = [
                master + np.float32(sign) * given["epsilon"] * self._noise(given, query, master)
                for query, sign in _perturbations(given)
            ]
        else:
            copies = [master]
        tokens, positions = given["tokens"], given["label_positions"]
        logprobs = [self.logprobs(tokens, copy, given[FROZEN]) for copy in copies]
        picked = [values.reshape(-1, VOCAB)[positions] for values in logprobs]
        labels = given["label_tokens"]
        taken = np.arange(len(labels))
        _fill(outputs["logprobs"], np.stack([values[taken, labels] for values in picked]))
        if "is_argmax" in outputs:
            is_argmax = [values.argmax(axis=1) == labels for values in picked]
            _fill(outputs["is_argmax"], np.stack(is_argmax))

    def logprobs(self, tokens: NDArray[Any], b: Floats, a: Floats) -> NDArray[Any]:
        """Log-probabilities (rows, max_length, vocabulary)."""
        length = np.arange(1, tokens.shape[1] + 1)[:, None]
        hidden = np.cumsum(self.embedding[tokens], axis=1) / length
        logits = hidden @ self.output + (hidden @ a) @ b.astype(np.float64)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    @staticmethod
    def _noise(given: Mapping[str, NDArray[Any]], query: int, master: Floats) -> Floats:
        seed = int(given["seed"][0]) & (2**64 - 1)
        normals = rng.normals(seed, TENSOR_ID, query, int(given["step"][0]), master.size)
        return normals.reshape(master.shape)


def _perturbations(given: Mapping[str, NDArray[Any]]) -> list[tuple[int, float]]:
    if "query" in given:
        return [(int(given["query"][0]), float(given["sign"][0]))]
    num_queries = len(given["projected_gradients"])
    return [(query, sign) for query in range(num_queries) for sign in (1.0, -1.0)]


def _fill(tensor: Tensor, values: Any) -> None:
    flat = np.asarray(values, np.float32).ravel()
    tensor.data[:] = memoryview(flat)


def text_examples(count: int = 7, max_length: int = 8) -> list[tuple[list[Candidate], int]]:
    """Examples without choices, of unequal length; the label is a function of the token, so it can be learned."""
    words = np.random.default_rng(5)
    examples = []
    for number in range(count):
        length = max_length if number == 0 else int(words.integers(1, max_length + 1))
        tokens = words.integers(0, VOCAB, size=length).tolist()
        labels = [(3 * token + 1) % VOCAB if words.random() < 0.7 else NO_LABEL for token in tokens]
        labels[-1] = (3 * tokens[-1] + 1) % VOCAB
        examples.append(([(tokens, labels)], 0))
    return examples


def choice_examples(count: int = 6) -> list[tuple[list[Candidate], int]]:
    """Examples with two or three choices: one-token ones after one prompt, and longer ones."""
    words = np.random.default_rng(6)
    examples = []
    for number in range(count):
        prompt = words.integers(0, VOCAB, size=int(words.integers(1, 5))).tolist()
        candidates: list[Candidate] = []
        for choice in range(2 + number % 2):
            length = 1 if number < count // 2 else 1 + (choice + number) % 3
            completion = words.integers(0, VOCAB, size=length).tolist()
            tokens = prompt + completion
            labels = [NO_LABEL] * (len(prompt) - 1) + completion + [NO_LABEL]
            candidates.append((tokens, labels))
        examples.append((candidates, int(words.integers(0, len(candidates)))))
    return examples


def pair_examples(count: int = 6) -> list[tuple[list[Candidate], int]]:
    """Pairs of answers of unequal lengths to one prompt, the chosen one at either place."""
    words = np.random.default_rng(8)
    examples = []
    for _ in range(count):
        prompt = words.integers(0, VOCAB, size=int(words.integers(1, 5))).tolist()
        candidates: list[Candidate] = []
        for length in words.permutation([1, 2, 3])[:2]:
            completion = words.integers(0, VOCAB, size=int(length)).tolist()
            labels = [NO_LABEL] * (len(prompt) - 1) + completion + [NO_LABEL]
            candidates.append((prompt + completion, labels))
        examples.append((candidates, int(words.integers(0, 2))))
    return examples


def score(model: LinearModel, candidate: Candidate, b: Floats, a: Floats) -> tuple[float, int, int]:
    """The candidate's summed log-probability, its label entries, and how many are the argmax."""
    tokens, labels = candidate
    logprobs = model.logprobs(np.array([tokens]), b, a)[0]
    entries = [(t, label) for t, label in enumerate(labels) if label != NO_LABEL]
    total = sum(float(np.float32(logprobs[t, label])) for t, label in entries)
    return total, len(entries), sum(int(logprobs[t].argmax()) == label for t, label in entries)


def evaluate(
    model: LinearModel,
    examples: Sequence[tuple[list[Candidate], int]],
    b: Floats,
    loss: str = "full",
    beta: float = 0.1,
    choices: str = "sum",
) -> dict[str, float | None]:
    """The numbers of ``eval``, straight from their definitions; ``beta`` is that of a loss of pairs."""
    initial = initial_values()
    a = initial[FROZEN]
    losses, margins, right, with_choices, labels, argmax = [], [], 0, 0, 0, 0
    for candidates, target in examples:
        scores = [score(model, candidate, b, a) for candidate in candidates]
        sums = [total for total, _, _ in scores]
        compared = [total / (count if choices == "mean" else 1) for total, count, _ in scores]
        preferred = int(np.argmax(compared)) == target
        if loss == "full":
            losses.append(-sums[target] / scores[target][1])
        elif loss == "choices":
            losses.append(float(np.log(np.sum(np.exp(compared))) - compared[target]))
        elif loss == "dpo":
            known = [score(model, candidate, initial[SLOT], a)[0] for candidate in candidates]
            ratios = [now - before for now, before in zip(sums, known, strict=True)]
            margins.append(beta * (ratios[target] - ratios[1 - target]))
            losses.append(float(np.log1p(np.exp(-margins[-1]))))
            preferred = margins[-1] > 0
        else:
            means = [total / count for total, count, _ in scores]
            odds = [np.exp(mean) / (1 - np.exp(mean)) for mean in means]
            ratio = odds[target] / odds[1 - target]
            losses.append(float(-means[target] + beta * np.log1p(1 / ratio)))
            margins.append(beta * (means[target] - means[1 - target]))
            preferred = margins[-1] > 0
        if len(candidates) > 1:
            with_choices += 1
            right += preferred
        labels += scores[target][1]
        argmax += scores[target][2]
    return {
        "loss": float(np.mean(losses)),
        "accuracy": right / with_choices if with_choices else None,
        "token_accuracy": argmax / labels,
        "margin": float(np.mean(margins)) if margins else None,
    }
