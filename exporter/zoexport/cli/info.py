"""``zoexport inspect``, ``doctor``, ``methods``, ``recipes`` and ``targets``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, size, table
from zoexport.cli.keys import json_keys
from zoexport.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from zoexport.core.trust import Trust
    from zoexport.session import Bundle


@click.command()
@click.argument("path", metavar="BUNDLE | STATE | FEDERATION | MASK", type=options.PATH)
@click.option("--state", type=options.PATH, help="Training state of the bundle to show instead.")
@options.trust
@options.common
@json_keys(
    others={
        "of a bundle": """
            bundle: folder; other keys are those of the manifest (docs/formats.md)
            programs: list of name, file, delegates, fallback, inputs and outputs
            files: size of each file; bytes is the sum
            bytes: total size
            trainable_slots, trainable_parameters: numbers of trained tensors and of their values
            slots: names of all state tensors
            lora_init_weights: text and rows of the directions; null for random initial values
            """,
        "of a state": """
            state: folder
            bundle_id, method, seed: bundle and seed of the run
            steps: number of steps
            damage: problem of the log, or null
            settings, data: settings, and sha256 and examples of the data; null if not recorded
            changes: list of step, key, old and new
            imported: whether the state started from an imported adapter
            snapshots: list of steps
            validation: settings and results of the evaluations, or null
            """,
        "of a federation": """
            federation: folder
            bundle_id, settings, sample: bundle, settings and number of clients per round
            rounds: number of rounds
            loss_of_last_round, evaluation: of the last round, or null
            """,
        "of a mask": """
            mask: file; other keys are those of its header (docs/formats.md)
            chosen, weights: numbers of selected weights and of all linear weights
            chosen_by_weight: number of selected weights of each matrix
            """,
    }
)
def inspect(path: Path, state: Path | None, trust: Trust | None, as_json: bool) -> int:
    """Check a bundle, a training state, a federation or a mask file, and show its contents.

    All files of a bundle are compared with their hashes. With --state, the state must belong to the
    bundle. The exit code is 1 if the log of a state is damaged.

    \b
        zoexport inspect model.bundle
        zoexport inspect run
        zoexport inspect smollm2.mask
    """
    from zoexport.federated import FEDERATION
    from zoexport.session import Bundle

    if state is not None:
        return _inspect_state(state, Bundle.open(path, trust=trust), as_json)
    if path.is_file():
        _inspect_mask(path, as_json)
        return 0
    if (path / "state.json").is_file():
        return _inspect_state(path, None, as_json)
    if (path / FEDERATION).is_file():
        _inspect_federation(path, as_json)
        return 0
    _inspect_bundle(Bundle.open(path, trust=trust), as_json)
    return 0


def _inspect_federation(folder: Path, as_json: bool) -> None:
    from zoexport.tools.describe import describe_federation

    with output_of_libraries():
        found = describe_federation(folder)
    rows = [("bundle", found["bundle_id"][:12]), ("clients a round", found["sample"])]
    if found["loss_of_last_round"] is not None:
        rows.append(("loss of the last round", f"{found['loss_of_last_round']:.4f}"))
    if found["evaluation"] is not None:
        rows.append(("held out", f"{found['evaluation']['loss']:.4f}"))
    title = f"A federation after {found['rounds']} rounds"
    lines = [title, *table(rows), "Settings", *table(sorted(found["settings"].items()))]
    emit(found, lines, as_json=as_json)


def _inspect_state(state: Path, bundle: Bundle | None, as_json: bool) -> int:
    from zoexport.tools.describe import describe_state

    with output_of_libraries():
        found = describe_state(state, bundle)
    data = found["data"]
    rows = [
        ("bundle", found["bundle_id"][:12]),
        ("seed", found["seed"]),
        ("snapshots", ", ".join(map(str, found["snapshots"])) or "none"),
        ("begins with", "an imported adapter" if found["imported"] else "the bundle's values"),
    ]
    if data is not None:
        rows.append(("data", f"{data['examples']} examples ({data['sha256'][:12]})"))
    if found["damage"]:
        rows.append(("log", f"{found['damage']}; 'zoexport train --recover' goes on from them"))
    lines = [f"A state of {found['method']} after {found['steps']} steps", *table(rows)]
    if found["settings"] is None:
        lines.append("Settings: not kept; the next step keeps them")
    else:
        lines += ["Settings", *table(sorted(found["settings"].items()))]
    if found["validation"] is not None:
        lines += ["Held out", *table(_held_out(found["validation"]))]
    if found["changes"]:
        changes = [
            (f"step {change['step']}", f"{change['key']}: {change['old']} -> {change['new']}")
            for change in found["changes"]
        ]
        lines += ["Changes", *table(changes)]
    emit(found, lines, as_json=as_json)
    return 1 if found["damage"] else 0


def _held_out(validation: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the rows that summarize a run's validation and the weights that it keeps."""
    data, losses = validation["data"], {}
    for one in validation["evaluations"]:
        losses[one["step"]] = one["loss"]
    rows: list[tuple[str, object]] = [
        ("data", f"{data['examples']} examples ({data['sha256'][:12]})"),
        ("evaluated", f"every {validation['every']} steps, {len(losses)} times so far"),
        ("patience", validation["patience"] or "none"),
        ("gives", f"the values of the {validation['keep']} step"),
    ]
    best = validation["best_step"]
    if best is not None:
        rows.append(("best", f"{losses[best]:.4f} at step {best}"))
    return rows


def _inspect_mask(path: Path, as_json: bool) -> None:
    from zoexport.tools.describe import describe_mask

    with output_of_libraries():
        found = describe_mask(path)
    rows = [
        ("kind", f"{found['kind']}, scope {found['scope']}, density {found['density']:g}"),
        ("model", f"{found['model']} ({found['model_sha256'][:12]})"),
        ("seed", found["seed"]),
    ]
    if found["corpus"]:
        text = f"{found['sequences']} sequences of {found['corpus']}, {found['max_length']} tokens or fewer"
        rows += [("text", f"{text} ({found['corpus_sha256'][:12]})"), ("loss", found["loss"])]
    lines = [
        f"A mask of {found['chosen']:,} of {found['weights']:,} weights",
        *table(rows),
        "Chosen in each",
        *table([(name, f"{count:,}") for name, count in found["chosen_by_weight"].items()]),
    ]
    emit(found, lines, as_json=as_json)


def _inspect_bundle(bundle: Bundle, as_json: bool) -> None:
    from zoexport.tools.describe import describe_bundle

    with output_of_libraries():
        found = describe_bundle(bundle)
    model = found["model"]
    lines = [
        f"{found['method']} for {found['target']} ({found['engine']}), bundle {found['bundle_id'][:12]}",
        *table(
            [
                (
                    "model",
                    f"{model['name']} ({model['architecture']}), {model['parameters']:,} parameters",
                ),
                (
                    "written by",
                    ", ".join(f"{name} {text}" for name, text in found["tools"].items()),
                ),
                ("frozen weights", found["packing"]),
                ("noise", found["rng"]),
                *([("a step", _step(found["step"]))] if found["step"] else []),
                (
                    "trainable",
                    f"{found['trainable_parameters']:,} parameters in {found['trainable_slots']} slots",
                ),
                *(
                    [("adapters", _init(found["lora_init_weights"]))]
                    if found["lora_init_weights"]
                    else []
                ),
                (
                    "a call",
                    f"{found['rows']} rows, {found['copies']} copies, at most {found['max_labels']} labels",
                ),
                ("size", size(found["bytes"])),
            ]
        ),
        *(f"Note: {note}." for note in found["notes"]),
        "Settings",
        *table(list(found["settings"].items())),
        "Programs",
    ]
    for program in found["programs"]:
        lines.append(
            f"  {program['name']}: {program['delegates']} delegates, {program['fallback']} operators outside them"
        )
        lines += table(program["inputs"], indent="    in   ")
        lines += table(program["outputs"], indent="    out  ")
    lines += [
        "Files, all intact",
        *table([(name, size(count)) for name, count in found["files"].items()]),
    ]
    emit(found, lines, as_json=as_json)


def _init(made: Mapping[str, Any]) -> str:
    text = made["text"]
    named = f"{text['name']} ({text['sha256'][:12]})" if text else "random tokens"
    return f"begin along directions of activations on {named}, {made['rows']} rows, {made['tokens']} tokens"


def _step(plan: Mapping[str, Any]) -> str:
    noise, divisor = plan.get("noise", "normal"), plan.get("divisor", "distance")
    levels = []
    for level in plan["levels"]:
        directions = "direction" if level["directions"] == 1 else "directions"
        along = f"{level['directions']} {noise} {directions}"
        levels.append(f"{along}, {level['difference']} differences over their {divisor}")
    return "; for each side ".join(levels) + _update(plan.get("update"))


def _update(rule: Mapping[str, Any] | None) -> str:
    if rule is None:
        return ""
    betas = " and ".join(f"{rule[key]:g}" for key in ("beta1", "beta2") if key in rule)
    return f"; {rule['rule']} of {rule['horizon']} steps, {betas}"


@click.command()
@click.option("--fix", is_flag=True, help="Print the one command that installs what is missing.")
@options.common
@json_keys("""
    ok: whether compiling and training can work
    command: command that --fix prints, or null
    checks: list of name, status (ok, optional or missing), found and fix
""")
def doctor(fix: bool, as_json: bool) -> int:
    """Check this installation: show what works, what is missing and how to install it.

    Each check is ok, optional (a feature that is not installed) or missing (training needs it). The
    exit code is 1 if something is missing.

    \b
        zoexport doctor
        zoexport doctor --fix
    """
    from zoexport.tools.doctor import examine

    with output_of_libraries():
        result = examine()
    if fix:
        emit(
            result,
            [result["command"] or "# nothing is missing that a command installs"],
            as_json=as_json,
        )
        return 0 if result["ok"] else 1
    rows = [(check["status"], check["name"], check["found"]) for check in result["checks"]]
    lines = table(rows, indent="")
    fixes: dict[str, list[str]] = {}
    for check in result["checks"]:
        if check["status"] != "ok" and check["fix"]:
            fixes.setdefault(check["fix"], []).append(check["name"])
    lines += [f"{', '.join(names)}: {fix}" for fix, names in fixes.items()]
    emit(result, lines, as_json=as_json)
    return 0 if result["ok"] else 1


def _named(found: list[dict[str, Any]], kind: str, name: str | None) -> list[dict[str, Any]]:
    """Return the entry called ``name``, or all entries if it is None."""
    if name is None:
        return found
    known = [one["name"] for one in found]
    if name not in known:
        raise ConfigError(
            f"{kind} {name!r}",
            found="no such name",
            expected="one of " + ", ".join(known),
            fix=f"Choose one of them.{nearest(name, known)}",
        )
    return [one for one in found if one["name"] == name]


@click.command()
@click.argument("name", required=False)
@options.common
@json_keys("""
    methods: list of name, summary and settings, each with key, default, choices, help and runtime
        (whether 'train --set' takes it)
""")
def methods(name: str | None, as_json: bool) -> None:
    """List the training methods, or the settings of method NAME.

    \b
        zoexport methods
        zoexport methods mebp
    """
    from zoexport.tools.describe import list_methods

    with output_of_libraries():
        found = _named(list_methods(), "method", name)
    lines = []
    for method in found:
        lines.append(f"{method['name']}: {method['summary']}")
        if name is None:
            continue
        lines += table(
            [
                (
                    entry["key"],
                    "depends" if entry["default"] in (None, "") else entry["default"],
                    entry["help"] + (" (also at train)" if entry["runtime"] else ""),
                )
                for entry in method["settings"]
            ]
        )
    emit({"methods": found}, lines, as_json=as_json)


@click.command()
@click.argument("name", required=False)
@options.common
@json_keys("""
    recipes: list of name, method, summary, command, settings and file
""")
def recipes(name: str | None, as_json: bool) -> None:
    """List the recipes for --recipe, or the settings of recipe NAME.

    \b
        zoexport recipes
        zoexport recipes smollm2-135m-mebp
    """
    from zoexport.tools.describe import list_recipes

    with output_of_libraries():
        found = _named(list_recipes(), "recipe", name)
    rows = [(one["name"], one["summary"]) for one in found]
    if name is not None:
        rows += [("method", found[0]["method"]), *found[0]["settings"].items()]
    emit({"recipes": found}, table(rows, indent=""), as_json=as_json)


@click.command()
@options.common
@json_keys("""
    targets: list of name, summary, engine, available and problems, each with where, reason and fix
""")
def targets(as_json: bool) -> None:
    """List the targets and what each still needs on this machine."""
    from zoexport.tools.describe import list_targets

    with output_of_libraries():
        found = list_targets()
    lines = []
    for target in found:
        lines.append(f"{target['name']}: {target['summary']}")
        lines += [
            f"  needs: {problem['reason']}. {problem['fix']}" for problem in target["problems"]
        ]
    emit({"targets": found}, lines, as_json=as_json)
