"""Model of lm-evaluation-harness that runs a bundle in the C++ session."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from zoexport.core.errors import BundleError, ConfigError
from zoexport.run.states import attach
from zoexport.session import Bundle, Dataset, Sampling, Tokenizer

_log = logging.getLogger(__name__)
_NO_LABEL = -100
_GROUP = 64
"""Contexts that are scored together: the session sorts their sequences by length into full batches."""
_MAX_NEW_TOKENS = 256
"""Generated tokens if a task gives no number, as for lm_eval's own models."""
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")

Request = tuple[Any, list[int], list[int]]
"""Key in lm_eval's cache, or None; tokens of the context; tokens of the continuation."""


@register_model("zoexport")
class ZoexportLM(TemplateLM):
    """A bundle with its initial or trained weights.

    Contexts longer than the bundle's ``max_length`` are truncated from the left with a warning, as
    lm_eval's own models do; a continuation that does not fit is an error.

    Args:
        bundle: folder of the bundle, compiled for a causal language model.
        run: folder of a training state; None: the bundle's initial weights.
        last: use the weights of the last step, even if the run keeps its best ones.
        engine: engine of the bundle to use; None: the bundle's own.
        prefix_token_id: token before texts without a context; None: the tokenizer's BOS, or its EOS.
        batch_size, max_batch_size, device: of lm_eval's command line; ignored, as the bundle
            determines the size of a batch and the device.

    Raises:
        ZoExportError: the bundle or the run cannot be used.
    """

    def __init__(
        self,
        bundle: str,
        run: str | None = None,
        *,
        last: bool = False,
        engine: str | None = None,
        prefix_token_id: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        self.bundle = Bundle.open(str(bundle), engine=engine)
        if "bidirectional" in self.bundle.manifest:
            raise BundleError(
                f"bundle {bundle}",
                found="a masked language model",
                expected="a causal one, which lm_eval can score",
                fix="Evaluate it with 'zoexport eval'.",
            )
        # Named like those of lm_eval's own models, which tasks may look at.
        self.tokenizer = Tokenizer.open(self.bundle.path, trust=self.bundle.trust)
        self.session = self.bundle.session()
        if run is not None:
            attach(self.session, Path(str(run)), last=last)
        self._prefix = self._prefix_token() if prefix_token_id is None else int(prefix_token_id)
        self._prefix_text = self.tokenizer.decode([self._prefix], special=True)

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence that the bundle scores."""
        return self.session.info.max_length

    @property
    def eot_token_id(self) -> int:
        """Token that ends a text."""
        text = self.bundle.manifest.get("text", {})
        return int(text.get("eos_token", self._prefix))

    @property
    def prefix_token_id(self) -> int:
        """Token before texts without a context."""
        return self._prefix

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Tokenize a text, with the tokenizer's special tokens unless it begins with one already."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self._prefix_text)
        return self.tokenizer.encode(string, special=add_special_tokens)

    # ---- log-likelihoods ---------------------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the greedy one."""
        found: dict[int, tuple[float, bool]] = {}
        _warn_of_long(map(self._length, requests), self.max_length + 1, "max_length")
        # Continuations of one context are one example, so that the session can share its sequences.
        contexts: dict[tuple[int, ...], list[int]] = {}
        for number, (_key, context, _continuation) in enumerate(requests):
            contexts.setdefault(tuple(context), []).append(number)
        longest = sorted(contexts.values(), key=lambda group: -self._length(requests[group[0]]))
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Scoring") as bar:
            for part in _parts(longest, _GROUP):
                with Dataset() as dataset:
                    for group in part:
                        dataset.add([self._candidate(*requests[one][1:]) for one in group])
                    scores = self.session.score(dataset)
                for group, example in zip(part, scores, strict=True):
                    for number, score in zip(group, example, strict=True):
                        found[number] = (score.logprob, score.greedy)
                        key = requests[number][0]
                        if key is not None:
                            self.cache_hook.add_partial("loglikelihood", key, found[number])
                    bar.update(len(group))
        return [found[number] for number in range(len(requests))]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihood of whole texts, in windows of ``max_length`` tokens."""
        windows: list[Request] = []
        counts = []
        for request in requests:
            found = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            before = len(windows)
            windows += [(None, *make_disjoint_window(window)) for window in found]
            counts.append(len(windows) - before)
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        totals = []
        for request, count in zip(requests, counts, strict=True):
            totals.append(sum(next(scores)[0] for _ in range(count)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def _candidate(
        self, context: list[int], continuation: list[int]
    ) -> tuple[list[int], list[int]]:
        """Return tokens and labels of a request, truncated from the left to ``max_length``.

        Raises:
            ConfigError: the continuation alone is longer.
        """
        most = self.max_length
        if len(continuation) > most:
            raise ConfigError(
                "max_length of the bundle",
                found=f"{most}, and a continuation of {len(continuation)} tokens",
                expected=f"at least {len(continuation)} for this task",
                fix=f"Compile the bundle with --set max_length={len(continuation)} or more.",
            )
        tokens = [*context, *continuation]
        tokens = tokens[-(most + 1) :][:-1]
        return tokens, [_NO_LABEL] * (len(tokens) - len(continuation)) + continuation

    @staticmethod
    def _length(request: Request) -> int:
        return len(request[1]) + len(request[2])

    # ---- generation --------------------------------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return a completion of each context up to a stop string."""
        texts: list[str] = []
        excesses: list[int] = []
        for request in tqdm(requests, disable=disable_tqdm, desc="Generating"):
            context, given = request.args
            options = dict(normalize_gen_kwargs(given, _MAX_NEW_TOKENS))
            sampling = self._sampling(options)
            until, count = options.pop("until"), options.pop("max_gen_toks")
            if options:
                raise ConfigError(
                    "generation_kwargs",
                    found=", ".join(sorted(options)),
                    expected="until, max_gen_toks, do_sample, " + ", ".join(_SAMPLING),
                    fix="Leave the others out of the task or of --gen_kwargs.",
                )
            prompt = self.tok_encode(context) or [self.prefix_token_id]
            room = self._room(len(prompt), count)
            excesses.append(len(prompt) - room)
            made = self.session.generate(
                prompt[-room:],
                max_new_tokens=count,
                stop=[one for one in until if one],
                sampling=sampling,
            )
            text = self.tokenizer.decode(made.tokens) if made.text is None else made.text
            self.cache_hook.add_partial("generate_until", request.args, text)
            texts.append(text)
        _warn_of_long(excesses, 0, "generate.context")
        return texts

    @staticmethod
    def _sampling(options: dict[str, Any]) -> Sampling | None:
        """Take the sampling parameters out of ``options``; None for greedy decoding."""
        given = {name: options.pop(name) for name in _SAMPLING if name in options}
        if not options.pop("do_sample"):
            given.pop("temperature", None)
            return Sampling(repetition_penalty=given.get("repetition_penalty", 1.0))
        return Sampling(**{"temperature": 1.0, **given})

    def _room(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """Return how many tokens of a prompt fit beside its completion.

        Raises:
            ConfigError: the completion alone is as long as the bundle's context.
        """
        # If the bundle has no programs for generation, the session explains what to do.
        unlimited = prompt_tokens + max_new_tokens
        context = int(self.bundle.manifest.get("generate", {}).get("context", unlimited))
        if max_new_tokens >= context:
            raise ConfigError(
                "max_gen_toks",
                found=str(max_new_tokens),
                expected=f"fewer than the bundle's context of {context} tokens",
                fix=f"Pass --gen_kwargs max_gen_toks={context // 2}, or compile with a larger "
                "generate.context.",
            )
        return context - max_new_tokens

    # ---- conversations -----------------------------------------------------------------------------------------------

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Format a conversation; without ``add_generation_prompt``, leave its last message open."""
        if add_generation_prompt:
            return self.tokenizer.chat(chat_history)
        *before, last = chat_history
        return self.tokenizer.chat(before) + last["content"]

    @property
    def tokenizer_name(self) -> str:
        """Key of lm_eval's cache of requests."""
        return f"zoexport__{self.bundle.id}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the template, which lm_eval records with its results."""
        if chat_template is False:
            return None
        chat = self.bundle.manifest.get("text", {}).get("chat", {})
        return str(chat["template"]) if "template" in chat else None

    def _prefix_token(self) -> int:
        """Return the tokenizer's BOS, or its EOS."""
        about = self.bundle.manifest.get("text", {})
        if bos := about.get("chat", {}).get("tokens", {}).get("bos_token"):
            (token,) = self.tokenizer.encode(bos, special=False)
            return token
        # Tokenizers without a chat template show their BOS only in what they write around a text.
        around = self.tokenizer.encode("")
        if not around and "eos_token" not in about:
            raise BundleError(
                f"bundle {self.bundle.path}",
                found="a tokenizer without BOS and EOS",
                expected="a token to put before texts without a context",
                fix="Pass prefix_token_id in --model_args.",
            )
        return around[0] if around else int(about["eos_token"])


def _warn_of_long(lengths: Iterable[int], most: int, setting: str) -> None:
    """Warn once about requests that are truncated from the left."""
    lengths = list(lengths)
    if longer := [length for length in lengths if length > most]:
        _log.warning(
            "%d of %d requests are longer than the bundle's %s: up to %d tokens at their start are left out.",
            *(len(longer), len(lengths), setting, max(longer) - most),
        )


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
