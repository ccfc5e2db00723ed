"""Run lm_eval's command line with the model ``zoexport``, which this package registers when it is imported."""

from __future__ import annotations

import sys

from lm_eval.__main__ import cli_evaluate

from zoexport.core.errors import ZoExportError


def main() -> None:
    """Run ``lm_eval``; errors of zoexport end as one message."""
    try:
        cli_evaluate()
    except ZoExportError as error:
        sys.exit(f"zoexport: {error}")


if __name__ == "__main__":
    main()
