"""A call that generates: a prompt and options as the library takes them, callbacks, and what came of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from zoexport.session import structs
from zoexport.session.types import STOPS, Generation, OnText, OnToken, Sampling


class GenerationCall:
    """The structs of one ``zo_session_generate``; they must live as long as the call.

    Args:
        prompt: tokens, or a text. messages: roles and contents, in place of a prompt.
        on_token, on_text: see :meth:`zoexport.session.Session.generate`, which has the other arguments too.
    """

    def __init__(
        self,
        prompt: str | Sequence[int],
        messages: Sequence[tuple[str, str]],
        *,
        max_tokens: int,
        stop_tokens: Sequence[int] | None,
        stop: Sequence[str],
        sampling: Sampling,
        untrained: bool,
        adapter: str | None,
        keep: bool,
        sliding: bool,
        on_token: OnToken | None,
        on_text: OnText | None,
    ) -> None:
        self.raised: BaseException | None = None
        self._found: list[int] = []
        self._on_token = on_token
        self._on_text = on_text
        self.on_token = structs.ON_TOKEN(self._token)
        text = _utf8(prompt) if isinstance(prompt, str) else None
        tokens: Sequence[int] = () if isinstance(prompt, str) else prompt
        # A pointer to none is no null pointer, which would be the bundle's.
        given = stop_tokens or ()
        stops = [_utf8(one) for one in stop]
        self.options = structs.GenerateOptions(
            ctypes.sizeof(structs.GenerateOptions),
            max_tokens,
            (ctypes.c_int64 * len(tokens))(*tokens),
            len(tokens),
            None if stop_tokens is None else (ctypes.c_int64 * max(len(given), 1))(*given),
            len(given),
            sampling.temperature,
            sampling.top_k,
            int(untrained),
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.seed,
            text,
            0 if text is None else len(text),
            structs.messages(messages),
            len(messages),
            (ctypes.c_char_p * len(stops))(*stops),
            len(stops),
            structs.ON_TEXT(self._text) if on_text is not None else structs.ON_TEXT(),
            None if adapter is None else _utf8(adapter),
            int(keep),
            int(sliding),
        )
        self.result = structs.sized(structs.Generation)

    def _told(self, call: Callable[[Any], bool | None], given: Any) -> int:
        try:
            return int(bool(call(given)))
        except BaseException as error:  # it cannot pass through C: kept until the call returns
            self.raised = error
            return 1

    def _token(self, _user: int, token: int) -> int:
        self._found.append(token)
        return 0 if self._on_token is None else self._told(self._on_token, token)

    def _text(self, _user: int, text: int, size: int) -> int:
        assert self._on_text is not None
        return self._told(self._on_text, ctypes.string_at(text, size).decode())

    def generation(self) -> Generation:
        """What came of it; an exception of a callback is raised as itself."""
        if self.raised is not None:
            raise self.raised
        made = self.result
        text = ctypes.string_at(made.text, made.text_size).decode() if made.text else None
        return Generation(
            tuple(self._found),
            STOPS[made.stop],
            made.prompt_tokens,
            made.prefill_seconds,
            made.decode_seconds,
            made.anonymous_bytes,
            text,
            made.kept_tokens,
        )


def _utf8(text: str) -> bytes:
    # Half a surrogate pair is refused by the library, with its message.
    return text.encode("utf-8", "surrogatepass")
