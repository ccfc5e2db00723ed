"""The passes that XNNPACK's lowering runs over each delegate, without those that have nothing to find.

ExecuTorch 1.5 runs 17 passes over every delegate, and each retraces all of it: for a model of 30 layers they are
half of the time to compile. Ten of them look for convolutions, pooling, batch norms and the like.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

_VISION = ("convolution", "conv1d", "conv2d", "max_pool", "batch_norm", "prelu", "upsample", "pad")


@contextlib.contextmanager
def needed_passes_only(operators: Iterable[str]) -> Iterator[None]:
    """While this is open, XNNPACK's lowering leaves out passes that ``operators`` give nothing to do.

    Args:
        operators: the names of every operator in the programs, such as ``aten::bmm``. Where one of them is of
            the kinds that the other passes treat, all passes run.
    """
    from executorch.backends.xnnpack import _passes as passes
    from executorch.backends.xnnpack import xnnpack_preprocess

    if any(kind in name for name in operators for kind in _VISION):
        yield
        return
    needed = [
        passes.XNNPACKRemoveCloneOpsTransform,
        passes.DimOrderOpsRevertPass,
        passes.ConvertToLinearPass,
        passes.ConstPropPass,
        passes.FuseActivationPass,
        passes.DecomposeConcatenate,
        passes.RemoveRedundantCopyPass,
    ]
    manager = xnnpack_preprocess.XNNPACKPassManager

    def with_needed(exported: Any, passes: Any = None) -> Any:
        return manager(exported, passes=passes or needed)

    xnnpack_preprocess.XNNPACKPassManager = with_needed
    try:
        yield
    finally:
        xnnpack_preprocess.XNNPACKPassManager = manager
