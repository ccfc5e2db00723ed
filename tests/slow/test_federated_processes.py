"""Flower's SuperLink and SuperNodes as processes on loopback, with TLS and authentication, and what goes wrong."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import smollm2
from tests.support.compiled import Compiler
from tests.support.federation_processes import NAMES, Federation, wait_for
from zoexport.data.samples import Samples
from zoexport.federated.terms import Terms

pytestmark = [pytest.mark.slow, pytest.mark.federation]


def upload_bound(terms: Terms) -> int:
    return 8 * terms.steps * terms.scalars + 1000


@pytest.mark.parametrize(
    ("method", "settings"),
    [("prge", {"num_queries": 2}), ("spzo", {"split": "layer:1", "perturbations": "2,2"})],
)
def test_three_clients_three_rounds(
    compiler: Compiler,
    keys: Path,
    tiny_data: Mapping[str, Path],
    tmp_path: Path,
    method: str,
    settings: dict[str, Any],
) -> None:
    federation = Federation(tmp_path, compiler.bundle("llama", method, **settings), keys)
    with contextlib.ExitStack() as stack:
        for name in NAMES:
            stack.enter_context(federation.client(name, tiny_data[name]))
        server = stack.enter_context(federation.server(rounds=3, options=("--steps", "4")))
        result = federation.result(server, 900)
    assert result["rounds"] == 3 and result["refused"] == 0
    assert result["upload_largest"] <= upload_bound(federation.terms())
    assert all(found["clients"] == [0, 1, 2] for found in federation.rounds())
    assert federation.compare_last_round() == 3


@pytest.mark.network
@pytest.mark.parametrize(
    ("method", "settings"), [("prge", {"num_queries": 1, "max_length": 32, "batch_size": 2})]
)
def test_three_clients_train_smollm2(
    keys: Path, samples: Samples, tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    bundle, _ = smollm2.compiled("--target", "host", "--method", method, *given)
    federation = Federation(tmp_path, bundle, keys)
    lines = samples.train.read_text("utf-8").splitlines(keepends=True)
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(NAMES):
            data = tmp_path / f"{name}.jsonl"
            data.write_text("".join(lines[50 * number : 50 * number + 50]), encoding="utf-8")
            stack.enter_context(federation.client(name, data))
        options = ("--steps", "2", "--set", "loss=choices")
        server = stack.enter_context(federation.server(rounds=3, timeout=200, options=options))
        result = federation.result(server, 900)
    assert result["rounds"] == 3 and result["refused"] == 0
    assert result["upload_largest"] <= upload_bound(federation.terms())
    assert federation.compare_last_round() == 3


def test_every_fault_of_a_client(
    compiler: Compiler, keys: Path, tiny_data: Mapping[str, Path], tmp_path: Path
) -> None:
    """Two honest clients and one that does something else wrong in every round; all rounds end."""
    federation = Federation(tmp_path, compiler.bundle("llama", "prge", num_queries=2), keys)
    plan = ["", "nan", "huge", "stale", "bundle", "twice", "killed", ""]
    faults = tmp_path / "faults.json"
    faults.write_text(
        json.dumps({str(number): fault for number, fault in enumerate(plan) if fault})
    )
    mallory = tmp_path / "mallory.key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", mallory], check=True
    )
    with contextlib.ExitStack() as stack:
        for name in ("ann", "bob"):
            stack.enter_context(federation.client(name, tiny_data[name]))
        stack.enter_context(federation.client("eve", tiny_data["eve"], faults=faults))
        stack.enter_context(federation.client("mallory", tiny_data["eve"], key=mallory))
        server = stack.enter_context(
            federation.server(rounds=len(plan), timeout=20, options=("--steps", "3"))
        )
        result = federation.result(server, 1200)
    assert result["rounds"] == len(plan)
    found = federation.rounds()
    numbers = json.loads((tmp_path / "server" / "clients.json").read_text())
    assert set(numbers) == set(NAMES), "a key that nobody registered has no number"
    eve = numbers["eve"]
    reasons = {
        number: [entry["reason"] for entry in one["refused"] if entry["client"] == eve]
        for number, one in enumerate(found)
    }
    for number, word in {
        1: "not finite",
        2: "above the round's bound",
        3: "stale",
        4: "bundle ffff",
    }.items():
        assert any(word in reason for reason in reasons[number]), (number, reasons)
        assert eve not in found[number]["clients"]
    # What comes twice counts once.
    for number in (0, 5):
        assert eve in found[number]["clients"], (number, reasons)
    # The client that was killed after it had the request: its round ended, with it (asked again) or without.
    assert (tmp_path / "faults.json.killed-6").exists()
    for one in found:
        assert {numbers["ann"], numbers["bob"]} <= set(one["clients"])
        assert np.isfinite(one["loss"])
    assert federation.compare_last_round() == len(found[-1]["clients"]) >= 2
    refused = (tmp_path / "server" / "front.log").read_text().splitlines()
    assert refused and all(" 401 /v1/fleet/" in line for line in refused)


def test_a_server_that_is_killed(
    compiler: Compiler, keys: Path, tiny_data: Mapping[str, Path], tmp_path: Path
) -> None:
    """Its app between replies, its app after aggregation, and then all of it: the model is that of a calm run."""
    bundle = compiler.bundle("llama", "prge", num_queries=2)
    digests = {}
    for calm in (True, False):
        folder = tmp_path / ("calm" if calm else "killed")
        folder.mkdir()
        federation = Federation(folder, bundle, keys)
        faults = folder / "faults.json"
        faults.write_text(json.dumps({} if calm else {"reply 0": 2, "commit 1": 1}))
        with contextlib.ExitStack() as stack:
            for name in NAMES:
                stack.enter_context(federation.client(name, tiny_data[name]))
            options = ("--steps", "3")
            if not calm:
                with federation.server(rounds=4, faults=faults, options=options) as server:
                    wait_for(folder / "server" / "rounds" / "000002" / "reply-0.bin", 900)
                    server.kill()
                assert (folder / "faults.json.reply-0").exists()
                assert (folder / "faults.json.commit-1").exists()
            server = stack.enter_context(federation.server(rounds=4, options=options))
            digests[calm] = federation.result(server, 1200)["digest"]
        assert all(found["clients"] == [0, 1, 2] for found in federation.rounds())
        assert federation.compare_last_round() == 3
    assert digests[True] == digests[False]


def test_another_authority_is_no_server(
    compiler: Compiler, keys: Path, tiny_data: Mapping[str, Path], tmp_path: Path
) -> None:
    """A client whose authority has not signed the server's certificate sends it nothing."""
    federation = Federation(tmp_path, compiler.bundle("llama", "prge", num_queries=2), keys)
    other = tmp_path / "other"
    other.mkdir()
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 2 -subj /CN=x"
    )
    subprocess.run(
        [*command.split(), "-keyout", "ca.key", "-out", "ca.crt"],
        cwd=other,
        check=True,
        capture_output=True,
    )
    with (
        federation.server(rounds=1, sample=1, timeout=30) as server,
        federation.client("ann", tiny_data["ann"], ca=other / "ca.crt"),
    ):
        output, _ = server.communicate(timeout=600)
    assert server.returncode == 1
    assert "found 0 clients; expected at least 1" in json.loads(output)["error"]["message"]
    assert "Activated" not in (tmp_path / "server" / "superlink.log").read_text()
