"""Constants of delegates, which are not copied, however many programs read them.

ExecuTorch copies a delegate's weights before it serializes it, for whatever passes it runs might change them: as many
copies of the weights in memory as there are programs.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def shared_constants() -> Iterator[None]:
    """While this is open, copies of programs that XNNPACK is given share their tensors.

    XNNPACK's passes replace constants and write into none.
    """
    from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

    def copied(
        cls: type, program: torch.export.ExportedProgram, compile_specs: Any
    ) -> torch.export.ExportedProgram:
        tensors = (*program.state_dict.values(), *program.constants.values())
        shared = {id(one): one for one in tensors if isinstance(one, torch.Tensor)}
        found: torch.export.ExportedProgram = copy.deepcopy(program, shared)
        return found

    XnnpackBackend.copy_exported_program_for_preprocess = classmethod(copied)
    try:
        yield
    finally:
        del XnnpackBackend.copy_exported_program_for_preprocess
