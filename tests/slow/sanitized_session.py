"""Drive the session over bundles that ExecuTorch runs, in a process that a sanitizer watches.

``python -m tests.slow.sanitized_session BUNDLE EXAMPLES FOLDER``; imports neither torch nor numpy, which no sanitizer
sees into. Its parent is ``test_sanitized_session.py``.
"""

from __future__ import annotations

import array
import sys
import threading
from pathlib import Path

from zoexport.core.errors import Cancelled, ZoExportError
from zoexport.session import Dataset, Session, StepProgress

STEPS = 6
#: More than a run can take until it is stopped.
MANY = 10**6


def opened(bundle: Path, state: Path | None) -> Session:
    """A session on one thread, with packed weights nowhere."""
    session = Session.open(bundle, threads=1, cache="")
    if state is not None:
        session.attach(state)
        session.configure(lr_scheduler_type="constant")
    return session


def slots_of(session: Session) -> list[array.array[float]]:
    """The values of all slots, both kinds of a trained one."""
    return [
        session.read_slot(slot.name, finished=finished)
        for slot in session.slots()
        for finished in (True, False)
    ]


def undisturbed(bundle: Path, dataset: Dataset, state: Path) -> None:
    """Train, save, and look at everything that can be read."""
    with opened(bundle, state) as session:
        session.evaluate(dataset)
        session.train(dataset, STEPS)
        session.save()
        slots_of(session)
        for index in range(STEPS):
            session.record(index)
        loss = session.evaluate(dataset).loss
    with Session.open(bundle, threads=1, cache="") as session:
        session.attach(state, read_only=True)
        assert session.info.steps == STEPS
        assert session.evaluate(dataset).loss == loss


def resumed(bundle: Path, dataset: Dataset, state: Path) -> None:
    """The same run by four sessions, the second of which a callback's error ends."""

    def stop(progress: StepProgress) -> bool:
        if progress.step == 3:
            raise KeyError
        return False

    for steps in (2, STEPS, STEPS - 1, STEPS):
        with opened(bundle, state) as session:
            try:
                session.train(dataset, steps, stop)
            except KeyError:
                assert session.info.steps == 3


def side_by_side(bundle: Path, examples: Path, states: list[Path]) -> None:
    """The same run in as many threads at once, each with a data set of its own."""

    def run(state: Path) -> None:
        with Dataset() as dataset, opened(bundle, state) as session:
            dataset.load(examples)
            session.train(dataset, STEPS)

    threads = [threading.Thread(target=run, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cancelled(bundle: Path, dataset: Dataset, state: Path) -> None:
    """Runs that another thread ends, and sessions that are closed while that asks for more."""
    for delay in (0.0, 0.003, 0.02, 0.1):
        session, done = opened(bundle, state), threading.Event()
        before = session.info.steps

        def cancel(
            session: Session = session, done: threading.Event = done, delay: float = delay
        ) -> None:
            while not done.wait(delay):
                session.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        try:
            session.train(dataset, MANY)
        except Cancelled:
            assert session.info.steps > before
        else:
            raise AssertionError("it was not cancelled")
        finally:
            session.close()
            done.set()
            thread.join()


def refused(bundle: Path, dataset: Dataset, folder: Path) -> None:
    """What ends in an error: everything that was taken until then is given back."""
    attempts = (
        lambda: Session.open(folder, cache=""),
        lambda: opened(bundle, bundle / "manifest.json"),
        lambda: opened(bundle, None).read_slot("no such slot"),
        lambda: opened(bundle, None).train(Dataset(), 1),
        lambda: opened(bundle, None).step(dataset, [len(dataset)]),
        lambda: opened(bundle, None).configure(learning_rate=-1.0),
        lambda: dataset.add([([2**40], [1])]),
    )
    for number, attempt in enumerate(attempts):
        try:
            attempt()
        except ZoExportError:
            continue
        raise AssertionError(f"attempt {number} was not refused")


def main() -> None:
    bundle, examples, folder = map(Path, sys.argv[1:])
    with Dataset() as dataset:
        dataset.load(examples)
        undisturbed(bundle, dataset, folder / "whole")
        resumed(bundle, dataset, folder / "resumed")
        side_by_side(bundle, examples, [folder / "left", folder / "right"])
        cancelled(bundle, dataset, folder / "cancelled")
        refused(bundle, dataset, folder)


if __name__ == "__main__":
    main()
