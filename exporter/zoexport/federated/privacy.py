"""Differential privacy of what a client uploads: clipped and noised before it leaves, and counted against a budget.

The mechanism is Gaussian. An upload is a vector: the scalars of a round's steps, or the changes of all values. It is
clipped to the norm C, and normal noise of standard deviation z C is added to each element. Privacy
is per client: for any replacement of its data, the vectors differ by at most 2 C. So one upload is
a Gaussian mechanism of noise multiplier z / 2; ``opacus`` composes uploads to (epsilon, delta).

Losses are not uploaded. Diverged steps count as zeros, as divergence depends on the data, too.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoexport.core.errors import ConfigError, StateError
from zoexport.core.files import write_json

_LEDGER = "privacy.json"
_ORDERS = [1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 80, 128, 256, 512, 1024]
_MOST = 1 << 20


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Differential privacy of a client's uploads.

    Attributes:
        clip: C, the maximum norm of an upload before noise.
        noise: z, the standard deviation of the noise divided by C.
        epsilon, delta: budget of all uploads from this folder together.
    """

    clip: float
    noise: float
    epsilon: float
    delta: float

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Privacy:
        """Restore from the result of :func:`dataclasses.asdict`."""
        return cls(**content)

    @classmethod
    def given(
        cls, clip: float | None, noise: float | None, epsilon: float | None, delta: float
    ) -> Privacy | None:
        """Return the privacy of the options ``--dp-clip``, ``--dp-noise`` and ``--dp-epsilon``; None without them.

        Raises:
            ConfigError: some of them are missing.
        """
        named = {"--dp-clip": clip, "--dp-noise": noise, "--dp-epsilon": epsilon}
        missing = [name for name, value in named.items() if value is None]
        if len(missing) == len(named):
            return None
        if clip is None or noise is None or epsilon is None:
            raise ConfigError(
                ", ".join(name for name in named if name not in missing),
                found="no " + ", ".join(missing),
                expected="all three: what is clipped, the noise, and the budget",
                fix="Give them; docs/federation.md says what they mean.",
            )
        return cls(clip, noise, epsilon, delta)

    def uploads(self) -> int:
        """Return the number of uploads within the budget.

        Raises:
            ConfigError: none; or opacus is not installed.
        """
        below, above = 0, 1
        while above < _MOST and spent({self.noise: above}, self.delta) <= self.epsilon:
            below, above = above, 2 * above
        while above - below > 1:
            middle = (below + above) // 2
            if spent({self.noise: middle}, self.delta) <= self.epsilon:
                below = middle
            else:
                above = middle
        if below == 0:
            one = spent({self.noise: 1}, self.delta)
            raise ConfigError(
                f"--dp-epsilon {self.epsilon:g}",
                found=f"a single upload with --dp-noise {self.noise:g} that spends {one:.4g}",
                expected="a budget for one upload at least",
                fix="Give more noise, or a larger budget.",
            )
        return below

    def noised(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the clipped vector with noise, for upload; each call draws new noise."""
        norm = float(np.linalg.norm(vector))
        shortened = vector * min(1.0, self.clip / norm) if norm > 0 else vector
        generator = np.random.default_rng(secrets.randbits(128))
        return shortened + generator.normal(0.0, self.noise * self.clip, vector.shape)


def spent(uploads: Mapping[float, int], delta: float) -> float:
    """Return the epsilon of uploads, at a delta.

    Args:
        uploads: number of uploads by noise z.

    Raises:
        ConfigError: opacus is not installed.
    """
    try:
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise ConfigError(
            "--dp-noise",
            found="no accountant of what uploads spend",
            expected="the package opacus",
            fix="Install it: pip install 'zoexport[privacy]'.",
        ) from error
    if not sum(uploads.values()):
        return 0.0
    total = sum(
        np.asarray(rdp.compute_rdp(q=1.0, noise_multiplier=noise / 2, steps=count, orders=_ORDERS))
        for noise, count in uploads.items()
    )
    found, _ = rdp.get_privacy_spent(orders=_ORDERS, rdp=total, delta=delta)
    return float(found)


class Ledger:
    """The uploads that a client's folder has seen, of all federations: its data are the same in each."""

    def __init__(self, folder: Path, privacy: Privacy) -> None:
        self._path = folder / _LEDGER
        self._privacy = privacy

    def take(self) -> None:
        """Count one more upload, before it is made.

        Raises:
            StateError: the budget does not pay for it; or the file cannot be read, and so nobody knows what was spent.
        """
        uploads = self._read()
        uploads[self._privacy.noise] += 1
        would = spent(uploads, self._privacy.delta)
        if would > self._privacy.epsilon:
            raise StateError(
                str(self._path),
                found=f"an upload that makes epsilon {would:.4g}, at delta {self._privacy.delta:g}",
                expected=f"at most {self._privacy.epsilon:g}",
                fix="The budget is spent: this client's data are not used any more.",
            )
        content = {str(noise): count for noise, count in sorted(uploads.items())}
        write_json(self._path, {"uploads": content, "epsilon": would, "delta": self._privacy.delta})

    def _read(self) -> Counter[float]:
        if not self._path.exists():
            return Counter()
        try:
            content = json.loads(self._path.read_text("utf-8"))["uploads"]
            return Counter({float(noise): int(count) for noise, count in content.items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                str(self._path),
                found=f"no ledger ({error})",
                expected="what earlier uploads have spent",
                fix="Restore it from a copy; without it no upload is made.",
            ) from error
