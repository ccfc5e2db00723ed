"""Models larger than memory: accelerate's device map, with weights read when a layer runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.models.weights import StoredTensor, StoredWeights
from zoexport.tools.mapped import no_room

if TYPE_CHECKING:
    import torch

    from zoexport.models import LoadedModel, WeightReader

DEVICE_MAPS = ("auto", "cpu", "disk")


def offload(loaded: LoadedModel, device_map: str | Mapping[str, str | int], folder: Path) -> None:
    """Distribute a model's layers by a device map; a layer runs on the compute device.

    The compute device is the first GPU, or the CPU if no GPU is available.

    Args:
        loaded: with ``lazy`` nothing of it is read but what stays in memory; else it is in memory until this returns.
            Its ``model`` is changed.
        device_map: ``cpu``, all weights in memory; ``disk``, all in their files; ``auto``, as accelerate fills the
            GPUs, then the memory that is free, then the disk; or accelerate's own, module paths to devices.
        folder: where weights are written that are in no file that can be read by name (GPT-2's, GGUF).

    Raises:
        ConfigError: no room for them. ModelError: a weight's file can no longer be read.
    """
    import accelerate
    import torch

    model: Any = loaded.model
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    if device_map == "cpu":
        accelerate.cpu_offload(model, execution_device=torch.device(device))
        return
    if not isinstance(device_map, str):
        places: dict[str, Any] = dict(device_map)
    elif device_map == "disk":
        places = {"": "disk"}
    else:
        kept_whole = list(model._no_split_modules or [])
        places = accelerate.infer_auto_device_map(model, no_split_module_classes=kept_whole)
    if not loaded.lazy and "disk" in places.values():
        loaded.weights = _written(loaded.weights, folder)
    accelerate.dispatch_model(
        model,
        places,
        main_device=device,
        state_dict=_ByName(loaded.weights, _in_memory(loaded, places)),
        offload_index={},
        force_hooks=True,
    )


def _written(weights: WeightReader, folder: Path) -> WeightReader:
    """Write each weight into a file of its own and return their reader."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    stored = {}
    for number, name in enumerate(weights.names()):
        path = folder / f"{number}.safetensors"
        tensor = weights.read(name)
        try:
            save_file({name: tensor}, path)
        except (OSError, SafetensorError) as error:
            raise no_room(folder, error) from error
        stored[name] = StoredTensor(path, name, tuple(tensor.shape), tensor.is_floating_point())
    return StoredWeights(stored)


def _in_memory(loaded: LoadedModel, places: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The weights that are to stay in memory; those that a lazily loaded model keeps there or on a GPU are read."""
    found = {}
    for name, parameter in loaded.model.named_parameters(remove_duplicate=False):
        owners = [path for path in places if path == "" or f"{name}.".startswith(f"{path}.")]
        place = places[max(owners, key=len)]
        if loaded.lazy and place != "disk":
            parameter.data.copy_(loaded.weights.read(name))
        if place == "cpu":
            found[name] = parameter.data
    return found


class _ByName(Mapping[str, "torch.Tensor"]):
    """A model's weights as accelerate asks for them."""

    def __init__(self, weights: WeightReader, in_memory: Mapping[str, torch.Tensor]) -> None:
        self._weights = weights
        self._in_memory = in_memory

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self._in_memory.get(name)
        return self._weights.read(name) if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights.names())

    def __len__(self) -> int:
        return len(self._weights.names())
