"""Delegates' constants are packed once, and not copied."""

from __future__ import annotations

import copy

import pytest
import torch
from executorch.backends.xnnpack.operators.node_visitor import NodeVisitor
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

from zoexport.targets.xnnpack.shared_constants import shared_constants


def test_codes_are_packed_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    pack = NodeVisitor.convert_to_qc4w
    monkeypatch.setattr(
        NodeVisitor,
        "convert_to_qc4w",
        staticmethod(lambda codes: packed.append(codes.data_ptr()) or pack(codes)),
    )
    one = torch.randint(-8, 8, (6, 32), dtype=torch.int8)
    other = one.flip(0).contiguous()
    with shared_constants():
        for codes in (one, other, one, other[:3]):
            assert torch.equal(NodeVisitor.convert_to_qc4w(codes), pack(codes))
    assert len(packed) == 3
    NodeVisitor.convert_to_qc4w(one)
    assert len(packed) == 4


def test_codes_that_are_dropped_are_not_taken_for_others() -> None:
    with shared_constants():
        for number in range(50):
            codes = torch.full((2, 32), number % 8, dtype=torch.int8)
            assert NodeVisitor.convert_to_qc4w(codes)[0, 0] == (number % 8 + 8) * 17


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
