"""What is compared with a session that generates: transformers' own generation over the same model and adapter."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zoexport.methods import config_of
from zoexport.methods.reference.adapted import AdaptedModel, lora
from zoexport.methods.reference.quantized import quantize_model
from zoexport.models.load import linear_from_conv1d
from zoexport.session import Session

STEPS = 64


def reference(model: Path, bundle: Path) -> Any:
    """The Hugging Face model with the bundle's quantization."""
    from transformers import AutoModelForCausalLM

    manifest = json.loads((bundle / "manifest.json").read_text())
    loaded = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").eval()
    loaded.requires_grad_(False)
    linear_from_conv1d(loaded)
    settings = manifest["settings"]
    generating = {**settings, "activations": settings["generate.activations"]}
    quantize_model(loaded, generating, manifest["rotated_weights"])
    return loaded


@contextlib.contextmanager
def adapted(model: Any, bundle: Path, slots: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """While inside, ``model`` has the adapter of these slots."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    config: Any = config_of(manifest)
    with AdaptedModel(model).hooked(lora(slots, config)):
        yield


def greedy(model: Any, prompt: Sequence[int], steps: int = STEPS) -> list[int]:
    """What transformers generates; no token ends it."""
    with torch.no_grad():
        made = model.generate(
            torch.tensor([list(prompt)]),
            max_new_tokens=steps,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return [int(token) for token in made[0, len(prompt) :]]


def random_adapter(session: Session, scale: float = 0.2) -> dict[str, torch.Tensor]:
    """Replace the adapter of a session by a random one, and give its slots."""
    generator = torch.Generator().manual_seed(7)
    slots = {}
    for slot in session.slots():
        values = scale * torch.randn(slot.shape, generator=generator)
        session.write_slot(slot.name, values.numpy())
        slots[slot.name] = values
    return slots


def adapted_state(bundle: Path, folder: Path) -> Path:
    """A state in ``folder`` whose adapter is random."""
    with Session.open(bundle) as session:
        session.attach(folder)
        random_adapter(session)
        session.save()
    return folder


def prompt_of(length: int, vocabulary: int) -> list[int]:
    """Tokens over the whole vocabulary, without order."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(vocabulary, (length,), generator=generator).tolist()
