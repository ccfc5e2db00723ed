"""Keys and signatures for tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from zoexport.core import minisign
from zoexport.core.manifest import FILE, SIGNATURE


@dataclasses.dataclass(frozen=True)
class Keys:
    """A trusted key's files and another's."""

    secret: minisign.SecretKey
    key: Path
    pub: Path
    other: minisign.SecretKey
    other_pub: Path


def make_keys(folder: Path) -> Keys:
    folder.mkdir(parents=True, exist_ok=True)
    secret, other = minisign.generate(), minisign.generate()
    key = folder / "release.key"
    pub = minisign.write_key(secret, key, None)
    other_pub = minisign.write_key(other, folder / "other.key", None)
    return Keys(secret, key, pub, other, other_pub)


def sign(bundle: Path, key: minisign.SecretKey) -> Path:
    """Sign a bundle's manifest as it is, whatever it says; gives the bundle."""
    text = minisign.sign(key, (bundle / FILE).read_bytes(), FILE)
    (bundle / SIGNATURE).write_text(text, encoding="utf-8")
    return bundle
