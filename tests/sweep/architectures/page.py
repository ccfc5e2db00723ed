"""Page of the documentation with the table of architectures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.sweep.architectures.attempt import COLUMNS, PASSED, Outcome

KNOWN_AS = {
    "bloom": "BLOOM-560M",
    "cohere2": "Command R7B",
    "deepseek_v2": "DeepSeek-V2-Lite",
    "deepseek_v3": "DeepSeek-V3, DeepSeek-R1",
    "deepseek_v32": "DeepSeek-V3.2",
    "ernie4_5": "ERNIE-4.5-0.3B",
    "ernie4_5_moe": "ERNIE-4.5-21B-A3B",
    "exaone4": "EXAONE-4.0-1.2B",
    "falcon": "Falcon-7B",
    "falcon_h1": "Falcon-H1-0.5B",
    "falcon_mamba": "Falcon Mamba 7B",
    "gemma": "Gemma 2B",
    "gemma2": "Gemma 2 2B",
    "gemma3": "Gemma 3 4B",
    "gemma3_text": "Gemma 3 1B",
    "gemma3n_text": "Gemma 3n E2B",
    "glm4_moe": "GLM-4.5-Air",
    "gpt2": "GPT-2",
    "gpt_neox": "Pythia",
    "gpt_oss": "gpt-oss-20b",
    "granite": "Granite 3.3 2B",
    "granitemoehybrid": "Granite 4.0 H",
    "jamba": "Jamba",
    "jetmoe": "JetMoE-8B",
    "kimi_linear": "Kimi-Linear-48B-A3B",
    "lfm2": "LFM2-350M",
    "lfm2_moe": "LFM2-8B-A1B",
    "llama": "Llama 3.2 1B, SmolLM2, TinyLlama",
    "llama4_text": "Llama 4 Scout",
    "mamba": "Mamba-130M",
    "mistral": "Mistral 7B",
    "mixtral": "Mixtral 8x7B",
    "nemotron_h": "Nemotron-H-8B",
    "olmo2": "OLMo 2 1B",
    "olmoe": "OLMoE-1B-7B",
    "opt": "OPT-125M",
    "phi": "Phi-2",
    "phi3": "Phi-4-mini, Phi-3.5-mini",
    "phi4_multimodal": "Phi-4-multimodal",
    "phimoe": "Phi-3.5-MoE",
    "qwen2": "Qwen2.5-0.5B",
    "qwen2_moe": "Qwen1.5-MoE-A2.7B",
    "qwen3": "Qwen3-0.6B",
    "qwen3_moe": "Qwen3-30B-A3B",
    "qwen3_next": "Qwen3-Next-80B-A3B",
    "rwkv": "RWKV-4",
    "smollm3": "SmolLM3-3B",
    "stablelm": "StableLM 2 1.6B",
    "starcoder2": "StarCoder2-3B",
    "zamba2": "Zamba2-1.2B",
}
"""Well-known models by type."""

_LENGTH = 120
_PAGE = """# Architectures

On this page you find out what zoexport does with a model, by its `model_type` in `config.json`. The
table lists the {count} causal language model types of transformers {version}. Each is tried as a
tiny model with random weights.

| column | what runs | passed |
| --- | --- | --- |
| mebp | `compile --target host --method mebp`, `weights=fp32`, then two steps of `parity` | {mebp} |
| prge | the same with `--method prge` | {prge} |
| int4 | the same with `--method mebp` and `weights=int4` | {int4} |
| generate | `compile` with `generate`; 8 greedy tokens are those of transformers | {generate} |
| GGUF | the adapter has names for llama.cpp (`adapter export --format gguf`) | {GGUF} |
| ios-mlx | `compile --target ios-mlx --method mebp`, which runs the programs on the CPU | {ios-mlx} |

- **passed**: the result agrees with PyTorch. Adapters are on the query and value projections, or on
  all linear layers if the projections cannot be found by name.
- **refused**: the command ends with one error message, and no bundle is written.
- **slow**: the tiny model takes more than 5 minutes of CPU time.
- **not tried**: transformers cannot make the tiny model on this machine, or cannot generate with it.
- **FAILED**: a defect of zoexport.
- **not run**: there is no result yet. Cells may come from different commits.

`python -m tests.sweep.architectures RESULTS --page docs/results/architectures.md` runs the missing
cells and writes this page.

| model type | known as | {columns} | reason |
| --- | --- |{lines} --- |
{rows}
"""


def statuses(page: Path, column: str) -> dict[str, str]:
    """Return the status of each type in a column of the page."""
    lines = page.read_text("utf-8").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `")]
    place = 3 + COLUMNS.index(column)
    return {row[1].strip().strip("`"): row[place].strip() for row in rows if len(row) > place + 1}


def page_of(found: Mapping[tuple[str, str], Outcome], model_types: Iterable[str]) -> str:
    """Return the page with a row for each type."""
    import transformers

    names = sorted(model_types)
    return _PAGE.format(
        version=transformers.__version__,
        count=len(names),
        **{column: _share(found.values(), column) for column in COLUMNS},
        columns=" | ".join(COLUMNS),
        lines=" --- |" * len(COLUMNS),
        rows="\n".join(_row(name, [found.get((name, one)) for one in COLUMNS]) for name in names),
    )


def _share(outcomes: Iterable[Outcome], column: str) -> str:
    tried = [one.status for one in outcomes if one.column == column]
    return f"{tried.count(PASSED)} of {len(tried)}"


def _status(outcome: Outcome | None) -> str:
    return "not run" if outcome is None else outcome.status


def _row(name: str, outcomes: list[Outcome | None]) -> str:
    reasons: dict[str, list[str]] = {}
    for one in outcomes:
        if one is not None and one.reason:
            reasons.setdefault(_short(one.reason), []).append(one.column)
    said = "; ".join(f"{', '.join(columns)}: {text}" for text, columns in reasons.items())
    cells = [f"`{name}`", KNOWN_AS.get(name, ""), *map(_status, outcomes), said]
    return f"| {' | '.join(cells)} |"


def _short(reason: str) -> str:
    """Shorten a reason, without the parts that differ by machine."""
    text = re.sub(r"(/\w+)*/zoexport-architectures-\w+", "", " ".join(reason.split()))
    text = re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", text).replace("|", "/").replace("<", "")
    text = re.sub(r"^model \S+: |^\[\w+\] |^programs? [^:]*: ", "", text)
    text = text.removeprefix("found ").split("; expected ")[0]
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH].rsplit(' ', 1)[0]} ..."
