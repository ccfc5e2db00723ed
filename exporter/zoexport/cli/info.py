"""``zoexport inspect``, ``doctor``, ``methods`` and ``targets``: what there is to know."""

from __future__ import annotations

from pathlib import Path

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, size, table


@click.command()
@click.argument("path", metavar="BUNDLE | MASK", type=options.PATH)
@options.trust
@options.common
def inspect(path: Path, as_json: bool) -> None:
    """Check a bundle's files, or a mask file, and show what is in it.

    \b
    zoexport inspect model.bundle
    zoexport inspect smollm2.mask
    """
    if path.is_file():
        _inspect_mask(path, as_json)
    else:
        _inspect_bundle(path, as_json)


def _inspect_mask(path: Path, as_json: bool) -> None:
    from zoexport.describe import describe_mask

    with output_of_libraries():
        found = describe_mask(path)
    rows = [
        ("kind", f"{found['kind']}, scope {found['scope']}, density {found['density']:g}"),
        ("model", f"{found['model']} ({found['model_sha256'][:12]})"),
        ("seed", found["seed"]),
    ]
    if found["corpus"]:
        text = f"{found['sequences']} sequences of {found['corpus']}, {found['seq_len']} tokens or fewer"
        rows += [("text", f"{text} ({found['corpus_sha256'][:12]})"), ("loss", found["loss"])]
    lines = [
        f"A mask of {found['chosen']:,} of {found['weights']:,} weights",
        *table(rows),
        "Chosen in each",
        *table([(name, f"{count:,}") for name, count in found["chosen_by_weight"].items()]),
    ]
    emit(found, lines, as_json=as_json)


def _inspect_bundle(bundle: Path, as_json: bool) -> None:
    from zoexport.describe import describe_bundle

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
                (
                    "trainable",
                    f"{found['trainable_parameters']:,} parameters in {found['trainable_slots']} slots",
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


@click.command()
@options.common
def doctor(as_json: bool) -> int:
    """Say what this installation can do, what is missing, and how to get it.

    The exit code is 1 when something that training needs is missing.
    """
    from zoexport.doctor import examine

    with output_of_libraries():
        result = examine()
    rows = [(check["status"], check["name"], check["found"]) for check in result["checks"]]
    lines = table(rows, indent="")
    lines += [
        f"{check['name']}: {check['fix']}" for check in result["checks"] if check["status"] != "ok"
    ]
    emit(result, lines, as_json=as_json)
    return 0 if result["ok"] else 1


@click.command()
@options.common
def methods(as_json: bool) -> None:
    """List the training methods with their settings."""
    from zoexport.describe import list_methods

    with output_of_libraries():
        found = list_methods()
    lines = []
    for method in found:
        lines.append(f"{method['name']}: {method['summary']}")
        lines += table(
            [
                (
                    entry["key"],
                    "by target" if entry["default"] is None else entry["default"],
                    entry["help"] + (" (also at train)" if entry["runtime"] else ""),
                )
                for entry in method["settings"]
            ]
        )
    emit({"methods": found}, lines, as_json=as_json)


@click.command()
@options.common
def targets(as_json: bool) -> None:
    """List the targets, and what each still needs on this machine."""
    from zoexport.describe import list_targets

    with output_of_libraries():
        found = list_targets()
    lines = []
    for target in found:
        lines.append(f"{target['name']}: {target['summary']}")
        lines += [
            f"  needs: {problem['reason']}. {problem['fix']}" for problem in target["problems"]
        ]
    emit({"targets": found}, lines, as_json=as_json)
