"""The baselines on the same session and data, what they send, and what a round costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.compiled import Compiler
from tests.support.federations import Network, clients_of, examples, federation, terms_of
from zoexport.core.errors import ConfigError, StateError
from zoexport.federated import flower, models
from zoexport.federated.aggregate import mean
from zoexport.federated.client import Client
from zoexport.federated.coordinator import Patience
from zoexport.federated.local import LocalTransport
from zoexport.federated.protocol import Reply, Request, Trajectory
from zoexport.federated.settings import terms_of as checked_terms
from zoexport.federated.terms import ALGORITHMS
from zoexport.session import Bundle, Dataset, Session, no_programs


def trained(bundle: Path, model: models.Model, seed: int, client: int, **run: Any) -> models.Model:
    """A client's model after three steps, by a session that the federation has no part in."""
    with Session.open(bundle) as session:
        models.write(session, model)
        session.configure(seed=seed, batch_size=2, **run)
        session.train(examples(client), 3)
        return models.read(session, models.trained_slots(session))


def test_fedzo_averages_uploaded_models(mezo: Path, tmp_path: Path) -> None:
    terms = terms_of(mezo, "fedzo")
    assert terms.difference == "forward"
    network = Network(clients_of(mezo, tmp_path, 3))
    with federation(tmp_path, mezo, terms, network, sample=3) as server:
        start = dict(server.model)
        first = server.run_round(0)
        models_of = [
            trained(mezo, start, terms.client_seed(0, client), client, difference="forward")
            for client in range(3)
        ]
        for name, values in mean(models_of).items():
            np.testing.assert_array_equal(server.model[name], values.astype(np.float32))
        # The next version is sent whole, and so is what comes back.
        network.requests.clear()
        server.run_round(1)
    size = len(models.pack(start))
    assert min(first["uploads"]) > size
    assert all(Request.unpack(content).state is not None for _, content in network.requests)


def test_decomfl_averages_the_scalars_of_one_seed(mezo: Path, tmp_path: Path) -> None:
    terms = terms_of(mezo, "decomfl")
    network = Network(clients_of(mezo, tmp_path, 3))
    with federation(tmp_path, mezo, terms, network, sample=3) as server:
        start = dict(server.model)
        server.run(2)
        replies = [
            Reply.unpack(
                (tmp_path / "server" / "rounds" / "000000" / f"reply-{client}.bin").read_bytes()
            )
            for client in range(3)
        ]
    seed = terms.client_seed(0, 0)
    found = [Trajectory.unpack(reply.body, 3, terms.scalars) for reply in replies]
    gradients = np.mean([one.gradients.astype(np.float64) for one in found], axis=0)
    # One update a step with the averaged scalars, from the definition.
    with Session.open(mezo, engine=no_programs) as session:
        models.write(session, start)
        session.configure(seed=seed)
        losses = np.mean([one.losses.astype(np.float64) for one in found], axis=0)
        averaged = Trajectory(losses.astype(np.float32), gradients.astype(np.float32))
        session.follow(averaged.records(terms.learning_rate, terms.eps))
        expected = models.digest(models.read(session, models.trained_slots(session)))
    (kept,) = (tmp_path / "server" / "models").glob("model-1.safetensors")
    assert models.digest(models.unpack(kept.read_bytes(), models.sizes_of(start), "")) == expected
    # What participants download does not grow with their number: one trajectory.
    synced = [
        Request.unpack(content) for _, content in network.requests if b'"kind":"sync"' in content
    ]
    assert synced and all(len(one.rounds[0].trajectories) == 1 for one in synced)


def test_fedavg_trains_by_gradients(mebp: Path, tmp_path: Path) -> None:
    terms = terms_of(mebp, "fedavg", scalars=0, learning_rate=0.01)
    network = Network(clients_of(mebp, tmp_path, 2))
    with federation(tmp_path, mebp, terms, network, sample=2) as server:
        start = dict(server.model)
        server.run(1)
        models_of = [
            trained(
                mebp,
                start,
                terms.client_seed(0, client),
                client,
                learning_rate=0.01,
                lr_scheduler_type="constant",
            )
            for client in range(2)
        ]
        for name, values in mean(models_of).items():
            np.testing.assert_array_equal(server.model[name], values.astype(np.float32))
        assert server.run_round(1)["loss"] < 10


@pytest.mark.parametrize("shared", [True, False])
def test_the_two_aggregations_differ_by_their_seeds(
    mezo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Figure 5: with the same central differences. A mean of models is linear in scalars of the same directions."""
    alike = dataclasses.replace(ALGORITHMS["replay"], shared_seed=shared)
    monkeypatch.setitem(ALGORITHMS, "replay", alike)
    found = []
    for algorithm in ("replay", "decomfl"):
        folder = tmp_path / algorithm
        terms = terms_of(mezo, algorithm, difference="central")
        network = Network(clients_of(mezo, folder, 3))
        with federation(folder, mezo, terms, network, sample=3) as server:
            start = dict(server.model)
            server.run(1)
            found.append(server.model)
    moved = max(float(np.abs(found[0][name] - start[name]).max()) for name in start)
    apart = max(float(np.abs(found[0][name] - found[1][name]).max()) for name in start)
    assert apart < 1e-5 * moved if shared else apart > 0.1 * moved


def test_uploads_beside_each_other(mezo: Path, mebp: Path, tmp_path: Path) -> None:
    """Scalars, and what they replace; the figures of the same model."""
    uploads = {}
    for algorithm, bundle in (
        ("replay", mezo),
        ("decomfl", mezo),
        ("fedzo", mezo),
        ("fedavg", mebp),
    ):
        terms = terms_of(bundle, algorithm, steps=10)
        network = Network(clients_of(bundle, tmp_path / algorithm, 1))
        with federation(tmp_path / algorithm, bundle, terms, network, sample=1) as server:
            (uploads[algorithm],) = server.run_round(0)["uploads"]
            values = sum(one.size for one in server.model.values())
        if algorithm in ("replay", "decomfl"):
            assert uploads[algorithm] <= 8 * terms.steps * terms.scalars + 1000
        else:
            assert uploads[algorithm] > 4 * values
    assert uploads["fedavg"] > uploads["fedzo"] > 2 * uploads["replay"]


class Counting(LocalTransport):
    """As many registered clients as wanted; those that are asked come into being then."""

    def __init__(self, bundle: Path, folder: Path, registered: int) -> None:
        super().__init__({})
        self.bundle, self.folder, self.registered = bundle, folder, registered
        self.made: list[int] = []
        self.sent = 0

    def clients(self) -> list[int]:
        return list(range(self.registered))

    def exchange(self, requests: Mapping[int, bytes], timeout: float) -> Any:
        self.sent += len(requests)
        for client, request in requests.items():
            self.made.append(client)
            yield (
                client,
                Client(Bundle.open(self.bundle), examples, self.folder / str(client)).handle(
                    request
                ),
            )


def test_a_round_costs_what_it_asks_and_not_what_is_registered(
    mezo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = {}
    opened = 0
    original = Session.open.__func__  # type: ignore[attr-defined]

    def counting_open(cls: type[Session], *arguments: Any, **options: Any) -> Session:
        nonlocal opened
        opened += 1
        return original(cls, *arguments, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(Session, "open", classmethod(counting_open))
    terms = terms_of(mezo, steps=1)
    for registered, sample in ((20, 10), (100, 10), (500, 10), (500, 5)):
        folder = tmp_path / f"{registered}-{sample}"
        network = Counting(mezo, folder / "clients", registered)
        with federation(folder, mezo, terms, network, sample=sample) as server:
            server.run_round(0)
            opened, network.sent, network.made = 0, 0, []
            found = server.run_round(1)
            files = len(list((folder / "server" / "rounds" / "000001").iterdir()))
        counted[registered, sample] = (network.sent, found["bytes_up"], files, opened)
    for (registered, sample), (sent, up, files, sessions) in counted.items():
        assert sent == 2 * sample and files == sample + 3, registered
        # Each client opens one session to train and few to replay; nothing else opens any.
        assert up <= sample * 1200 and sessions <= sample * (3 * sample + 6), registered
    assert counted[500, 5][3] < counted[500, 10][3] / 2
    # Newcomers replay the first round too; beside that 500 registered cost what 20 do.
    assert counted[500, 10][0] == counted[20, 10][0]


def test_settings_become_terms(mezo: Path, mebp: Path, compiler: Compiler) -> None:
    bundle, exact = Bundle.open(mezo), Bundle.open(mebp)
    terms = checked_terms(bundle, "fedzo", 4, {"learning_rate": "0.25", "seed": "9"})
    assert (terms.learning_rate, terms.seed, terms.difference, terms.scalars) == (
        0.25,
        9,
        "forward",
        2,
    )
    central = checked_terms(bundle, "decomfl", 4, {"difference": "central"})
    assert central.difference == "central"
    assert checked_terms(bundle, None, 4, {}).difference == "central"
    assert checked_terms(exact, None, 4, {}).algorithm == "fedavg"
    with pytest.raises(ConfigError, match="constant: a round's steps have one rate"):
        checked_terms(bundle, None, 4, {"lr_scheduler_type": "linear"})
    with pytest.raises(ConfigError, match="one rate"):
        checked_terms(bundle, None, 4, {"warmup_steps": "3"})
    settings_packed = {**bundle.settings, "pack": True}
    packs = dataclasses.replace(bundle, manifest={**bundle.manifest, "settings": settings_packed})
    for given, settings in ((bundle, {"pack": True}), (packs, {})):
        with pytest.raises(ConfigError, match="setting 'pack': found true; expected false"):
            checked_terms(given, None, 4, settings)
    assert checked_terms(packs, None, 4, {"pack": False}).loss == "full"
    for key in ("choices", "dpo.beta", "orpo.beta"):
        with pytest.raises(ConfigError, match="the bundle's own, which every client has"):
            checked_terms(bundle, None, 4, {key: "mean" if key == "choices" else "0.5"})
    prge = Bundle.open(compiler.bundle("llama", "prge", num_queries=2))
    with pytest.raises(ConfigError, match="no forward differences"):
        checked_terms(prge, "decomfl", 4, {})
    with pytest.raises(ConfigError, match="a bundle of a first-order method"):
        checked_terms(exact, "replay", 4, {})


@pytest.mark.parametrize(
    ("tampering", "reason"),
    [
        ({"bundle": "f" * 64}, "bundle ffff"),
        ({"round": 9}, "stale"),
        ({"digest": "0" * 64}, "its replay is another state"),
        ({"body": b""}, "count"),
    ],
)
def test_a_bad_reply_is_logged_and_does_not_enter(
    mezo: Path, tmp_path: Path, tampering: dict[str, Any], reason: str
) -> None:
    def tamper(client: int, content: bytes) -> list[tuple[int, bytes | str]]:
        reply = Reply.unpack(content)
        if client == 1 and reply.body:
            content = dataclasses.replace(reply, **tampering).pack()
        return [(client, content)]

    folder = tmp_path / "bad"
    network = Network(clients_of(mezo, folder, 3), tamper=tamper)
    with federation(folder, mezo, terms_of(mezo), network, sample=3) as server:
        found = server.run_round(0)
        digest = models.digest(server.model)
    assert found["clients"] == [0, 2]
    assert [entry["client"] for entry in found["refused"]] == [1]
    assert reason in found["refused"][0]["reason"]
    # The model is that of the two honest clients alone.
    honest = {
        client: one for client, one in clients_of(mezo, tmp_path / "good", 3).items() if client != 1
    }
    with federation(tmp_path / "good", mezo, terms_of(mezo), Network(honest), sample=2) as server:
        server.run(1)
        assert models.digest(server.model) == digest


@pytest.mark.parametrize(
    "tampering",
    [b"losses", b"gradients"],
    ids=["losses that diverge", "scalars that its state does not follow from"],
)
def test_forged_scalars_of_a_shared_seed_do_not_end_the_server(
    mezo: Path, tmp_path: Path, tampering: bytes
) -> None:
    """Averaged with the others' they would make a trajectory that no server can replay, in every later run too."""
    terms = terms_of(mezo, "decomfl", steps=8)

    def tamper(client: int, content: bytes) -> list[tuple[int, bytes | str]]:
        reply = Reply.unpack(content)
        if client == 1 and reply.body:
            forged = Trajectory.unpack(reply.body, terms.steps, terms.scalars)
            if tampering == b"losses":
                forged.losses[2:] = 1e30
            else:
                forged.gradients[:] *= 1.5
            content = dataclasses.replace(reply, body=forged.pack()).pack()
        return [(client, content)]

    network = Network(clients_of(mezo, tmp_path, 3), tamper=tamper)
    with federation(tmp_path, mezo, terms, network, sample=3) as server:
        found = server.run_round(0)
    assert found["clients"] == [0, 2]
    assert [entry["client"] for entry in found["refused"]] == [1]


def test_too_few_replies_after_replays_change_nothing(mezo: Path, tmp_path: Path) -> None:
    """The share of replies that a round needs is of those that count in the end; asking again would not help."""

    def tamper(client: int, content: bytes) -> list[tuple[int, bytes | str]]:
        reply = Reply.unpack(content)
        if client > 0 and reply.body:
            content = dataclasses.replace(reply, digest="0" * 64).pack()
        return [(client, content)]

    network = Network(clients_of(mezo, tmp_path, 3), tamper=tamper)
    with federation(tmp_path, mezo, terms_of(mezo), network, sample=3) as server:
        before = models.digest(server.model)
        found = server.run_round(0)
        assert found["clients"] == [] and found["void"]
        assert found["digest"] == before == models.digest(server.model)
        assert [entry["client"] for entry in found["refused"]] == [1, 2]


def test_the_server_is_told_no_paths(mezo: Path, tmp_path: Path) -> None:
    """Why a client refuses stays with it, but for the kind of error."""
    said: list[str] = []

    def unreadable(client: int, loss: str) -> Dataset:
        dataset = Dataset()
        dataset.load(tmp_path / "private" / "examples.jsonl")
        return dataset

    clients = {
        0: Client(Bundle.open(mezo), unreadable, tmp_path / "client-0", report=said.append),
        1: Client(Bundle.open(mezo), examples, tmp_path / "client-1"),
    }
    contents: list[bytes] = []

    def seen(client: int, content: bytes) -> list[tuple[int, bytes | str]]:
        contents.append(content)
        return [(client, content)]

    network = Network(clients, tamper=seen)
    with federation(tmp_path, mezo, terms_of(mezo), network, sample=2) as server:
        found = server.run_round(0)
    assert found["clients"] == [1] and "the client refused" in found["refused"][0]["reason"]
    assert not any(str(tmp_path).encode() in content for content in contents)
    assert len(said) == 1 and str(tmp_path / "private") in said[0]


def test_what_flower_sends_of_an_exception_is_its_kind(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: Any) -> bytes:
        raise FileNotFoundError(str(tmp_path))

    with pytest.raises(RuntimeError) as caught:
        flower.without_words(failing, b"", None)
    error: BaseException | None = caught.value
    assert str(error) == "FileNotFoundError" and error is not None
    assert error.__cause__ is None and error.__context__ is None
    assert str(tmp_path) in capfd.readouterr().err


def test_second_replies_strangers_and_silence(mezo: Path, tmp_path: Path) -> None:
    silent = True

    def tamper(client: int, content: bytes) -> list[tuple[int, bytes | str]]:
        if client == 0:
            return [(0, content), (0, content), (77, content)]
        if client == 2 and silent:
            return [(2, "Flower: the node went away")]
        return [(client, content)]

    network = Network(clients_of(mezo, tmp_path, 3), tamper=tamper)
    patience = Patience(seconds=1, attempts=2, least=0.5)
    with federation(tmp_path, mezo, terms_of(mezo), network, sample=3, patience=patience) as server:
        found = server.run_round(0)
    assert found["clients"] == [0, 1]
    reasons = [(entry["client"], entry["reason"]) for entry in found["refused"]]
    assert (0, "a second reply") in reasons and (77, "not asked") in reasons
    assert network.asked[:2] == [[0, 1, 2], [2]], "only who is missing is asked again"
    strict = Patience(seconds=1, attempts=1, least=1.0)
    with (
        federation(tmp_path, mezo, terms_of(mezo), network, sample=3, patience=strict) as server,
        pytest.raises(StateError, match="found 2 replies that count, of 3 clients asked"),
    ):
        server.run(2)
    # Nothing of the two is lost: where the third answers, only it is asked.
    silent = False
    network.asked.clear()
    with federation(tmp_path, mezo, terms_of(mezo), network, sample=3, patience=strict) as server:
        assert server.run_round(1)["clients"] == [0, 1, 2]
    assert network.asked[0] == [2]


def test_importing_zoexport_does_not_load_flower() -> None:
    import subprocess
    import sys

    code = "import sys, zoexport, zoexport.cli.main, zoexport.federated.coordinator; print('flwr' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
