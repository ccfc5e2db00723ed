"""Examples as transformers' tokenizers and chat templates give them, for what the session reads of valid data files."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers

from zoexport.data.examples import IGNORED, Candidate, Example

Split = tuple[list[int], list[int]]
"""The tokens that are only read, and those that are learned."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """A data file; ``shortened`` counts the examples that did not fit."""

    examples: list[Example]
    shortened: int


def tokenize_file(
    path: Path, folder: Path, max_length: int, *, masked: bool = False, ends: Sequence[int] = ()
) -> Examples:
    """Tokenize a JSON Lines file with the tokenizer of a folder; the first of ``ends`` is appended."""
    auto: Any = transformers.AutoTokenizer
    tokenizer = auto.from_pretrained(str(folder), local_files_only=True)
    examples, shortened = [], 0
    for line in path.read_text("utf-8").splitlines():
        if not line.strip():
            continue
        content = json.loads(line)
        sequences = _sequences(content, tokenizer, masked=masked, ended=bool(ends))
        chat = "messages" in content or isinstance(content.get("chosen"), list)
        if ends and not (masked or chat or "choices" in content):
            sequences = [
                (first, text if text[-1] in ends else [*text, ends[0]]) for first, text in sequences
            ]
        made = _at_masks if masked else _after_prompts
        candidates, short = made(sequences, max_length, tokenizer)
        if "messages" in content:
            candidates = _earlier(content, candidates, tokenizer, max_length)
            whole = sum(
                map(len, _sequences(content, tokenizer, masked=masked, ended=bool(ends))[0])
            )
            short = whole > max_length
        target = content["choices"].index(content["completion"]) if "choices" in content else 0
        examples.append(Example(candidates, target))
        shortened += short
    return Examples(examples, shortened)


def _earlier(
    content: dict[str, Any], candidates: list[Candidate], tokenizer: Any, max_length: int
) -> list[Candidate]:
    """A conversation with every answer learned, where the template writes earlier ones as it writes last ones."""
    messages = content["messages"]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    spans = []
    for i, message in enumerate(messages):
        if i == 0 or message["role"] != "assistant":
            continue
        if i + 1 == len(messages):
            break
        begin = tokenizer.apply_chat_template(
            messages[:i], tokenize=False, add_generation_prompt=True
        )
        end = tokenizer.apply_chat_template(messages[: i + 1], tokenize=False)
        if not (text.startswith(begin) and text.startswith(end)):
            return candidates
        spans.append((len(begin), len(end)))
    if not spans:
        return candidates
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens, places = encoded["input_ids"], encoded["offset_mapping"]
    prompt, _ = _conversation(messages, tokenizer)
    learned = [
        index >= len(prompt) or any(begin < place[1] <= end for begin, end in spans)
        for index, place in enumerate(places)
    ]
    (candidate,) = candidates
    start = len(prompt) - min(len(prompt), _room([(prompt, tokens[len(prompt) :])], max_length))
    known = learned[start:][: len(candidate.tokens)]
    assert candidate.tokens == tokens[start:][: len(candidate.tokens)]
    following = zip(candidate.tokens[1:], known[1:], strict=True)
    labels = [token if one else IGNORED for token, one in following]
    return [Candidate(candidate.tokens, [*labels, IGNORED])]


def _sequences(
    content: dict[str, Any], tokenizer: Any, *, masked: bool, ended: bool
) -> list[Split]:
    def encode(text: str, *, special: bool, behind: bool = True) -> list[int]:
        tokens: list[int] = tokenizer(text, add_special_tokens=special)["input_ids"]
        return tokens if behind else tokens[: len(tokens) - _written_behind(tokenizer)]

    if "text" in content:
        return [([], encode(content["text"], special=True, behind=not ended))]
    if "messages" in content:
        return [_conversation(content["messages"], tokenizer)]
    if isinstance(content.get("chosen"), list):
        before = content.get("prompt", [])
        answers = (content["chosen"], content["rejected"])
        return [_conversation([*before, *answer], tokenizer) for answer in answers]
    prompt = encode(content["prompt"], special=True, behind=masked)
    pair = [content[key] for key in ("chosen", "rejected") if key in content]
    completions = pair or content.get("choices", [content.get("completion")])
    if masked:
        return [(prompt, encode(one, special=False)) for one in completions]
    found = []
    for one in completions:
        whole = encode(content["prompt"] + one, special=True, behind=False)
        same = itertools.takewhile(lambda two: two[0] == two[1], zip(prompt, whole, strict=False))
        border = len(list(same))
        apart = border == 0 and prompt
        found.append(
            (prompt, encode(one, special=False)) if apart else (whole[:border], whole[border:])
        )
    return found


def _written_behind(tokenizer: Any) -> int:
    """How many tokens the tokenizer writes behind a text."""
    bare, whole = (
        tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True)
    )
    added = len(whole) - len(bare)
    return added - next(n for n in range(added + 1) if whole[n : n + len(bare)] == bare)


def _conversation(messages: list[dict[str, str]], tokenizer: Any) -> Split:
    """A token that reaches across the begin of the last turn belongs to it."""
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    before = tokenizer.apply_chat_template(
        messages[:-1], tokenize=False, add_generation_prompt=True
    )
    if not text.startswith(before):  # it opens a thought that the conversation does not have
        other = [*messages[:-1], {**messages[-1], "content": "\ue0ff"}]
        before = _common(text, tokenizer.apply_chat_template(other, tokenize=False))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens, spans = encoded["input_ids"], encoded["offset_mapping"]
    start = next((i for i, (_, end) in enumerate(spans) if end > len(before)), len(tokens))
    return tokens[:start], tokens[start:]


def _common(first: str, second: str) -> str:
    same = itertools.takewhile(lambda two: two[0] == two[1], zip(first, second, strict=False))
    return "".join(one for one, _ in same)


def _room(sequences: list[Split], max_length: int) -> int:
    """Tokens of a prompt that fit; a choice of one token needs one."""
    lengths = [len(completion) for _, completion in sequences]
    return max(max_length - max(lengths), int(min(lengths) == 1))


def _after_prompts(sequences: list[Split], max_length: int, _: Any) -> tuple[list[Candidate], bool]:
    room = _room(sequences, max_length)
    candidates, shortened = [], False
    for prompt, completion in sequences:
        kept = prompt[max(len(prompt) - room, 0) :]
        tokens = (kept + completion)[:max_length]
        shortened |= len(tokens) < len(prompt) + len(completion)
        candidates.append(Candidate.predicting(tokens, len(kept)))
    return candidates, shortened


def _at_masks(
    sequences: list[Split], max_length: int, tokenizer: Any
) -> tuple[list[Candidate], bool]:
    """A mask for each token of the completion; tokens are dropped from the start, then from the end."""
    prompt = sequences[0][0]
    mask = tokenizer.mask_token_id
    place = prompt.index(mask)
    special = {*tokenizer.all_special_ids} - {mask}
    before, after = prompt[:place], prompt[place + 1 :]
    lead = len(list(itertools.takewhile(special.__contains__, before)))
    close = len(list(itertools.takewhile(special.__contains__, reversed(after))))
    longest = max(len(completion) for _, completion in sequences)
    excess = max(len(before) + len(after) - (max_length - longest), 0)
    first = min(excess, len(before) - lead)
    rest = len(after) - close - (excess - first)
    before = before[:lead] + before[lead + first :]
    after = after[:rest] + after[len(after) - close :]
    candidates = [
        Candidate(
            [*before, *[mask] * len(completion), *after],
            [*[IGNORED] * len(before), *completion, *[IGNORED] * len(after)],
        )
        for _, completion in sequences
    ]
    return candidates, excess > 0
