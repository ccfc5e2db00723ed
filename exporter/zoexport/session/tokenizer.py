"""The tokenizer of a bundle, as the session has it: text to tokens and back without transformers (docs/text.md)."""

from __future__ import annotations

import array
import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from zoexport.session import abi, structs
from zoexport.session.handles import Handle
from zoexport.session.support import keys_of, open_options

_SURROUNDING = 64
"""Tokens that a tokenizer may write around a text, at most."""


class Tokenizer(Handle):
    """An open tokenizer. Use it in a ``with`` statement, from one thread at a time."""

    def __init__(self, handle: int) -> None:
        super().__init__(handle, what="tokenizer", free="zo_tokenizer_close")

    @classmethod
    def open(
        cls,
        bundle: Path,
        *,
        verify: bool = True,
        trust: Iterable[str | os.PathLike[str]] | None = None,
    ) -> Tokenizer:
        """Open the tokenizer of a bundle.

        Args:
            bundle: the bundle's folder.
            verify: whether its file is hashed first; sizes are always compared.
            trust: as for :meth:`zoexport.session.Session.open`.

        Raises:
            BundleError: no bundle, one without a tokenizer or with one of a kind that is not supported, or one that
                is altered or signed by none of the keys.
        """
        options = open_options(keys_of(trust), verify=verify)
        handle = ctypes.c_void_p()
        abi.call(
            "zo_tokenizer_open", abi.path_bytes(bundle), ctypes.byref(options), ctypes.byref(handle)
        )
        assert handle.value is not None
        return cls(handle.value)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of a text; ``special``: with those that the tokenizer writes around it.

        Raises:
            DataError: the text is too long, or has half a surrogate pair.
        """
        given = text.encode("utf-8", "surrogatepass")
        tokens = array.array("q", bytes(8 * (len(given) + _SURROUNDING)))
        while True:
            count = ctypes.c_size_t(len(tokens))
            abi.call(
                "zo_tokenizer_encode",
                self.handle,
                given,
                len(given),
                int(special),
                abi.address(tokens),
                ctypes.byref(count),
            )
            if count.value <= len(tokens):
                return tokens[: count.value].tolist()
            tokens = array.array("q", bytes(8 * count.value))

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of tokens; without ``special`` the special ones are left out.

        Raises:
            DataError: a number that no token has.
        """
        given = array.array("q", tokens)

        def fill(room: ctypes.Array[ctypes.c_char], size: ctypes.c_size_t) -> None:
            where = abi.address(given) if given else None
            abi.call(
                *("zo_tokenizer_decode", self.handle, where, len(given), int(special)),
                *(room, ctypes.byref(size)),
            )

        return _text(fill, 16 * len(given) + 64)

    def chat(self, messages: Sequence[tuple[str, str]], *, reply: bool = True) -> str:
        """A conversation as the model's chat template writes it, to be encoded without ``special``.

        Args:
            messages: roles and contents.
            reply: whether it ends where the assistant's answer begins.

        Raises:
            BundleError: the bundle has no form of conversations. DataError: an order of roles that it lacks.
        """
        packed = structs.messages(messages)

        def fill(room: ctypes.Array[ctypes.c_char], size: ctypes.c_size_t) -> None:
            abi.call(
                *("zo_tokenizer_chat", self.handle, packed, len(packed), int(reply)),
                *(room, ctypes.byref(size)),
            )

        return _text(fill, 4096)

    def __del__(self) -> None:
        self.close()


def _text(fill: Callable[[ctypes.Array[ctypes.c_char], ctypes.c_size_t], None], room: int) -> str:
    """What a function of the library writes, with as much room as it needs."""
    while True:
        text = ctypes.create_string_buffer(room)
        size = ctypes.c_size_t(room)
        fill(text, size)
        if size.value <= room:
            return text.raw[: size.value].decode()
        room = size.value
