"""Rounds of a federation: clients are replayed bit for bit, whatever happens on the way."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.compiled import Compiler
from tests.support.federations import (
    Network,
    clients_of,
    examples,
    federation,
    terms_of,
)
from zoexport.api import Bundle
from zoexport.cli.main import run
from zoexport.core import minisign
from zoexport.core.errors import ConfigError, StateError
from zoexport.federated import models
from zoexport.federated.aggregate import Replayer
from zoexport.federated.protocol import Reply, Request, Trajectory
from zoexport.federated.store import Store, read_federation
from zoexport.run.states import attach
from zoexport.session import Session, no_programs


@pytest.fixture(scope="module")
def bundle(compiler: Compiler) -> Path:
    return compiler.bundle("llama", "prge", num_queries=2)


@pytest.fixture(scope="module")
def undisturbed(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Three rounds of three clients: what every disturbed run must end with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    network = Network(clients_of(bundle, folder, 3))
    with federation(folder, bundle, terms_of(bundle), network, sample=3) as server:
        server.run(3)
        return {"digest": models.digest(server.model), "folder": folder}


def rounds_of(folder: Path) -> list[dict[str, object]]:
    return [
        json.loads(path.read_text())
        for path in sorted((folder / "server" / "rounds").glob("*/round.json"))
    ]


@pytest.mark.parametrize(
    ("method", "settings", "count", "rounds"),
    [
        pytest.param("prge", {"num_queries": 2}, 20, 10, marks=pytest.mark.slow),
        pytest.param(
            "spzo",
            {"split": "layer:1", "perturbations": "2,2"},
            20,
            10,
            marks=pytest.mark.slow,
        ),
        ("prge", {"num_queries": 2}, 4, 3),
        ("spzo", {"split": "layer:1", "perturbations": "2,2"}, 4, 3),
        ("spzo", {"split": "head", "perturbations": "1,4", "train": "full"}, 4, 3),
        ("senszoq", {}, 4, 3),
    ],
)
def test_clients_are_replayed_bit_for_bit(
    compiler: Compiler,
    tmp_path: Path,
    method: str,
    settings: dict[str, object],
    count: int,
    rounds: int,
) -> None:
    """Every client's own state folder, after its round, against the server's replay of its scalars."""
    bundle = compiler.bundle("llama", method, **settings)
    terms = terms_of(bundle)
    clients = clients_of(bundle, tmp_path, count)
    network = Network(clients)
    replayer = Replayer(Bundle.open(bundle))
    compared = 0
    with federation(tmp_path, bundle, terms, network, sample=count) as server:
        for number in range(rounds):
            before = dict(server.model)
            server.run_round(number)
            for client in clients:
                (state,) = (tmp_path / f"client-{client}").glob("round-*")
                seed = terms.client_seed(number, client)
                reply = Reply.unpack(
                    (
                        tmp_path / "server" / "rounds" / f"{number:06d}" / f"reply-{client}.bin"
                    ).read_bytes()
                )
                trajectory = Trajectory.unpack(reply.body, terms.steps, terms.scalars)
                replayed = replayer.model(before, seed, trajectory, terms)
                with Session.open(bundle, engine=no_programs, verify=False) as session:
                    session.attach(state, read_only=True)
                    assert session.info.seed == seed and session.info.steps == terms.steps
                    for name, values in replayed.items():
                        assert session.read_slot(name).tobytes() == values.tobytes()
                        assert values.tobytes() != before[name].tobytes()
                        compared += 1
            # Every participant has the next version too, without a weight having been sent.
            notes = json.loads(
                (tmp_path / "server" / "rounds" / f"{number:06d}" / "synchronized.json").read_text()
            )
            assert notes["synchronized"] == list(range(count))
        final = models.digest(server.model)
    assert compared == rounds * count * len(before)
    for client in clients:
        kept = (tmp_path / f"client-{client}" / f"model-{rounds}.safetensors").read_bytes()
        assert models.digest(models.unpack(kept, models.sizes_of(before), "")) == final
    for _, content in network.requests:
        assert Request.unpack(content).state is None


def test_the_average_is_the_mean_of_models(bundle: Path, tmp_path: Path) -> None:
    terms = terms_of(bundle)
    network = Network(clients_of(bundle, tmp_path, 3))
    with federation(tmp_path, bundle, terms, network, sample=3) as server:
        start = dict(server.model)
        server.run(1)
        found = server.model
    trained = []
    for client in range(3):
        with Session.open(bundle) as session:
            session.configure(seed=terms.client_seed(0, client), batch_size=2)
            session.train(examples(client), 3)
            trained.append(
                {name: np.frombuffer(session.read_slot(name), np.float32) for name in start}
            )
    for name in start:
        exact = np.mean([one[name].astype(np.float64) for one in trained], axis=0)
        np.testing.assert_array_equal(found[name], exact.astype(np.float32))


@pytest.mark.parametrize("seed", [1, 2])
def test_no_order_of_replies_changes_a_bit(
    bundle: Path, tmp_path: Path, undisturbed: dict[str, object], seed: int
) -> None:
    network = Network(clients_of(bundle, tmp_path, 3), shuffle=seed)
    with federation(tmp_path, bundle, terms_of(bundle), network, sample=3) as server:
        server.run(3)
        assert models.digest(server.model) == undisturbed["digest"]


class Killed(BaseException):
    """Ends a server where a signal would."""


@pytest.mark.parametrize("damaged", [False, True])
def test_a_server_killed_between_replies_goes_on(
    bundle: Path, tmp_path: Path, undisturbed: dict[str, object], damaged: bool
) -> None:
    clients = clients_of(bundle, tmp_path, 3)
    seen = 0

    def die(client: int, reply: bytes) -> list[tuple[int, bytes | str]]:
        nonlocal seen
        seen += 1
        if seen == 9:  # three trained and three synchronized, then two trained
            raise Killed
        return [(client, reply)]

    with (
        federation(
            tmp_path, bundle, terms_of(bundle), Network(clients, tamper=die), sample=3
        ) as server,
        pytest.raises(Killed),
    ):
        server.run(3)
    if damaged:
        kept = min((tmp_path / "server" / "rounds" / "000001").glob("reply-*.bin"))
        kept.write_bytes(kept.read_bytes()[:-1])
    network = Network(clients)
    with federation(tmp_path, bundle, terms_of(bundle), network, sample=3) as server:
        server.run(3)
        assert models.digest(server.model) == undisturbed["digest"]
    assert len(network.asked[0]) == 1 + damaged, "only clients whose replies were lost"


def test_a_server_killed_after_aggregation_goes_on(
    bundle: Path, tmp_path: Path, undisturbed: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = clients_of(bundle, tmp_path, 3)
    keep = models.keep

    def keep_and_die(path: Path, model: models.Model) -> None:
        keep(path, model)
        raise Killed

    with federation(tmp_path, bundle, terms_of(bundle), Network(clients), sample=3) as server:
        server.run(1)
        monkeypatch.setattr(models, "keep", keep_and_die)
        with pytest.raises(Killed):
            server.run(2)
        monkeypatch.undo()
    network = Network(clients)
    with federation(tmp_path, bundle, terms_of(bundle), network, sample=3) as server:
        server.run_round(1)
        assert len(network.asked) == 1, "no client trains again: the round is only synchronized"
        server.run(3)
        assert models.digest(server.model) == undisturbed["digest"]


def test_a_damaged_model_is_made_again_from_the_rounds(
    bundle: Path, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    clients = clients_of(bundle, tmp_path, 3)
    with federation(tmp_path, bundle, terms_of(bundle), Network(clients), sample=3) as server:
        server.run(2)
    for path in (tmp_path / "server" / "models").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with federation(tmp_path, bundle, terms_of(bundle), Network(clients), sample=3) as server:
        server.run(3)
        assert models.digest(server.model) == undisturbed["digest"]


def test_a_newcomer_gets_what_is_less(bundle: Path, tmp_path: Path) -> None:
    """Scalars of a few rounds, or the whole model; never more than that."""
    terms = terms_of(bundle, steps=12)
    size = len(models.pack(models.initial(Bundle.open(bundle))))
    clients = clients_of(bundle, tmp_path, 3)
    with federation(
        tmp_path, bundle, terms, Network(dict(list(clients.items())[:2])), sample=2
    ) as server:
        server.run(2)
    network = Network({2: clients[2], 1: clients[1]})
    with federation(tmp_path, bundle, terms, network, sample=2) as server:
        server.run(3)
    few = Request.unpack(dict(network.requests[:2])[2])
    assert few.state is None and [one.round for one in few.rounds] == [0, 1]
    rounds_cost = 2 * 2 * terms.steps * (1 + terms.scalars) * 4
    assert rounds_cost < size
    # A folder that is lost is noticed by the client, and made up for within the round.
    enough = size // (rounds_cost // 2) + 2
    with federation(tmp_path, bundle, terms, network, sample=2) as server:
        server.run(enough)
        for path in (tmp_path / "client-1").iterdir():
            if path.is_file():
                path.unlink()
        network.requests.clear()
        server.run(enough + 1)
        digest = models.digest(server.model)
    states = [Request.unpack(content).state for client, content in network.requests if client == 1]
    assert [state is not None for state in states] == [False, True, False]
    kept = (tmp_path / "client-1" / f"model-{enough + 1}.safetensors").read_bytes()
    assert (
        models.digest(models.unpack(kept, models.sizes_of(models.initial(Bundle.open(bundle))), ""))
        == digest
    )


def test_uploads_are_eight_bytes_a_scalar_and_a_kilobyte(bundle: Path, tmp_path: Path) -> None:
    for steps in (1, 50):
        terms = terms_of(bundle, steps=steps)
        network = Network(clients_of(bundle, tmp_path / str(steps), 1))
        with federation(tmp_path / str(steps), bundle, terms, network, sample=1) as server:
            (upload,) = server.run_round(0)["uploads"]
            assert upload <= 8 * steps * terms.scalars + 1000


def test_other_settings_are_another_federation(bundle: Path, tmp_path: Path) -> None:
    network = Network(clients_of(bundle, tmp_path, 1))
    with federation(tmp_path, bundle, terms_of(bundle), network, sample=1) as server:
        server.run(1)
    other = terms_of(bundle, learning_rate=0.25, steps=9)
    with (
        pytest.raises(StateError, match=r"learning_rate=.*steps|steps=.*learning_rate"),
        federation(tmp_path, bundle, other, network, sample=1),
    ):
        pass
    # One of the same terms in another folder is another one too: clients begin at version 0.
    with federation(tmp_path / "second", bundle, terms_of(bundle), network, sample=1) as server:
        server.run(1)
        ids = [
            read_federation(path / "server")["federation"]
            for path in (tmp_path, tmp_path / "second")
        ]
        assert ids[0] != ids[1]


def test_one_process_runs_a_federation(bundle: Path, tmp_path: Path) -> None:
    terms = terms_of(bundle)
    with (
        Store.opened(tmp_path, terms, 1, tmp_path),
        pytest.raises(StateError, match="another process"),
        Store.opened(tmp_path, terms, 1, tmp_path),
    ):
        pass


def test_folders_are_their_users_alone(bundle: Path, tmp_path: Path) -> None:
    """Scalars, tokens and models of server and clients; a folder that was open to others is closed."""
    (tmp_path / "server").mkdir(mode=0o755)
    network = Network(clients_of(bundle, tmp_path, 1))
    with federation(tmp_path, bundle, terms_of(bundle), network, sample=1) as server:
        server.run(1)
    for name in ("server", "client-0"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700, name


def test_integers_have_no_average(tmp_path: Path) -> None:
    from tests.support import grid_bundles

    bundle = grid_bundles.write_bundle(tmp_path / "bundle")
    with pytest.raises(ConfigError, match="the mean of clients' integers lies between integers"):
        models.initial(Bundle.open(bundle))


def test_too_few_clients(bundle: Path, tmp_path: Path) -> None:
    network = Network(clients_of(bundle, tmp_path, 2))
    with (
        federation(tmp_path, bundle, terms_of(bundle), network, sample=3) as server,
        pytest.raises(StateError, match="found 2 clients; expected at least 3"),
    ):
        server.run(1)


def test_a_folder_is_for_one_server_at_a_time(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was killed may keep the lock for a moment; one that goes on keeps the other out."""
    terms = terms_of(bundle)
    with Store.opened(tmp_path, terms, 1, tmp_path):
        monkeypatch.setattr("zoexport.federated.store._LOCK_SECONDS", 0.3)
        with (
            pytest.raises(StateError, match="another process that runs"),
            Store.opened(tmp_path, terms, 1, tmp_path),
        ):
            pass
    monkeypatch.setattr("zoexport.federated.store._LOCK_SECONDS", 60.0)
    first = Store.opened(tmp_path, terms, 1, tmp_path)
    first.__enter__()
    threading.Timer(0.3, first.__exit__, (None, None, None)).start()
    with Store.opened(tmp_path, terms, 1, tmp_path) as second:
        assert second.version() == 0


def test_the_newest_model_is_read_as_a_run_is(
    bundle: Path, undisturbed: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fed = Path(str(undisturbed["folder"])) / "server"
    with Session.open(bundle, engine=no_programs) as session:
        assert attach(session, fed, last=False) == 3 * terms_of(bundle).steps
        model = models.read(session, models.trained_slots(session))
    assert models.digest(model) == undisturbed["digest"]
    opened = Bundle.open(bundle)
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "It was great."}\n')
    assert opened.evaluate(data, state=fed).loss != opened.evaluate(data).loss
    assert run(["federate", "export", str(fed), "-o", str(tmp_path / "adapter")]) == 0
    opened.import_adapter(tmp_path / "adapter", state=tmp_path / "state")
    assert opened.evaluate(data, state=tmp_path / "state") == opened.evaluate(data, state=fed)
    capsys.readouterr()
    key = minisign.generate().public.line
    line = ["federate", "export", str(fed), "-o", str(tmp_path / "b"), "--trust", key, "--json"]
    assert run(line) == 1 and "no signature" in capsys.readouterr().out
    assert run(["inspect", str(fed), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rounds"], found["bundle_id"]) == (3, opened.id)


def test_a_folder_that_is_not_this_bundle_s_federation(
    bundle: Path, undisturbed: dict[str, object], tmp_path: Path, compiler: Compiler
) -> None:
    fed = tmp_path / "fed"
    shutil.copytree(Path(str(undisturbed["folder"])) / "server", fed)
    other = Bundle.open(compiler.bundle("llama", "mebp"))
    with pytest.raises(StateError, match="a federation of bundle"):
        other.export_adapter(tmp_path / "adapter", state=fed)
    (newest,) = fed.glob("models/model-3.*")
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(StateError, match="no whole model of version 3"):
        Bundle.open(bundle).export_adapter(tmp_path / "adapter", state=fed)
    assert not (tmp_path / "adapter").exists()
