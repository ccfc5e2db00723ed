"""A compile changes nothing of torch and ExecuTorch: no attribute of their modules and classes gets another value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.tiny_models import save_tiny

SCRIPT = """
import sys, types
from pathlib import Path

import torch.export, torch.fx.experimental.proxy_tensor, executorch.exir, executorch.runtime

OWN = ("torch", "executorch")

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
        if other is not value and not counts:
            print(f"{when}: {owner}.{key} is {other!r}, was {value!r}")

from zoexport.compiler.build import compile_bundle
from zoexport.targets import targets

kind = type(targets.get("host"))
lower = kind.lower

def watched(self, *arguments):
    compare("before lowering")
    lowered = lower(self, *arguments)
    compare("after lowering")
    return lowered

kind.lower = watched
model, folder = sys.argv[1:]
for method in ("mebp", "prge"):
    compile_bundle(
        model, method=method, target="host", output=Path(folder, method), recipe=None, force=False,
        settings={"max_length": "24", "batch_size": "2", "lora.r": "2"}, verify=False,
        progress=lambda *_: None,
    )
    compare(f"after {method}")
print(len(before))
"""


def test_a_compile_leaves_torch_and_executorch_as_they_are(tmp_path: Path) -> None:
    save_tiny("llama_tied", tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "model", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *found, count = done.stdout.splitlines()
    assert found == [] and int(count) > 100_000
