"""The names of a program's inputs and outputs in a Core ML package."""

from __future__ import annotations

import re

#: Words of the language that ML Programs are written in; coremltools renames what is called so.
_RESERVED = {
    *("any", "bool", "dict", "false", "func", "list", "program", "state", "string", "tensor"),
    *("true", "tuple", "bf16", "fp16", "fp32", "fp64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}


def feature_name(name: str) -> str:
    """The name in a package of the input or output ``name``: ASCII letters, digits and underscores.

    It begins with a letter and is no reserved word, so coremltools keeps it as it is. Two names may give the same
    one; whoever names the values of a program has to refuse that.
    """
    plain = re.sub("[^A-Za-z0-9_]", "_", name)
    return plain if plain[:1].isalpha() and plain not in _RESERVED else f"v_{plain}"


def result_name(name: str) -> str:
    """The name in a package of the output ``name``, which may be an input's too: there they must differ."""
    return feature_name(f"out.{name}")
