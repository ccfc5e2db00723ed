"""Writes a folder of an older glibc's libraries: ``python cmake/old_glibc.py FOLDER [MACHINE [VERSION]]``.

The package ziglang carries what every glibc has, and makes such libraries when it links; ``g++ -BFOLDER`` then takes
them in place of the system's. What is linked so runs with that glibc and every newer one. ``old_glibc.c`` has what is
missing there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_FILES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "Scrt1.o", "libc_nonshared.a")


def write(folder: Path, machine: str, version: str) -> None:
    """Write the libraries of glibc ``version`` for ``machine`` (x86_64, aarch64)."""
    zig = os.environ.get("ZIG", "").split() or [sys.executable, "-m", "ziglang"]
    target = f"{machine}-linux-gnu.{version}"
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name)
        (cache / "empty.c").write_text("int main(void) { return 0; }\n", "utf-8")
        places = {"ZIG_GLOBAL_CACHE_DIR": name, "ZIG_LOCAL_CACHE_DIR": name}
        command = [*zig, "cc", "-target", target, "-pie", "-fPIE", "empty.c", "-o", "empty"]
        subprocess.run(command, cwd=cache, env={**os.environ, **places}, check=True)
        for file in _FILES:
            found = list(cache.glob(f"o/*/{file}"))
            if len(found) != 1:
                sys.exit(
                    f"error: zig wrote {len(found)} files {file} for {target}; one was expected."
                )
            shutil.copy(found[0], folder)
    shutil.copy(folder / "libm.so.6", folder / "libm.so")
    script = "GROUP ( {0}/libc.so.6 {0}/libc_nonshared.a AS_NEEDED ( {0}/libpthread.so.0 {0}/libdl.so.2 ) )\n"
    (folder / "libc.so").write_text(script.format(folder), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), *(sys.argv[2:] + ["x86_64", "2.28"][len(sys.argv) - 2 :]))
