"""``zoexport pack`` and ``zoexport unpack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from zoexport.cli import options
from zoexport.cli.console import emit, table
from zoexport.cli.keys import json_keys
from zoexport.run.progress import Phases

if TYPE_CHECKING:
    from zoexport.api import Bundle
    from zoexport.core.trust import Trust


@click.command()
@options.bundle
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    metavar="FILE",
    help="File to write. Default: name of BUNDLE with the suffix .zobundle.",
)
@options.force
@options.common
@json_keys("""
    bundle, bundle_id: folder and id
    file: file that was written
    bytes: size of the file
    signed: whether the bundle has a signature
""")
def pack(bundle: Bundle, output: Path | None, force: bool, as_json: bool) -> None:
    """Write BUNDLE to one file, a ZIP archive that the apps import.

    \b
        zoexport pack model.bundle -o model.zobundle
        zoexport sign model.bundle --key release.key && zoexport pack model.bundle
    """
    from zoexport.api.verbs import pack as pack_bundle

    with Phases("Packing", as_json=as_json) as progress:
        packed = pack_bundle(bundle, output, force=force, progress=progress).as_dict()
    rows = [("file", packed["file"]), ("size", f"{packed['bytes'] / 1e6:.1f} MB")]
    rows.append(("signed", "yes" if packed["signed"] else "no"))
    emit(packed, [f"Packed bundle {packed['bundle_id'][:12]}.", *table(rows)], as_json=as_json)


@click.command()
@click.argument("file", type=options.PATH)
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    metavar="BUNDLE",
    help="Folder to create. Default: name of FILE with the suffix .bundle.",
)
@options.force
@options.trust
@options.common
@json_keys("""
    file: file that was read
    bundle, bundle_id: folder that was created, and id
    signed: whether the bundle has a signature
""")
def unpack(
    file: Path, output: Path | None, force: bool, trust: Trust | None, as_json: bool
) -> None:
    """Extract the bundle in FILE to a folder and check its signature and hashes.

    Signatures are checked only with --trust or ZOEXPORT_TRUST. If a check fails, nothing is left.

    \b
        zoexport unpack model.zobundle -o model.bundle --trust release.pub
    """
    from zoexport.tools.packing import unpack as unpack_bundle

    chosen = output or Path(file.name).with_suffix(".bundle")
    with Phases("Unpacking", as_json=as_json) as progress:
        unpacked = unpack_bundle(file, chosen, force=force, trust=trust, progress=progress)
    rows = [("bundle", unpacked["bundle"]), ("signed", "yes" if unpacked["signed"] else "no")]
    emit(
        unpacked, [f"Unpacked bundle {unpacked['bundle_id'][:12]}.", *table(rows)], as_json=as_json
    )
