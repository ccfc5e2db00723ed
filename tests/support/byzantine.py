"""Table of docs/results/trust.md: effect of hostile clients on the loss, by their share and the aggregation.

``python -m tests.support.byzantine docs/results/trust.md`` renews it (minutes). The federation is that of
``fake_federations``: a quadratic loss, the real server. A cell is the worst of the attacks: the additional loss at the
end compared with no attackers, as a fraction of the initial loss.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.support.fake_federations import (
    ATTACKS,
    FIRST,
    FakeClients,
    federation,
    held_out,
    terms_of,
)
from zoexport.federated.guard import Guard

CLIENTS, SAMPLE, ROUNDS = 20, 10, 12
ALGORITHMS = ("replay", "decomfl", "fedavg")
#: Those whose replies count; the others are refused whole.
PLAUSIBLE = ("sign flip", "five times back", "fifty times", "huge", "losses of zero", "sybils")
SHARES = (0.1, 0.2, 0.3, 0.4)
GUARDS = {
    "mean, no bounds": (Guard(), False),
    "mean": (Guard("mean", relative=3.0), False),
    "trimmed-mean": (Guard("trimmed-mean", relative=3.0), False),
    "median": (Guard("median", relative=3.0), False),
    "mean, `--test`": (Guard("mean", relative=3.0, rise=0.25), True),
    "median, `--test`": (Guard("median", relative=3.0, rise=0.25), True),
}
MARKS = "<!-- byzantine -->\n", "<!-- /byzantine -->\n"


def end(algorithm: str, guard: Guard, gate: bool, attack: str | None, share: float) -> float:
    """The held-out loss after all rounds, in parts of that at the start."""
    count = round(share * CLIENTS) if attack else 0
    step = CLIENTS // count if count else 1
    attackers = {one: ATTACKS[str(attack)] for one in range(0, step * count, step)}
    terms = terms_of(algorithm)
    clients = FakeClients(terms, CLIENTS, attackers)
    with (
        tempfile.TemporaryDirectory() as folder,
        federation(Path(folder), terms, clients, sample=SAMPLE, guard=guard, gate=gate) as server,
    ):
        server.run(ROUNDS)
        return held_out(server.model) / held_out(FIRST)


def rows() -> list[str]:
    """The table's lines."""
    lines = [
        "| algorithm | aggregate | none attack | " + " | ".join(f"{s:.0%}" for s in SHARES) + " |",
        "| --- | --- | --- | " + " | ".join("---" for _ in SHARES) + " |",
    ]
    for algorithm in ALGORITHMS:
        for name, (guard, gate) in GUARDS.items():
            calm = end(algorithm, guard, gate, None, 0.0)
            cells = [algorithm, name, f"{calm:.3f}"]
            for share in SHARES:
                found = {
                    attack: end(algorithm, guard, gate, attack, share) - calm
                    for attack in PLAUSIBLE
                }
                worst = max(found, key=lambda attack: found[attack])
                cells.append(f"{found[worst]:+.3g} ({worst})")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Renew the marked part of a page."""
    os.fsync = lambda _: None  # type: ignore[assignment]  # nothing here asks what a power loss does
    page = Path(sys.argv[1])
    before, rest = page.read_text("utf-8").split(MARKS[0])
    _, after = rest.split(MARKS[1])
    table = "\n".join(rows())
    page.write_text(f"{before}{MARKS[0]}\n{table}\n\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
