"""Source archives of a Python package index, by name, version and SHA-256: nothing of an archive is run.

``pip download`` runs an archive's own build to learn its dependencies. Here the index is asked for the file alone, with
what pip is configured to ask (``index-url``, ``extra-index-url``). The module needs no other, so that CMake runs it:

    python exporter/zoexport/sdist.py NAME VERSION SHA256 FILE
"""

from __future__ import annotations

import hashlib
import html
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urldefrag, urljoin

_INDEX = "https://pypi.org/simple"
_SECONDS = 60


class NotFetched(Exception):
    """No index has the file, or none can be reached."""


class OtherContent(Exception):
    """An index serves another file under this name and version; the message is its SHA-256."""


def fetch(name: str, version: str, sha256: str, path: Path) -> None:
    """Write the source archive of a package to ``path``.

    Raises:
        NotFetched, OtherContent: nothing is written.
        OSError: the path cannot be written.
    """
    problems = []
    other = None
    for index in _indexes():
        page = index.rstrip("/") + "/" + re.sub(r"[-_.]+", "-", name).lower() + "/"
        try:
            for url in _archives(page, name, version):
                content = _get(url)
                digest = hashlib.sha256(content).hexdigest()
                if digest == sha256:
                    _write(path, content)
                    return
                other = digest
        except (OSError, ValueError) as error:  # urllib's own are OSError; a strange address is a ValueError
            problems.append(f"{page}: {getattr(error, 'reason', error)}")
    if other is not None:
        raise OtherContent(other)
    raise NotFetched("; ".join(problems) or f"no index has {name} {version} as .tar.gz")


def _indexes() -> Iterator[str]:
    """What pip is configured to ask, its files and variables together."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.findall(r"^\S*\.(index-url|extra-index-url)='([^']*)'$", listed, re.MULTILINE)
    own = [url for key, urls in found if key == "index-url" for url in urls.split()]
    yield from own or [_INDEX]
    yield from (url for key, urls in found if key == "extra-index-url" for url in urls.split())


def _archives(page: str, name: str, version: str) -> Iterator[str]:
    """The addresses of a version's source archive on a page of PEP 503's simple index."""
    text = _get(page).decode("utf-8", "replace")
    wanted = re.compile(
        re.sub(r"[-_.]+", "[-_.]+", re.escape(name).replace("\\", ""))
        + "-"
        + re.escape(version)
        + r"\.tar\.gz",
        re.IGNORECASE,
    )
    for link in re.findall(r"""href=["']([^"']*)["']""", text):
        url = urldefrag(urljoin(page, html.unescape(link))).url
        if wanted.fullmatch(url.rpartition("/")[2]):
            yield url


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
        content: bytes = answer.read()
        return content


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    temporary.write_bytes(content)
    temporary.replace(path)


def main(arguments: list[str]) -> int:
    """The command line: 0, or 1 after one line on standard error."""
    name, version, sha256, path = arguments
    try:
        fetch(name, version, sha256, Path(path))
    except NotFetched as error:
        problem = f"found no source archive ({error}); expected a package index that can be reached"
    except OtherContent as error:
        problem = f"found a file with SHA-256 {error}; expected {sha256}. Do not use it"
    except OSError as error:
        problem = f"found {error}; expected a place that can be written"
    else:
        return 0
    print(f"error: package {name} {version}: {problem}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
