"""One data file as many clients' data, for simulations: which example is whose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.core.errors import ConfigError, DataError
from zoexport.core.files import atomic_folder

IID, LABELS, FIELD = "iid", "labels", "field"


def divided(path: Path, clients: int, how: str, seed: int) -> list[list[int]]:
    """Divide examples among clients: indices of non-blank lines, from 0.

    Args:
        path: examples as JSON Lines.
        clients: how many.
        how: ``iid``: shuffled and dealt in turn. ``labels:A``: each completion's examples go to clients by shares of a
            Dirichlet distribution of concentration A (small A: a client sees few kinds). ``field:NAME``: examples of
            one value of a field stay together; values are dealt to clients by size, the largest first.
        seed: of the shuffling and the shares.

    Returns:
        As many lists as clients, none empty.

    Raises:
        ConfigError: an unknown way, or fewer examples than clients. DataError: the file cannot be read so.
    """
    kind, _, argument = how.partition(":")
    rows = _rows(path)
    generator = np.random.default_rng(seed)
    if kind == IID and not argument:
        shards = _dealt([[int(i)] for i in generator.permutation(len(rows))], clients)
    elif kind == LABELS and _positive(argument):
        shards = _skewed(rows, clients, float(argument), generator)
    elif kind == FIELD and argument:
        shards = _by_size(_grouped(rows, argument, path), clients)
    else:
        raise ConfigError(
            f"--split {how}",
            found="no such way to divide data",
            expected="iid, labels:ALPHA (a number above 0) or field:NAME",
            fix="Correct it, such as --split labels:0.5.",
        )
    if len(rows) < clients or not all(shards):
        have = sum(bool(shard) for shard in shards)
        raise ConfigError(
            f"data {path}",
            found=f"{len(rows)} examples, that give {have} clients data (--split {how})",
            expected=f"examples for each of {clients} clients",
            fix="Simulate fewer clients, divide otherwise, or add examples.",
        )
    return [sorted(shard) for shard in shards]


def write(tokenized: Path, shards: Sequence[Sequence[int]], folder: Path) -> None:
    """Write each client's lines of a tokenized file as ``folder/<client>.jsonl``."""
    lines = tokenized.read_text("utf-8").splitlines(keepends=True)
    with atomic_folder(folder, replace=True) as output:
        for client, shard in enumerate(shards):
            text = "".join(lines[index] for index in shard)
            (output / f"{client}.jsonl").write_text(text, encoding="utf-8")


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
        return [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(
            f"data {path}",
            found=str(error),
            expected="examples as JSON Lines",
            fix="Check the path and the file.",
        ) from error


def _dealt(groups: Sequence[list[int]], clients: int) -> list[list[int]]:
    shards: list[list[int]] = [[] for _ in range(clients)]
    for position, group in enumerate(groups):
        shards[position % clients] += group
    return shards


def _by_size(groups: list[list[int]], clients: int) -> list[list[int]]:
    """Assign each group to the client with the fewest examples so far."""
    shards: list[list[int]] = [[] for _ in range(clients)]
    for group in sorted(groups, key=lambda one: (-len(one), one)):
        min(shards, key=len).extend(group)
    return shards


def _grouped(rows: Sequence[dict[str, Any]], field: str, path: Path) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if field not in row:
            raise DataError(
                f"{path}, example {index + 1}",
                found=f"no {field!r}",
                expected="the field that divides the data",
                fix="Add it to every line, or divide otherwise.",
            )
        groups.setdefault(json.dumps(row[field], sort_keys=True), []).append(index)
    return list(groups.values())


def _skewed(
    rows: Sequence[dict[str, Any]], clients: int, alpha: float, generator: np.random.Generator
) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(str(row.get("completion", "")), []).append(index)
    shards: list[list[int]] = [[] for _ in range(clients)]
    for label in sorted(groups):
        mixed = generator.permutation(groups[label])
        shares = generator.dirichlet(np.full(clients, alpha))
        ends = np.floor(np.cumsum(shares) * len(mixed) + 0.5).astype(int)[:-1]
        for client, part in enumerate(np.split(mixed, ends)):
            shards[client] += [int(index) for index in part]
    # A client that drew nothing takes one example of whoever has most, as every client must train on something.
    for shard in shards:
        largest = max(shards, key=len)
        if not shard and len(largest) > 1:
            shard.append(largest.pop())
    return shards


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
