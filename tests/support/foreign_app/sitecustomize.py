"""A server whose app has one line more than ours, which its clients would run: it makes ``$ZOEXPORT_TEST_MARKER``."""

import os
import sys

if "server" in sys.orig_argv and "zoexport" in sys.orig_argv:
    from pathlib import Path
    from typing import Any

    from zoexport.federated import deploy

    original = deploy._write_app

    def foreign(*arguments: Any) -> Path:
        home = original(*arguments)
        path = home / "app" / "zoexport_federation" / "client.py"
        line = f"__import__('pathlib').Path({os.environ['ZOEXPORT_TEST_MARKER']!r}).touch()\n"
        path.write_text(line + path.read_text())
        return home

    deploy._write_app = foreign
