"""A client: what it does with a request, whichever transport brought it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.core.errors import DivergedError, StateError
from zoexport.core.files import atomic_file, private_folder, write_json
from zoexport.federated import models
from zoexport.federated.aggregate import Replayer
from zoexport.federated.models import Model
from zoexport.federated.privacy import Ledger, Privacy
from zoexport.federated.protocol import (
    BEHIND,
    DONE,
    REFUSED,
    SYNC,
    Reply,
    Request,
    Trajectory,
)
from zoexport.federated.terms import SCALARS, Terms
from zoexport.session import Bundle, Dataset

_VERSION = "version.json"


class Client:
    """One participant: a bundle, examples and a folder.

    Args:
        bundle: bundle to train.
        examples: returns the examples for a client number and a loss; called on first use.
        folder: folder for the model and the current round; created if missing.
        privacy: differential privacy of uploads; None: uploads are not changed.
        report: called with the reason of a refusal, which is not sent to the server.
    """

    def __init__(
        self,
        bundle: Bundle,
        examples: Callable[[int, str], Dataset],
        folder: Path,
        *,
        privacy: Privacy | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bundle = bundle
        self._examples = examples
        self._folder = folder
        self._privacy = privacy
        self._report = report
        self._initial: Model | None = None
        self._replays: Replayer | None = None

    def handle(self, content: bytes) -> bytes:
        """Answer a request. Errors are answers, too: no client ends the server's round.

        Raises:
            DataError: these bytes are no request.
        """
        request = Request.unpack(content)
        try:
            reply = self._answer(request)
        except Exception as error:
            # Messages name folders and files of this machine: the server gets the kind of error alone.
            self._report(str(error))
            reply = self._reply(request, REFUSED, 0, reason=type(error).__name__)
        return reply.pack()

    def _answer(self, request: Request) -> Reply:
        try:
            terms = Terms.of(request.terms)
        except (KeyError, TypeError) as error:
            raise StateError(
                "the server's terms",
                found=str(error),
                expected="the terms of this release",
                fix="Use the same zoexport on all sides.",
            ) from error
        if terms.bundle != self._bundle.id:
            raise StateError(
                f"bundle {self._bundle.path}",
                found=f"bundle {self._bundle.id}",
                expected=f"bundle {terms.bundle}, which the server has",
                fix="Copy the server's bundle.",
            )
        private_folder(self._folder)
        has = self._version(request.federation)
        target = request.version + 1 if request.kind == SYNC else request.version
        if request.state is None and not request.since <= has <= target:
            return self._reply(request, BEHIND, has)
        model = self._caught_up(request, terms, has, target)
        if request.kind == SYNC:
            return self._reply(request, DONE, request.version + 1, digest=models.digest(model))
        return self._trained(request, terms, model)

    def _caught_up(self, request: Request, terms: Terms, has: int, target: int) -> Model:
        """The model that the request asks for, kept: ``version``, or the one after it for a synchronization."""
        if has == target:
            return self._model(has)
        if request.state is not None:
            sizes = models.sizes_of(self._first())
            model = models.unpack(request.state, sizes, "the server's model")
        else:
            model = self._model(has)
        for found in request.rounds:
            # The kept model already contains the rounds before its version.
            if found.round >= has:
                model = self._replayer().next_model(model, found, terms)
        self._keep(request.federation, target, model)
        return model

    def _trained(self, request: Request, terms: Terms, model: Model) -> Reply:
        """The steps of the round. Killed and asked again, it goes on from its log and answers the same."""
        seed = terms.client_seed(request.round, request.client)
        # Rounds begun under other terms or another version are not resumed.
        under = [request.federation, request.version, seed, request.terms]
        key = json.dumps(under, sort_keys=True).encode()
        state = self._folder / f"round-{hashlib.sha256(key).hexdigest()[:16]}"
        for other in self._folder.glob("round-*"):
            if other != state and other.is_dir():
                shutil.rmtree(other, ignore_errors=True)
        if self._privacy is not None:
            return self._private(request, terms, model, seed, state, self._privacy)
        trajectory, after = self._stepped(request, terms, model, seed, state)
        return self._uploaded(request, terms, trajectory, after)

    def _private(
        self,
        request: Request,
        terms: Terms,
        model: Model,
        seed: int,
        state: Path,
        privacy: Privacy,
    ) -> Reply:
        """The same with noise, drawn once: a second draw over the same steps would be a second upload."""
        kept = state.with_suffix(".reply")
        for other in self._folder.glob("round-*.reply"):
            if other != kept:
                other.unlink()
        if kept.exists():
            return Reply.unpack(kept.read_bytes())
        names, scalars = sorted(model), terms.how.upload == SCALARS
        shape = (terms.steps, terms.scalars)
        try:
            trajectory, after = self._stepped(request, terms, model, seed, state)
            change = (
                trajectory.gradients
                if scalars
                else np.concatenate([after[name] - model[name] for name in names])
            )
        except DivergedError:
            change = np.zeros(shape if scalars else sum(models.sizes_of(model).values()))
        Ledger(self._folder, privacy).take()
        noised = privacy.noised(change.astype(np.float64).ravel())
        nothing = np.zeros(terms.steps, np.float32)
        if scalars:
            trajectory = Trajectory(nothing, noised.astype(np.float32).reshape(shape))
            after = self._replayer().model(model, seed, trajectory, terms)
        else:
            ends = np.cumsum([model[name].size for name in names])[:-1]
            trajectory = Trajectory(nothing, np.zeros(shape, np.float32))
            after = {
                name: (model[name] + part).astype(np.float32)
                for name, part in zip(names, np.split(noised, ends), strict=True)
            }
        reply = self._uploaded(request, terms, trajectory, after, private=True)
        with atomic_file(kept) as temporary:
            temporary.write_bytes(reply.pack())
        return reply

    def _stepped(
        self, request: Request, terms: Terms, model: Model, seed: int, state: Path
    ) -> tuple[Trajectory, Model]:
        """Return the scalars of a session's steps, and the model after them."""
        with self._bundle.session() as session:
            slots = models.trained_slots(session)
            session.attach(state, seed=seed)
            if session.info.steps == 0:
                models.write(session, model)
            changes: dict[str, Any] = {}
            if not terms.how.first_order:
                changes = {"difference": terms.difference, "eps": terms.eps}
            session.configure(
                learning_rate=terms.learning_rate,
                lr_scheduler_type="constant",
                warmup_steps=0,
                loss=terms.loss,
                batch_size=terms.batch_size,
                gradient_accumulation_steps=terms.gradient_accumulation_steps,
                **changes,
            )
            session.train(self._examples(request.client, terms.loss), terms.steps)
            records = [session.record(step) for step in range(terms.steps)]
            return Trajectory.of(records), models.read(session, slots)

    def _uploaded(
        self,
        request: Request,
        terms: Terms,
        trajectory: Trajectory,
        after: Model,
        *,
        private: bool = False,
    ) -> Reply:
        # Values do not contain the losses of the steps.
        body = (
            trajectory.pack()
            if terms.how.upload == SCALARS
            else models.pack_values(trajectory.losses, after)
        )
        digest = models.digest(after)
        return self._reply(
            request, DONE, request.version, digest=digest, body=body, private=private
        )

    def _reply(self, request: Request, status: str, has: int, **others: Any) -> Reply:
        return Reply(
            status=status,
            round=request.round,
            version=request.version,
            client=request.client,
            bundle=self._bundle.id,
            has=has,
            **others,
        )

    def _version(self, federation: str) -> int:
        """Return the version of the kept model; 0 (the bundle's) if none can be read."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads((self._folder / _VERSION).read_text("utf-8"))
            content = self._path(int(known["version"])).read_bytes()
            same = (known["bundle"], known["federation"]) == (self._bundle.id, federation)
            if same and known["sha256"] == hashlib.sha256(content).hexdigest():
                return int(known["version"])
        return 0

    def _model(self, version: int) -> Model:
        """Return a version that :meth:`_version` has just found."""
        if version == 0:
            return self._first()
        path = self._path(version)
        return models.unpack(path.read_bytes(), models.sizes_of(self._first()), str(path))

    def _path(self, version: int) -> Path:
        return self._folder / f"model-{version}.safetensors"

    def _keep(self, federation: str, version: int, model: Model) -> None:
        """Keep a version in place of the one before it; what says so is written last."""
        path = self._path(version)
        content = models.pack(model)
        with atomic_file(path) as temporary:
            temporary.write_bytes(content)
        known = {
            "bundle": self._bundle.id,
            "federation": federation,
            "version": version,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        write_json(self._folder / _VERSION, known)
        for other in self._folder.glob("model-*.safetensors"):
            if other != path:
                other.unlink(missing_ok=True)

    def _first(self) -> Model:
        if self._initial is None:
            self._initial = models.initial(self._bundle)
        return self._initial

    def _replayer(self) -> Replayer:
        if self._replays is None:
            self._replays = Replayer(self._bundle)
        return self._replays
