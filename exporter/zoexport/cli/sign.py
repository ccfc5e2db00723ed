"""``zoexport sign``."""

from __future__ import annotations

from pathlib import Path

import click

from zoexport.cli import options
from zoexport.cli.console import emit, table
from zoexport.cli.keys import json_keys


@click.command()
@click.argument("bundle", type=options.PATH, required=False)
@click.option("--key", type=options.PATH, help="Secret key to sign with.")
@click.option(
    "--generate",
    type=options.PATH,
    metavar="KEY",
    help="New secret key to create instead; the public key gets the suffix .pub.",
)
@click.option(
    "-W", "--no-password", is_flag=True, help="Create the key of --generate without a password."
)
@options.force
@options.common
@json_keys(
    """
    bundle, bundle_id: folder and id
    signature: file that was written
    public_key: line of the public key
    """,
    others={
        "with --generate": """
            key, public_key_file: files that were written
            public_key: line of the public key
            """
    },
)
def sign(
    bundle: Path | None,
    key: Path | None,
    generate: Path | None,
    no_password: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Sign BUNDLE, so that others can verify that it is yours (--trust).

    All files are compared with their hashes first. Keys and signatures are compatible with
    minisign: 'minisign -V -p release.pub -m model.bundle/manifest.json'.

    \b
        zoexport sign --generate release.key
        zoexport sign model.bundle --key release.key
        zoexport eval model.bundle --data test.jsonl --trust release.pub
    """
    from zoexport.api.verbs import sign as sign_bundle
    from zoexport.tools.signing import make_key

    if (bundle is None) == (generate is None):
        raise click.UsageError("name a BUNDLE to sign, or --generate a key.")
    if generate is not None:
        if key is not None:
            raise click.UsageError("--key goes with a BUNDLE.")
        password = None if no_password else _new_password()
        made = make_key(generate, password=password, force=force)
        rows = [("secret key", made["key"]), ("public key", made["public_key_file"])]
        emit(made, ["Made a key.", *table(rows), made["public_key"]], as_json=as_json)
        return
    if key is None:
        raise click.UsageError("missing option '--key'.")
    if no_password or force:
        raise click.UsageError("--no-password and --force go with --generate.")
    assert bundle is not None
    signed = sign_bundle(bundle, key=key, password=_password).as_dict()
    rows = [("signature", signed["signature"]), ("public key", signed["public_key"])]
    emit(signed, [f"Signed bundle {signed['bundle_id'][:12]}.", *table(rows)], as_json=as_json)


def _password() -> str:
    text: str = click.prompt("Password of the key", hide_input=True, err=True)
    return text


def _new_password() -> str:
    text: str = click.prompt(
        "Password of the new key", hide_input=True, confirmation_prompt=True, err=True
    )
    return text
