"""A compile changes nothing of torch and ExecuTorch: no attribute of their modules and classes gets another value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.qnn import needs_qnn
from tests.support.tiny_models import save_tiny

SCRIPT = """
import sys, types
from pathlib import Path

import torch.export, torch.fx.experimental.proxy_tensor, executorch.exir, executorch.runtime

OWN = ("torch", "executorch")
# What the two set by themselves where ExecuTorch lowers to a delegate and writes the program: caches, and two functions
# that its writer replaces.
THEIRS = {
    "torch._dynamo.utils.CHROMIUM_EVENT_LOG",
    "torch.fx.traceback.current_meta",
    "executorch.exir._serialize._flatbuffer._flatc_cached_path",
    "executorch.exir._serialize._flatbuffer._flatc_exit_stack",
    "executorch.exir._serialize.generated.executorch_flatbuffer.Buffer.BufferT.Pack",
    "executorch.exir._serialize.generated.executorch_flatbuffer.BackendDelegateInlineData"
    ".BackendDelegateInlineDataT.Pack",
}

def attributes():
    # The values themselves, so that nothing else gets the id of one that went.
    found = {}
    for name, module in sorted(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or name.partition(".")[0] not in OWN:
            continue
        for key, value in vars(module).items():
            found[name, key] = value
            if isinstance(value, type) and str(value.__module__).partition(".")[0] in OWN:
                path = f"{value.__module__}.{value.__qualname__}"
                found |= {(path, inner): one for inner, one in vars(value).items()}
    return found

before = attributes()

def compare(when):
    now = attributes()
    for (owner, key), value in before.items():
        other = now.get((owner, key))
        # Torch counts its tensors, and torchao adds classes of its own when it is imported.
        counts = type(value) is type(other) is int or key == "_marked_safe_globals_set"
        theirs = target == "android-npu" and f"{owner}.{key}" in THEIRS
        if other is not value and not counts and not theirs:
            print(f"{when}: {owner}.{key} is {other!r}, was {value!r}")

from zoexport.compiler.build import compile_bundle

model, folder, target, *methods = sys.argv[1:]
for method in methods:
    seen = set()

    def inside(phase, share):
        if phase not in seen:
            seen.add(phase)
            compare(f"{method}, {phase}")

    compile_bundle(
        model, method=method, target=target, output=Path(folder, method), recipe=None, force=False,
        settings={"max_length": "24", "batch_size": "2", "lora.r": "2"}, verify=False,
        progress=inside,
    )
    assert any(phase.startswith("lowering") for phase in seen), seen
    compare(f"after {method}")
print(len(before))
"""


@pytest.mark.parametrize(
    ("target", "methods"),
    [
        ("host", ["mebp", "prge"]),
        pytest.param("android-npu", ["prge"], marks=[pytest.mark.slow, needs_qnn]),
    ],
)
def test_a_compile_leaves_torch_and_executorch_as_they_are(
    target: str, methods: list[str], tmp_path: Path
) -> None:
    save_tiny("llama_tied", tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "model", tmp_path, target, *methods],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # QNN's libraries print to standard output too.
    *found, count = [line for line in done.stdout.splitlines() if line and line[0] not in "[ "]
    assert found == [] and int(count) > 100_000
