"""Delegates' constants are not copied."""

from __future__ import annotations

import copy

import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

from zoexport.targets.executorch.xnnpack.shared_constants import shared_constants


def test_a_copied_program_has_the_same_tensors() -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(1, 3),))

    def tensors() -> dict[str, torch.Tensor]:
        return XnnpackBackend.copy_exported_program_for_preprocess(program, []).state_dict

    with shared_constants():
        copied = XnnpackBackend.copy_exported_program_for_preprocess(program, [])
        assert tensors().keys() == program.state_dict.keys()
        assert all(one is program.state_dict[name] for name, one in tensors().items())
        assert copied.graph is not program.graph
    assert all(one is not program.state_dict[name] for name, one in tensors().items())
    assert copy.deepcopy(program).state_dict.keys() == program.state_dict.keys()
