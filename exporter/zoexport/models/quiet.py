"""Suppression of the output of transformers and its libraries while they load."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """Suppress transformers' warnings, reports and progress bars inside the context."""
    if verbose:
        yield
        return
    # torchao complains about GPU libraries while transformers is imported.
    logging.getLogger("torchao").setLevel(logging.ERROR)
    import transformers
    from huggingface_hub import utils as hub_utils

    hub: Any = hub_utils  # exports that its type information hides
    log = transformers.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    hub_bars = not hub.are_progress_bars_disabled()
    log.set_verbosity(logging.CRITICAL)
    log.disable_progress_bar()
    hub.disable_progress_bars()
    try:
        # The GGUF reader's progress bar ignores these switches.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
        if hub_bars:
            hub.enable_progress_bars()
