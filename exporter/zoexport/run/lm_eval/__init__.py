"""Bundles as models of lm-evaluation-harness (the package ``lm_eval``), scored by the C++ session.

    lm_eval --model zoexport --model_args bundle=smollm2.bundle,run=run --tasks arc_easy

This needs a version of lm_eval with plugins: it finds this module by the entry point ``lm_eval.models``. Other
versions take the same arguments as ``python -m zoexport.run.lm_eval --model zoexport ...``. In Python, import this
module before ``lm_eval.simple_evaluate(model="zoexport", ...)``.
"""

from __future__ import annotations

from zoexport.core.errors import ConfigError

try:
    import lm_eval.models  # noqa: F401 - lm_eval registers its own models only into an empty registry
except ImportError as error:
    raise ConfigError(
        "lm_eval",
        found=f"no {error.name}",
        expected="lm-evaluation-harness",
        fix="Install it: pip install 'zoexport[eval]'.",
    ) from error

from zoexport.run.lm_eval.model import ZoexportLM

__all__ = ["ZoexportLM"]
