"""Signs of projected gradients: test whether low precision still tells downhill from uphill.

A query's projected gradient is (l+ - l-) / 2 eps. Rounding changes both losses, mostly by the same
amount; if the rest is larger than their difference, the sign is random. Both sides evaluate the
same queries at the same states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zoexport.compiler.parity import load_reference
from zoexport.compiler.parity_batches import make_batch
from zoexport.compiler.parity_session import session_side
from zoexport.core.errors import ConfigError
from zoexport.core.step_plan import differences_of
from zoexport.session import Bundle

LEAST_AGREEMENT = 0.95


def compare_signs(
    bundle: Bundle,
    *,
    queries: int,
    eps: float | None = None,
    model: str | None = None,
    progress: Callable[[str, float | None], None],
) -> dict[str, Any]:
    """Run ``queries`` queries on both sides and compare the signs of projected gradients.

    Args:
        bundle: bundle of a zeroth-order method.
        queries: minimum number of queries; whole steps are run.
        eps: perturbation scale that overrides the bundle's.
        model: path or hub id of the original model, if it has moved since compilation.
        progress: called with the current phase and its progress.

    Returns:
        ``num_queries``, ``eps``; ``max_loss_error``, the largest difference between the two sides' losses at identical
        inputs; ``counted``, the queries whose losses differ by more than that in the reference;
        ``share``, their share; ``agreement``, the share of those with the same sign, None if none
        is counted; ``agreement_of_all``, that of all queries; ``mean_loss_difference``, the mean of
        |l+ - l-| in the reference; ``mean_difference_error``, the mean error of it in the session;
        ``passed``, True if ``agreement`` is at least 0.95.

    Raises:
        ZoExportError: the bundle or the model cannot be used, or its method has no queries.
    """
    bundle.verify()
    manifest, settings = bundle.manifest, bundle.settings
    if "num_queries" not in settings:
        raise ConfigError(
            f"bundle {bundle.path}",
            found=f"method {manifest['method']}, which has no queries",
            expected="a zeroth-order method",
            fix="Leave --signs out.",
        )
    if differences_of(manifest) == "forward":
        raise ConfigError(
            f"bundle {bundle.path}",
            found=f"forward differences, of the method {manifest['method']}",
            expected="losses in pairs of +z and -z",
            fix="Leave --signs out, or compile with a method that has difference=central.",
        )
    settings["loss"] = "full"
    settings["eps"] = eps = eps or settings["eps"]
    reference = load_reference(bundle, model, progress, loss="full", eps=eps)
    pairs: list[tuple[float, float]] = []
    error = 0.0
    gradients: Any = []
    with session_side(bundle, settings["loss"], eps=eps) as session:
        steps = -(-queries // settings["num_queries"])
        for step in range(steps):
            progress("comparing signs", step / steps)
            batch = make_batch(settings, manifest["model"]["vocab_size"], step)
            reference.follow(session.tensors(), gradients, settings["learning_rate"])
            ours = session.step(batch)
            gradients = ours["gradients"]
            theirs = reference.step(batch, settings["learning_rate"])["losses"]
            for mine, other in zip(ours["losses"], theirs, strict=True):
                error = max(error, abs(mine - other))
            for plus in range(0, len(theirs), 2):
                pairs.append(
                    (
                        ours["losses"][plus] - ours["losses"][plus + 1],
                        theirs[plus] - theirs[plus + 1],
                    )
                )
    counted = [pair for pair in pairs if abs(pair[1]) > error]
    agreement = _agreement(counted)
    return {
        "passed": agreement is not None and agreement >= LEAST_AGREEMENT,
        "num_queries": len(pairs),
        "eps": eps,
        "max_loss_error": error,
        "counted": len(counted),
        "share": len(counted) / len(pairs),
        "agreement": agreement,
        "agreement_of_all": _agreement(pairs),
        "mean_loss_difference": sum(abs(other) for _, other in pairs) / len(pairs),
        "mean_difference_error": sum(abs(mine - other) for mine, other in pairs) / len(pairs),
        "runner": f"session ({manifest['engine']})",
    }


def _agreement(pairs: list[tuple[float, float]]) -> float | None:
    if not pairs:
        return None
    return sum((mine > 0) == (other > 0) for mine, other in pairs) / len(pairs)
