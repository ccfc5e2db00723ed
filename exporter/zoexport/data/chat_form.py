"""A chat template in pieces that need no template language, for sessions: they are in the manifest (docs/text.md).

A template is a program; but most write, between one message's content and the next, a text that depends on the two
roles alone, and the content itself or a simple part of it. So the template is run on conversations of marks, the texts
between these are read off, and the pieces are then compared with the template on conversations that no one would write.
Where one of them differs the template is not taken apart, and the reason is kept instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Messages = list[tuple[str, str]]
"""Roles and contents."""

_Between = dict[str, dict[str, str]]
_ANSWER = "answer"
"""Here the role of an answer with which a conversation ends, where it is read off by itself."""
DATE_PLACE = "\ue000"
"""Stands for the date in a piece."""
_DATE = re.compile(f"{DATE_PLACE}([^\ue001]*)\ue001")
_DATE_MACRO = f"{{% macro strftime_now(form) %}}{DATE_PLACE}{{{{ form }}}}\ue001{{% endmacro %}}"
_DIRECTIVES = re.compile(r"(?:[^%]|%[aAbBdHjmMSyY%])*")
"""Of a date's format, those that a session knows."""
_THOUGHT = "</think>"
_PYTHON_BLANKS = "\x1c\x1d\x1e\x1f"
_MOST_TURNS = 5
_LONGEST = 2 * _MOST_TURNS
_CONVERSATIONS = 100
_NO_THOUGHT = "<think>\n\n</think>\n\n"


def _thoughtful(content: str) -> str:
    thought, _, answer = content.rpartition(_THOUGHT)
    thought = thought.partition(_THOUGHT)[0].rpartition("<think>")[2].strip("\n")
    return f"<think>\n{thought}\n</think>\n\n" + answer.lstrip("\n")


_CONTENTS: dict[str, Callable[[str], str]] = {
    "whole": lambda content: content,
    "stripped": str.strip,
    "answer": lambda content: (
        content.rpartition(_THOUGHT)[2].lstrip("\n") if _THOUGHT in content else content
    ),
    "thought": _thoughtful,
}
"""What templates write of a content, by the manifest's word for it."""
_THOUGHTS: dict[str, Callable[[str, str], str]] = {
    "answer": lambda content, thought: content,
    "thought": lambda content, thought: _thoughtful(f"<think>\n{thought}\n{_THOUGHT}\n\n{content}"),
}
"""The same of a content and a thought that is given beside it."""
_OF_TURNS = ("whole", "stripped", "answer")
_SAMPLES = [" \n\t x\u00a0 \n", "\n\nx\n", f"think{_THOUGHT}\n\nx y"]
_PARTS = [
    *(
        "Hello",
        "what is",
        "2 + 2?",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "naïve café",
        "你好",
        "🙂",
        "{{ x }}",
        "{% if %}",
    ),
    *("<think>", "<think>\n", "\n</think>\n\n", _THOUGHT),
    *("\u00a0", "\u3000", "'quotes'", '"', "\\n", "<tag>", "a" * 40, ".", "[1]", _PYTHON_BLANKS),
]


class _Unfit(Exception):
    """The template is not of this form; the message says how it is not."""


@dataclasses.dataclass(frozen=True)
class LastAnswer:
    """What a template writes of the answer that a conversation ends with, where that is not what it writes of others.

    Attributes:
        before: what is written before it, by what stands first.
        content: what is written of its content.
        end: what is written behind it.
    """

    before: dict[str, str]
    content: str
    end: str


@dataclasses.dataclass(frozen=True)
class ChatForm:
    """A chat template in pieces.

    Attributes:
        between: what is written between what stands first (``begin`` or a role) and what follows (a role, ``end``, or
            ``reply`` where the assistant's answer is to be generated).
        content: by role, what is written of a message's content.
        date: the format of the date, where there is one.
        answer: the answer with which a conversation ends, where it is written otherwise than one that is followed.
        reasoning: whether a message's ``reasoning_content`` is written as the thought of its content.
    """

    between: dict[str, dict[str, str]]
    content: dict[str, str]
    date: str | None
    answer: LastAnswer | None = None
    reasoning: bool = False

    @property
    def ends(self) -> bool:
        """Whether it writes conversations that end, and not those alone that are to be answered."""
        return self.answer is not None or "end" in self.between.get("assistant", {})

    def render(
        self,
        messages: Sequence[tuple[str, str]],
        *,
        reply: bool,
        date: str = "",
        thoughts: Mapping[int, str] | None = None,
    ) -> str:
        """The conversation as the template writes it.

        Args:
            thoughts: by the number of a message, its ``reasoning_content``.

        Raises:
            KeyError: an order of roles, or a thought, that the template does not have.
        """
        text, before = [], "begin"
        for number, (role, content) in enumerate(messages):
            last = role == "assistant" and number + 1 == len(messages) and not reply
            word = self.answer.content if self.answer and last else self.content[role]
            thought = (thoughts or {}).get(number)
            written = (
                _CONTENTS[word](content) if thought is None else _THOUGHTS[word](content, thought)
            )
            if self.answer and last:
                text += [self.answer.before[before], written, self.answer.end]
                break
            text += [self.between[before][role], written]
            before = role
        else:
            text.append(self.between[before]["reply" if reply else "end"])
        # Contents may have the character that stands for the date.
        text[::2] = [piece.replace(DATE_PLACE, date) for piece in text[::2]]
        return "".join(text)

    def as_dict(self) -> dict[str, Any]:
        """The manifest's ``text.chat``."""
        date = {} if self.date is None else {"date": self.date}
        answer = {} if self.answer is None else {"answer": dataclasses.asdict(self.answer)}
        reasoning = {"reasoning": True} if self.reasoning else {}
        return {"between": self.between, "content": self.content, **date, **answer, **reasoning}


def chat_form(tokenizer: Any, *, seed: int = 0) -> ChatForm | str:
    """A tokenizer's chat template in pieces, or why it cannot be taken apart.

    Args:
        tokenizer: of transformers, with a chat template.
        seed: of the conversations that the pieces are checked on.
    """
    reason = ""
    # Some templates move the system message to where it depends on more than its neighbours.
    for system in (True, False):
        template = _Template(tokenizer)
        try:
            form = _taken_apart(template, system=system, seed=seed)
        except _Unfit as error:
            reason = reason or str(error)
            continue
        return _with_reasoning(
            template, _with_more_orders(template, form, system=system, seed=seed)
        )
    return reason


class _Template:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._source = str(tokenizer.get_chat_template())
        self._dated = "strftime_now" in self._source
        if self._dated:
            # In place of the date, its format. A line of its own, as blocks at a line's begin are trimmed.
            self._source = f"{_DATE_MACRO}\n{self._source}"
        self.formats: set[str] = set()

    def render(
        self, messages: Messages, *, reply: bool, thoughts: Mapping[int, str] | None = None
    ) -> str | None:
        """What the template writes, None where it refuses the conversation.

        Args:
            thoughts: by the number of a message, its ``reasoning_content``.
        """
        from jinja2.exceptions import TemplateError

        given = [
            {"role": "assistant" if role == _ANSWER else role, "content": content}
            for role, content in messages
        ]
        for number, thought in (thoughts or {}).items():
            given[number]["reasoning_content"] = thought
        try:
            text = str(
                self._tokenizer.apply_chat_template(
                    given,
                    chat_template=self._source,
                    tokenize=False,
                    add_generation_prompt=reply,
                )
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError):
            return None
        if self._dated:
            self.formats.update(_DATE.findall(text))
            text = _DATE.sub(DATE_PLACE, text)
        return text


def _orders(longest: int, *, reply: bool, system: bool) -> list[tuple[str, ...]]:
    """Orders of roles: turns of user and assistant, and a system message before them or not."""
    orders = []
    for count in range(1 if reply else 2, longest + 1, 2):
        turns = tuple("user" if i % 2 == 0 else "assistant" for i in range(count))
        orders += [turns, ("system", *turns)] if system else [turns]
    return orders


def _taken_apart(template: _Template, *, system: bool, seed: int) -> ChatForm:
    generator = random.Random(seed)
    between: _Between = {}
    for order in _orders(_MOST_TURNS, reply=True, system=system):
        _read_off(template, order, True, between)
    if "reply" not in between.get("user", {}):
        raise _Unfit("a chat template that refuses a user's message alone")
    if len(template.formats) > 1:
        raise _Unfit("a chat template that writes the date in several forms")
    date = next(iter(template.formats), None)
    if date is not None and not _DIRECTIVES.fullmatch(date):
        raise _Unfit(f"a chat template that writes the date as {date!r}")
    content = {
        role: _content(template, between, role)
        for role in ("system", "user", "assistant")
        if any(role in seconds for seconds in between.values())
    }
    form = ChatForm(between, content, date)
    if _differs(
        template, form, generator, _orders(_LONGEST, reply=True, system=system), reply=True
    ):
        raise _Unfit("a chat template that writes other conversations otherwise than their turns")
    # How a whole conversation ends is not needed to generate, so it may be of no such form.
    for ended in (_with_ends, _with_last_answers):
        with contextlib.suppress(_Unfit):
            whole = ended(template, form, system=system)
            known = template.formats <= {date}
            orders = _orders(_LONGEST, reply=False, system=system)
            if known and not _differs(template, whole, generator, orders, reply=False):
                return whole
    return form


def _with_more_orders(template: _Template, form: ChatForm, *, system: bool, seed: int) -> ChatForm:
    """With greetings, users' messages in a row and tools, as far as the template writes these by pairs of roles."""
    generator = random.Random(seed)
    known: list[Callable[[tuple[str, ...], bool], list[tuple[str, ...]]]] = []
    for kind in (_greeted, _repeated, _with_tools):
        with contextlib.suppress(_Unfit, KeyError):
            more = _extended(template, form, kind, system=system)
            for reply in (True, False) if form.ends else (True,):
                orders = _orders(_MOST_TURNS, reply=reply, system=system)
                for one in (*known, kind):
                    orders += [new for order in orders for new in one(order, reply)]
                if _differs(template, more, generator, orders, reply=reply):
                    break
            else:
                form = more
                known.append(kind)
    return form


def _extended(
    template: _Template,
    form: ChatForm,
    kind: Callable[[tuple[str, ...], bool], list[tuple[str, ...]]],
    *,
    system: bool,
) -> ChatForm:
    between = {first: dict(seconds) for first, seconds in form.between.items()}
    answer = form.answer
    for reply in (True, False) if form.ends else (True,):
        for order in _orders(_MOST_TURNS, reply=reply, system=system):
            for new in kind(order, reply):
                if reply or not answer:
                    _read_off(template, new, reply, between)
                    continue
                last: _Between = {first: dict(seconds) for first, seconds in between.items()}
                _read_off(template, (*new[:-1], _ANSWER), False, last)
                opening = _NO_THOUGHT if answer.content == "thought" else ""
                before = {
                    first: seconds[_ANSWER].removesuffix(opening)
                    for first, seconds in last.items()
                    if _ANSWER in seconds
                }
                answer = dataclasses.replace(answer, before={**answer.before, **before})
    content = dict(form.content)
    if "tool" in between:
        content["tool"] = _content(template, between, "tool")
    return dataclasses.replace(form, between=between, content=content, answer=answer)


def _greeted(order: tuple[str, ...], _: bool) -> list[tuple[str, ...]]:
    cut = int(order[:1] == ("system",))
    return [(*order[:cut], "assistant", *order[cut:])]


def _repeated(order: tuple[str, ...], _: bool) -> list[tuple[str, ...]]:
    return [tuple(role for turn in order for role in [turn] * (1 + (turn == "user")))]


def _with_tools(order: tuple[str, ...], reply: bool) -> list[tuple[str, ...]]:
    found = []
    for count in (1, 2):
        called = ("assistant", *["tool"] * count)
        new = [
            role for turn in order for role in ((*called, turn) if turn == "assistant" else [turn])
        ]
        found.append((*new, *called) if reply else tuple(new))
        if reply:
            found.append(tuple(new))
    return found


def _with_reasoning(template: _Template, form: ChatForm) -> ChatForm:
    """With whether ``reasoning_content`` is written as a thought is that stands in the content."""
    read = dataclasses.replace(form, reasoning=True)
    turns = ("user", "assistant")
    orders: list[tuple[bool, tuple[str, ...]]] = [(True, (*turns, "user"))]
    if form.ends:
        orders += [(False, turns), (False, turns * 2)]
    for reply, order in orders:
        for thought, said in itertools.product(("hm", "\nso\n\nwhat "), ("Yes.", "\n\n two\n")):
            messages = [(role, said if role == "assistant" else "plain") for role in order]
            thoughts = {i: thought for i, role in enumerate(order) if role == "assistant"}
            found = template.render(messages, reply=reply, thoughts=thoughts)
            if found != _written(read, messages, reply=reply, thoughts=thoughts):
                return form
    return read


def _with_ends(template: _Template, form: ChatForm, *, system: bool) -> ChatForm:
    between = {first: dict(seconds) for first, seconds in form.between.items()}
    for order in _orders(_MOST_TURNS, reply=False, system=system):
        _read_off(template, order, False, between)
    return dataclasses.replace(form, between=between)


def _with_last_answers(template: _Template, form: ChatForm, *, system: bool) -> ChatForm:
    """With the last answer read off as another role's, so that those before it may be written otherwise."""
    between = {first: dict(seconds) for first, seconds in form.between.items()}
    for order in _orders(_MOST_TURNS, reply=False, system=system):
        _read_off(template, (*order[:-1], _ANSWER), False, between)
    before = {first: seconds[_ANSWER] for first, seconds in between.items() if _ANSWER in seconds}
    if not before:
        raise _Unfit("a chat template that refuses conversations that end")
    end = between[_ANSWER]["end"]
    for word in _CONTENTS:
        # Before an answer without a thought, the place of one was read off.
        opening = _NO_THOUGHT if word == "thought" else ""
        texts = {first: text.removesuffix(opening) for first, text in before.items()}
        whole = dataclasses.replace(form, answer=LastAnswer(texts, word, end))
        if _fits(template, whole, ("user", "assistant"), reply=False):
            return whole
    raise _Unfit("a chat template that alters the content of the last answer")


def _read_off(template: _Template, order: tuple[str, ...], reply: bool, between: _Between) -> None:
    """Add the texts between the roles of one order; one that is refused adds none."""
    marks = [f"Mark{number}Zq" for number in range(len(order))]
    text = template.render(list(zip(order, marks, strict=True)), reply=reply)
    if text is None:
        return
    any_mark = "|".join(marks)
    if re.findall(any_mark, text) != marks:
        named = ", ".join(order)
        raise _Unfit(
            f"a chat template that does not write the contents of {named} once and in order"
        )
    steps = itertools.pairwise(("begin", *order, "reply" if reply else "end"))
    for (first, second), piece in zip(steps, re.split(any_mark, text), strict=True):
        if between.setdefault(first, {}).setdefault(second, piece) != piece:
            raise _Unfit(
                f"a chat template whose text between {first} and {second} depends on more than these"
            )


def _content(template: _Template, between: _Between, role: str) -> str:
    """What of a role's content is written, by conversations that end with a user's message."""
    order = {
        "system": ("system", "user"),
        "user": ("user", "assistant", "user"),
        "assistant": ("user", "assistant", "user"),
        "tool": ("user", "assistant", "tool"),
    }[role]
    for word in _OF_TURNS:
        form = ChatForm(between, dict.fromkeys(order, "whole") | {role: word}, None)
        if _fits(template, form, order, role=role, reply=True):
            return word
    raise _Unfit(f"a chat template that alters the content of the role {role}")


def _fits(
    template: _Template,
    form: ChatForm,
    order: Sequence[str],
    *,
    reply: bool,
    role: str = "assistant",
) -> bool:
    """Whether the form writes contents of one role as the template does, in a conversation of this order."""
    for sample in _SAMPLES:
        messages = [(name, sample if name == role else "plain") for name in order]
        if template.render(messages, reply=reply) != _written(form, messages, reply=reply):
            return False
    return True


def _written(
    form: ChatForm, messages: Messages, *, reply: bool, thoughts: Mapping[int, str] | None = None
) -> str | None:
    try:
        return form.render(messages, reply=reply, date=DATE_PLACE, thoughts=thoughts)
    except KeyError:
        return None


def _differs(
    template: _Template,
    form: ChatForm,
    generator: random.Random,
    orders: Sequence[tuple[str, ...]],
    *,
    reply: bool,
) -> bool:
    """Whether the form writes a random conversation otherwise than the template does."""
    for _ in range(_CONVERSATIONS):
        messages = [(role, _random_content(generator)) for role in generator.choice(orders)]
        if template.render(messages, reply=reply) != _written(form, messages, reply=reply):
            return True
    return False


def _random_content(generator: random.Random) -> str:
    return "".join(generator.choice(_PARTS) for _ in range(generator.randint(0, 8)))
