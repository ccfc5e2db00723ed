"""A case: one tiny model and one compilation of it; cases as text, and as what hypothesis draws.

Every strategy has its simplest value first, so that shrinking ends at the smallest model that still fails.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from hypothesis import strategies as st

from tests.support.tiny_models import ARCHITECTURES, ENCODERS
from tests.sweep.variants import VARIANTS

TARGETS = ("host", "android-cpu", "android-gpu", "ios-mlx", "ios-coreml", "android-npu")
"""The targets whose bundles run on this machine; on a CPU that has Vulkan, in emulation, or by an evaluator."""

METHODS = ("prge", "mezo", "fzoo", "mebp", "spzo", "senszoq", "quzo")
_REFUSED = {
    "android-gpu": {"senszoq", "quzo"},
    "ios-coreml": {"quzo"},
    "android-npu": {"senszoq", "quzo"},
}
"""Methods that a target refuses whatever the settings: drawing them would try nothing."""

_WITH_ENCODERS = ("host", "android-cpu", "ios-mlx")
_WITH_DROPOUT = _WITH_ENCODERS
_LAYERS_ALONE = ("host", "android-cpu", "android-gpu")
"""Targets without programs of the whole model."""

ANY_HEAD_DIM = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "mistral", "olmo2", "granite")
ANY_HEAD_DIM += ("llama_tied", "cohere", "cohere2", "starcoder2", "phi3")
"""Whose heads together need not be as wide as the model."""
SHARED_KEYS = (*ANY_HEAD_DIM, "phi", "stablelm")
"""That have fewer heads for keys and values than for queries."""
SLIDING = ("mistral", "gemma2", "gemma3", "cohere2")
_ROTATED_SHARE = {"phi": 4, "stablelm": 8, "gpt_neox": 8}
"""What a head's size is a multiple of, so that the rotated part of it is even: 2 where not said."""
_ANY_SIZE = ("opt", "gpt2", "bloom", "mpt", *ENCODERS)
"""Without rotary embeddings: heads of any size."""
_WIDTHS = (16, 24, 32, 40, 48, 64, 72, 88, 96, 100, 128)
_HEADS = (1, 2, 3, 4, 5, 6, 8, 11)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and what it is compiled for; None leaves a setting to the method and the target.

    Attributes:
        architecture: a name of ``tests.support.tiny_models``. variant: one of its forms in ``variants``.
        hidden, heads, kv_heads, head_dim, layers, intermediate, window: the model's sizes. Architectures without a
            setting of that name ignore it.
        tied: whether the output head shares the embedding's weight.
        std: standard deviation of the weights, normally distributed; norms are as far from their neutral value.
        weight_seed: of the weights.
        targets: ``lora.target_modules``, or ``one:K`` for the K-th kind of linear layer that the model has.
        density: of a mask's chosen weights.
        steps: that parity compares.
        The others are settings of the same name.
    """

    target: str = "host"
    method: str = "prge"
    architecture: str = "llama"
    variant: str | None = None
    vocabulary: int = 40
    hidden: int = 16
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 16
    layers: int = 1
    intermediate: int = 32
    window: int = 8
    tied: bool = False
    std: float = 0.05
    weight_seed: int = 0
    weights: str = "fp32"
    group_size: int | None = None
    activations: str | None = None
    compute: str | None = None
    soc: str | None = None
    max_length: int = 8
    batch_size: int = 1
    gradient_accumulation_steps: int | None = None
    loss: str | None = None
    choices: str | None = None
    labels: int | None = None
    num_queries: int | None = None
    eps: float | None = None
    granularity: str | None = None
    split: str | None = None
    difference: str | None = None
    lora_r: int | None = None
    alpha: float | None = None
    lora_use_rslora: bool | None = None
    dropout: float | None = None
    targets: str | None = None
    lora_layers_to_transform: str | None = None
    train: str | None = None
    perturbations: str | None = None
    optimizer: str | None = None
    momentum: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    horizon: int | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    checkpoint_every: int | None = None
    activation_bits: int | None = None
    perturbation_bits: int | None = None
    estimator: str | None = None
    update: str | None = None
    outliers: float | None = None
    datatypes: str | None = None
    density: float | None = None
    steps: int = 2

    def __repr__(self) -> str:
        """With what differs from the defaults: a line of Python that makes the case."""
        return f"Case({', '.join(f'{key}={value!r}' for key, value in self.changes().items())})"

    def changes(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    def json(self) -> str:
        """One line, for ``--replay``."""
        return json.dumps(self.changes())

    @classmethod
    def from_json(cls, line: str) -> Case:
        """The case that :meth:`json` wrote."""
        return cls(**json.loads(line))


_SETTINGS = {
    name: f"lora.{name.removeprefix('lora_')}"
    for name in ("lora_r", "alpha", "lora_use_rslora", "dropout", "lora_layers_to_transform")
}
_SAME_NAME = (
    *(
        "max_length",
        "batch_size",
        "gradient_accumulation_steps",
        "weights",
        "group_size",
        "activations",
        "compute",
        "soc",
    ),
    *(
        "loss",
        "choices",
        "labels",
        "num_queries",
        "eps",
        "granularity",
        "split",
        "difference",
        "train",
        "optimizer",
    ),
    *("beta1", "beta2", "horizon"),
    *(
        "perturbations",
        "momentum",
        "weight_decay",
        "max_grad_norm",
        "checkpoint_every",
        "estimator",
    ),
    "update",
    *("activation_bits", "perturbation_bits", "outliers", "datatypes"),
)


def settings(case: Case) -> dict[str, str]:
    """What ``--set`` takes, but for ``lora.target_modules`` and ``mask``, which the model's names decide."""
    keys = {**{name: name for name in _SAME_NAME}, **_SETTINGS}
    values = {key: getattr(case, name) for name, key in keys.items()}
    return {key: str(value) for key, value in values.items() if value is not None}


def methods_on(target: str) -> tuple[str, ...]:
    """The methods that are tried on a target."""
    return tuple(name for name in METHODS if name not in _REFUSED.get(target, set()))


@st.composite
def cases(draw: st.DrawFn, target: str, method: str | None = None) -> Case:
    """Cases of a target whose model transformers can make; a few of their settings are refused.

    Args:
        draw: hypothesis's.
        target: one of :data:`TARGETS`.
        method: one of :func:`methods_on`; None draws one of them.
    """
    chosen = draw(st.sampled_from([method] if method else methods_on(target)))
    compilation = draw(_compilation(target, chosen))
    return Case(target=target, method=chosen, **compilation, **draw(_model(compilation, target)))


@st.composite
def _compilation(draw: st.DrawFn, target: str, method: str) -> dict[str, Any]:
    """The settings: those that all methods have, the method's own, the target's."""
    found = {
        "max_length": draw(st.sampled_from([8, 2, 3, 5, 6, 12, 16, 17, 24, 33])),
        "batch_size": draw(st.sampled_from([1, 2, 3, 4, 5, 11])),
        "loss": draw(
            st.sampled_from([None, None, None, None, "choices", "choices", "dpo", "orpo"])
        ),
        "choices": draw(st.sampled_from([None, "mean"])),
        "gradient_accumulation_steps": draw(st.sampled_from([None, None, 2])),
        **draw(_OWN[method]),
        **draw(_PRECISION.get(target, _none())),
    }
    if method in ("prge", "mezo", "fzoo"):
        found["labels"] = draw(st.sampled_from([None, None, 3, 8]))
    if method != "senszoq":
        found |= draw(_adapters(method))
    if method == "mebp" and target in _WITH_DROPOUT:
        found["dropout"] = draw(st.sampled_from([None, None, 0.2]))
    if target in _LAYERS_ALONE:
        found.pop("granularity", None)
    if _has_layers(target, found):
        found |= draw(_MOMENTS)
    if method == "quzo":
        found["weights"] = draw(st.sampled_from(["int8", "int4"]))
    elif found.get("train") == "full":
        found["weights"] = "fp32"
    else:
        found["weights"] = draw(st.sampled_from(["fp32", "int4", "int8"]))
    if found["weights"] == "int4":
        found["group_size"] = draw(st.sampled_from([None, None, 64]))
    if target == "android-npu" and found["weights"] != "fp32":
        whole = found.get("granularity") != "layer" and method in ("prge", "mezo", "fzoo")
        found |= draw(st.sampled_from([{}, {"activations": "int16"}])) if whole else {}
    if target in ("host", "android-cpu"):
        found |= draw(_integer_activations(method, found))
        found |= draw(_rounded_products(method, found))
    return _affordable(target, method, found)


def _has_layers(target: str, found: dict[str, Any]) -> bool:
    """Whether a method that has both kinds of programs, of which alone ``labels`` are drawn, has those of layers."""
    return "labels" in found and (target in _LAYERS_ALONE or found["granularity"] == "layer")


def _affordable(target: str, method: str, found: dict[str, Any]) -> dict[str, Any]:
    """Where activations are rounded parity takes 256 labels a step, whatever a row has: hundreds of short rows."""
    coreml = target == "ios-coreml"
    rounded = found.get("activation_bits") == 8 or (coreml and found.get("compute") != "fp32")
    integers = found["weights"] != "fp32" and found.get("activations") is None
    integers &= found.get("compute") is None and method in ("prge", "mezo", "fzoo")
    rounded |= target in ("host", "android-cpu") and integers
    if rounded or target == "android-npu":
        found["max_length"] = max(found["max_length"], 12)
    if "num_queries" in found and (rounded or coreml):
        found["num_queries"] = min(found["num_queries"], 3)
    return found


def _none() -> st.SearchStrategy[dict[str, Any]]:
    return st.just({})


@st.composite
def _integer_activations(draw: st.DrawFn, method: str, found: dict[str, Any]) -> dict[str, Any]:
    """Zeroth-order methods over quantized weights round inputs to int8 by default."""
    other = method in ("prge", "mezo", "fzoo") and found["weights"] != "fp32"
    return {"activations": draw(st.sampled_from([None, "fp32"]))} if other else {}


@st.composite
def _rounded_products(draw: st.DrawFn, method: str, found: dict[str, Any]) -> dict[str, Any]:
    """Of frozen quantized weights."""
    layers = method in ("mebp", "senszoq", "prge", "mezo", "fzoo")
    frozen = found["weights"] != "fp32" and found.get("train") != "full"
    return {"compute": draw(st.sampled_from([None, None, "bf16"]))} if layers and frozen else {}


_PRECISION: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "android-gpu": st.sampled_from([{}, {"compute": "fp16"}]),
    "ios-coreml": st.sampled_from([{"compute": "fp32"}, {}]),
    "android-npu": st.sampled_from([{}, {}, {"soc": "SM8750"}]),
}


@st.composite
def _adapters(draw: st.DrawFn, method: str) -> dict[str, Any]:
    """Rank 16 is the default, and needs the widest layers."""
    names = [None, "all-linear", *(f"one:{number}" for number in range(6))]
    return {
        "lora_r": draw(st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16])),
        "alpha": draw(st.sampled_from([None, 1.0, 8.0, 32.0])),
        "lora_use_rslora": draw(st.sampled_from([None, None, True])),
        "targets": draw(st.sampled_from(names)),
        "lora_layers_to_transform": None
        if method == "spzo"
        else draw(st.sampled_from([None, None, "last:1"])),
    }


def _in_layers_where_full(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "granularity": "layer"} if found["train"] == "full" else found


_QUERIES = st.sampled_from([1, 2, 3, 4, 8])
_EPS = st.sampled_from([None, 0.1])
_MOMENTS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "optimizer": st.sampled_from(["momentum", "adam"]),
            "beta1": st.sampled_from([None, 0.0, 0.5]),
            "beta2": st.sampled_from([None, 0.0, 0.999]),
            "horizon": st.sampled_from([None, 1, 2]),
        }
    ),
)
_OWN: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "prge": st.fixed_dictionaries(
        {
            "num_queries": _QUERIES,
            "granularity": st.sampled_from([None, None, "layer"]),
            "eps": _EPS,
        }
    ),
    "mezo": st.fixed_dictionaries(
        {
            "num_queries": _QUERIES,
            "granularity": st.sampled_from([None, "layer"]),
            "difference": st.sampled_from([None, "forward"]),
            "train": st.sampled_from([None, None, "full"]),
            "eps": _EPS,
        }
    ).map(_in_layers_where_full),
    "fzoo": st.fixed_dictionaries(
        {
            "num_queries": st.sampled_from([2, 3, 7]),
            "granularity": st.sampled_from([None, None, "layer"]),
            "eps": _EPS,
        }
    ),
    "mebp": st.one_of(
        st.fixed_dictionaries(
            {
                "max_grad_norm": st.sampled_from([None, 0.0, 0.1]),
                "weight_decay": st.sampled_from([None, 0.1]),
                "checkpoint_every": st.sampled_from([None, 2]),
            }
        ),
        st.fixed_dictionaries(
            {
                "optimizer": st.just("sgd"),
                "momentum": st.sampled_from([None, 0.9]),
                "weight_decay": st.sampled_from([None, 0.1]),
            }
        ),
    ),
    "spzo": st.one_of(
        st.fixed_dictionaries(
            {
                "perturbations": st.sampled_from(["1,1", "1,2", "2,1", "2,3"]),
                "split": st.sampled_from([None, "layer:1", "head"]),
                "eps": _EPS,
            }
        ),
        st.fixed_dictionaries(
            {
                "train": st.just("full"),
                "perturbations": st.sampled_from(["1,1", "1,2", "2,1"]),
                "split": st.sampled_from([None, "layer:1"]),
            }
        ),
    ),
    "senszoq": st.fixed_dictionaries(
        {"num_queries": _QUERIES, "density": st.sampled_from([0.01, 0.001, 0.1]), "eps": _EPS}
    ),
    "quzo": st.one_of(
        st.fixed_dictionaries(
            {
                "num_queries": _QUERIES,
                "train": st.sampled_from([None, "lora"]),
                "perturbation_bits": st.sampled_from([None, 2, 8]),
                "estimator": st.sampled_from([None, "q-rge1"]),
                "update": st.sampled_from([None, "summed"]),
            }
        ),
        st.fixed_dictionaries(
            {
                "num_queries": _QUERIES,
                "activation_bits": st.just(8),
                "outliers": st.sampled_from([None, 0.01, 0.1]),
                "datatypes": st.sampled_from([None, "search"]),
            }
        ),
    ),
}


def _architectures(found: dict[str, Any], target: str, method: str | None = None) -> list[str]:
    """Encoders only where methods run layer by layer; they refuse the rest in one place that has a test."""
    staged = _has_layers(target, found) or "max_grad_norm" in found or "optimizer" in found
    staged = staged or "perturbations" in found
    return [*ARCHITECTURES, *(ENCODERS if staged and target in _WITH_ENCODERS else ())]


@st.composite
def _model(draw: st.DrawFn, found: dict[str, Any], target: str) -> dict[str, Any]:
    """Sizes that go together, with adapters no wider than the narrowest layer and groups of whole rows."""
    architecture = draw(st.sampled_from(_architectures(found, target)))
    unit = (found.get("group_size") or 32) if found["weights"] == "int4" else 1
    shapes = _shapes(architecture, unit)
    hidden = draw(st.sampled_from(list(dict.fromkeys(shape[0] for shape in shapes))))
    heads, head_dim = draw(st.sampled_from([shape[1:] for shape in shapes if shape[0] == hidden]))
    least = found.get("lora_r") or 1
    kv_heads = [
        count
        for count in range(1, heads + 1)
        if heads % count == 0 and (count * head_dim >= least or count == heads)
    ]
    sliding = architecture in SLIDING
    return {
        "architecture": architecture,
        "variant": draw(st.sampled_from([None, None, *VARIANTS.get(architecture, ())])),
        "vocabulary": draw(st.sampled_from([40, 64, 41, 97, 131, 320, 333, 500, 700])),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": draw(st.sampled_from(kv_heads)) if architecture in SHARED_KEYS else heads,
        "head_dim": head_dim,
        "layers": draw(st.sampled_from([1, 2, 3] if "perturbations" not in found else [2, 1, 3])),
        "intermediate": draw(
            st.sampled_from([64, 128, 192] if unit > 1 else [32, 16, 20, 44, 64, 100, 128, 160])
        ),
        "window": draw(st.sampled_from([8, 2, 3, 5, 11])) if sliding else 8,
        "tied": draw(st.booleans()),
        "std": draw(st.sampled_from([0.05, 0.02, 0.035, 0.07, 0.1, 0.14, 0.2])),
        "weight_seed": draw(st.integers(0, 99)),
    }


def _shapes(architecture: str, unit: int) -> list[tuple[int, int, int]]:
    """Width of the model, heads and their size: the narrowest models first, then the fewest heads."""
    step = 1 if architecture in _ANY_SIZE else _ROTATED_SHARE.get(architecture, 2)
    sizes = [size for size in (*range(4, 33), 40, 48, 64) if size % step == 0]
    # Falcon's grouped products and phi's rotated quarter work for any size; widths are those of layers' inputs.
    found = [
        (hidden, heads, size)
        for heads in _HEADS
        for size in sizes
        for hidden in (_WIDTHS if architecture in ANY_HEAD_DIM else (heads * size,))
        # Some configurations ask for a width that heads divide, whatever the heads' size.
        if 16 <= hidden <= 128 and hidden % heads == 0 and 8 <= heads * size <= 192
        if hidden % unit == 0 and (heads * size) % unit == 0
    ]
    return sorted(found, key=lambda shape: (shape[0], shape[1], abs(shape[2] - 16)))
