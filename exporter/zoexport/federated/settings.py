"""A federation's terms from a bundle and what the user gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoexport.core.errors import ConfigError
from zoexport.core.step_plan import differences_of
from zoexport.federated import models
from zoexport.federated.terms import ALGORITHMS, SCALARS, Terms
from zoexport.federated.terms import algorithm as chosen_algorithm
from zoexport.methods import runtime_settings
from zoexport.session import Bundle, no_programs
from zoexport.session.data import reading


def terms_of(
    bundle: Bundle,
    algorithm: str | None,
    steps: int,
    settings: Mapping[str, str],
) -> Terms:
    """Return the terms, checked by the method's own rules.

    Args:
        algorithm: a key of :data:`terms.ALGORITHMS`, or None for the one of the bundle's kind.
        steps: of a client in a round.
        settings: of ``train --set``; ``seed`` is the base of all seeds, and a schedule must be constant.

    Raises:
        ConfigError: settings that cannot be used, a bundle whose values have no mean, or an algorithm that its updates
            do not go with.
    """
    manifest = bundle.manifest
    given = runtime_settings(bundle.method, settings)
    if given.get("lr_scheduler_type", "constant") != "constant":
        raise ConfigError(
            "setting 'lr_scheduler_type'",
            found=given["lr_scheduler_type"],
            expected="constant: a round's steps have one rate",
            fix="Leave it out.",
        )
    if given.get("warmup_steps", 0):
        raise ConfigError(
            "setting 'warmup_steps'",
            found=str(given["warmup_steps"]),
            expected="0: a round's steps have one rate",
            fix="Leave it out.",
        )
    if reading({**manifest["settings"], **given})["pack"]:
        raise ConfigError(
            "setting 'pack'",
            found="true",
            expected="false: the examples of a federation have rows of their own",
            fix="Pass --set pack=false.",
        )
    for key in ("choices", "dpo.beta", "orpo.beta", "append_eos", "mask_history"):
        if key in given:
            raise ConfigError(
                f"setting {key!r}",
                found=str(given[key]),
                expected="the bundle's own, which every client has",
                fix="Leave it out, or compile the bundle with it.",
            )
    with bundle.session(engine=no_programs) as session:
        models.trained_slots(session)
        scalars = session.info.num_queries
        name = chosen_algorithm(algorithm, first_order=scalars == 0)
        _check_rule(name, manifest)
        difference = ALGORITHMS[name].difference
        if "difference" not in given and difference not in (None, differences_of(manifest)):
            if "difference" not in manifest["settings"]:
                raise ConfigError(
                    f"--algorithm {name}",
                    found=f"a bundle of {manifest['method']}, which has no {difference} differences",
                    expected=f"a method that has, as {name} takes them",
                    fix="Compile the bundle with --method mezo.",
                )
            given["difference"] = difference
        run = session.configure(**{**given, "lr_scheduler_type": "constant", "warmup_steps": 0})
        return Terms(
            bundle=session.info.bundle_id,
            algorithm=name,
            steps=steps,
            scalars=scalars,
            seed=run["seed"],
            learning_rate=run["learning_rate"],
            eps=run.get("eps", 0.0),
            loss=run["loss"],
            batch_size=run["batch_size"],
            gradient_accumulation_steps=run["gradient_accumulation_steps"],
            difference=run.get("difference", "central"),
        )


def _check_rule(name: str, manifest: Mapping[str, Any]) -> None:
    """Updates of Adam and Muon are not linear in the scalars of a step.

    Raises:
        ConfigError: an algorithm that averages scalars, and shortens an update by making them smaller.
    """
    rule = manifest.get("step", {}).get("update", {}).get("rule")
    if rule in ("adam", "muon") and ALGORITHMS[name].averages == SCALARS:
        raise ConfigError(
            f"--algorithm {name}",
            found=f"a bundle with optimizer={rule}, whose step length does not depend on its scalars",
            expected="an algorithm that averages models, or a bundle with optimizer=sgd or momentum",
            fix=f"Pass --algorithm replay, or compile the bundle without optimizer={rule}.",
        )
