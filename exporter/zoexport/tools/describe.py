"""Content of ``inspect``, ``methods`` and ``targets``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoexport.core.errors import StateError
from zoexport.core.recipes import comment, known, read_recipe
from zoexport.session import Bundle


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """Summarize a bundle's manifest, after its files were compared with it.

    Raises:
        BundleError: a file is altered.
    """
    bundle.verify()
    found = bundle.manifest
    trainable = [slot for slot in found["state"] if slot["role"] == "trainable"]
    copied = (
        "bundle_id",
        "zoexport_version",
        "tools",
        "method",
        "target",
        "engine",
        "model",
        "settings",
        "rng",
        "packing",
        "rows",
        "copies",
        "max_labels",
        "required_ops",
        "tolerances",
    )
    return {
        "bundle": str(bundle.path),
        **{key: found[key] for key in copied},
        "step": found.get("step"),
        "notes": found.get("notes", []),
        "minimum_os": found.get("minimum_os", {}),
        "lora_init_weights": found.get("lora_init_weights"),
        "trainable_slots": len(trainable),
        "trainable_parameters": sum(math.prod(slot["shape"]) for slot in trainable),
        "slots": [slot["name"] for slot in found["state"]],
        "programs": [_program(program, found) for program in found["programs"]],
        "files": {name: entry["bytes"] for name, entry in found["files"].items()},
        "bytes": sum(entry["bytes"] for entry in found["files"].values()),
    }


def describe_state(state: Path, bundle: Bundle | None = None) -> dict[str, Any]:
    """Describe a run from its training state: steps, settings, data, and when they were changed.

    Args:
        state: folder of the training state.
        bundle: if given, the bundle that the state must belong to.

    Raises:
        StateError: the state is missing, of another bundle, or damaged beyond its log.
    """
    from zoexport.session import describe_state as describe

    found = describe(state)
    if bundle is not None and found["bundle_id"] != bundle.id:
        raise StateError(
            str(state),
            found=f"the state of bundle {found['bundle_id'][:16]}...",
            expected=f"a state of {bundle.path}, {bundle.id[:16]}...",
            fix="Name the bundle that it was trained with, or another state.",
        )
    return {"state": str(state), **found}


def describe_federation(folder: Path) -> dict[str, Any]:
    """Describe the settings and the progress of a federation.

    Raises:
        StateError: its folder is damaged.
    """
    from zoexport.federated.store import of_folder

    store = of_folder(folder)
    rounds = store.version()
    last = store.round(rounds - 1) if rounds else {}
    terms = store.terms.as_dict()
    return {
        "federation": str(folder),
        "bundle_id": terms.pop("bundle"),
        "rounds": rounds,
        "sample": store.sample,
        "loss_of_last_round": last.get("loss"),
        "evaluation": last.get("evaluation"),
        "settings": terms,
    }


def describe_mask(path: Path) -> dict[str, Any]:
    """Describe the provenance of a mask and the number of selected weights per matrix.

    Raises:
        ConfigError: the file is no mask.
    """
    from zoexport.core.mask import read_mask

    mask = read_mask(path)
    facts = dataclasses.asdict(mask.facts)
    shapes = facts.pop("shapes")
    return {
        "mask": str(path),
        **facts,
        "chosen": mask.count(),
        "weights": sum(math.prod(shape) for shape in shapes.values()),
        "chosen_by_weight": {name: places.numel() for name, places in mask.places.items()},
    }


def _program(program: dict[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    name = program["name"]
    return {
        "name": name,
        "file": program["file"],
        "delegates": len(found["delegate_list"].get(name, [])),
        "fallback": sum(found["fallback_ops"].get(name, {}).values()),
        "inputs": _values(program["inputs"]),
        "outputs": _values(program["outputs"]),
    }


def _values(values: list[dict[str, Any]]) -> list[list[str]]:
    """Rows of name, role, dtype and shape; slots of one role and shape share a row."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for value in values:
        sizes = [
            f"{size['min']}..{size['max']}" if isinstance(size, dict) else str(size)
            for size in value["shape"]
        ]
        key = value["role"], value["dtype"], f"({', '.join(sizes)})"
        rows.setdefault(key, []).append(value["name"])
    return [
        [names[0] if len(names) == 1 else f"{len(names)} slots", role, dtype, shape]
        for (role, dtype, shape), names in rows.items()
    ]


def list_methods() -> list[dict[str, Any]]:
    """Return every method: name, summary and settings."""
    from zoexport.core.config import default_of, fields
    from zoexport.methods import methods

    found = []
    for name in methods.names():
        method = methods.get(name)
        settings = [
            {
                "key": key,
                "default": default_of(field),
                "choices": list(info.choices),
                "help": info.help,
                "runtime": info.runtime,
            }
            for key, (field, info) in fields(method.config).items()
        ]
        found.append({"name": name, "summary": method.summary, "settings": settings})
    return found


def list_recipes() -> list[dict[str, Any]]:
    """Return the recipes that have names: for what each is, how it is used, and what it sets."""
    found = []
    for name, path in known().items():
        recipe, (summary, command) = read_recipe(path), comment(path)
        about = {"name": name, "method": recipe.method, "summary": summary, "command": command}
        found.append({**about, "settings": dict(recipe.settings), "file": str(path)})
    return found


def list_targets() -> list[dict[str, Any]]:
    """Return every target: name, summary, engine, and what is missing here to compile for it."""
    from zoexport.targets import targets

    found = []
    for name in targets.names():
        target = targets.get(name)
        problems = [
            {"where": problem.where, "reason": problem.reason, "fix": problem.fix}
            for problem in target.check_available()
        ]
        found.append(
            {
                "name": name,
                "summary": target.summary,
                "engine": target.engine,
                "available": not problems,
                "problems": problems,
            }
        )
    return found
