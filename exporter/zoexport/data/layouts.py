"""Published releases whose rows hold several examples, as one row for each, with the same columns as elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zoexport.data.readers import Row


def multirc(where: str, row: Mapping[str, Any]) -> Iterator[Row]:
    """SuperGLUE's JSON Lines hold a passage with all its questions and their answers; the library a row an answer."""
    if "paragraph" in row:
        yield where, dict(row)
        return
    passage = row["passage"]
    for i, question in enumerate(passage["questions"]):
        for j, answer in enumerate(question["answers"]):
            yield (
                f"{where}, question {i}, answer {j}",
                {
                    "paragraph": passage["text"],
                    "question": question["question"],
                    "answer": answer["text"],
                    "label": answer.get("label", -1),
                },
            )


def record(where: str, row: Mapping[str, Any]) -> Iterator[Row]:
    """ReCoRD with ``answer``, a right one, and ``entities`` without the other right ones.

    SuperGLUE's JSON Lines hold a passage with all its queries, and entities as their first and last characters.
    """
    if "query" in row:
        yield where, _compared(row["passage"], row["query"], row["entities"], row["answers"])
        return
    text = row["passage"]["text"]
    entities = [text[one["start"] : one["end"] + 1] for one in row["passage"]["entities"]]
    for i, query in enumerate(row["qas"]):
        answers = [answer["text"] for answer in query.get("answers", ())]
        yield f"{where}, query {i}", _compared(text, query["query"], entities, answers)


def _compared(passage: str, query: str, entities: Any, answers: Any) -> dict[str, Any]:
    right = list(answers)
    if not right:
        raise LookupError("no answer")
    kept = [one for one in dict.fromkeys([*entities, right[0]]) if one not in right[1:]]
    if right[0] not in kept:  # it stands twice among the answers
        kept.append(right[0])
    return {"passage": passage, "query": query, "entities": kept, "answer": right[0]}


def squad(where: str, row: Mapping[str, Any]) -> Iterator[Row]:
    """SQuAD with ``answers`` as a list of texts. The release is one document of articles and their paragraphs."""
    if "data" not in row:
        yield where, {**row, "answers": _answers(row["answers"]["text"])}
        return
    for i, article in enumerate(row["data"]):
        for j, paragraph in enumerate(article["paragraphs"]):
            for k, question in enumerate(paragraph["qas"]):
                yield (
                    f"{where}, article {i}, paragraph {j}, question {k}",
                    {
                        "title": article["title"],
                        "context": paragraph["context"],
                        "question": question["question"],
                        "answers": _answers([one["text"] for one in question["answers"]]),
                    },
                )


def drop(where: str, row: Mapping[str, Any]) -> Iterator[Row]:
    """DROP with ``answers`` as a list of texts. The release is one document of passages by their names."""
    if "question" in row:
        yield where, {**row, "answers": _answers(row["answers_spans"]["spans"])}
        return
    for name, entry in row.items():
        for i, pair in enumerate(entry["qa_pairs"]):
            given = [pair["answer"], *pair.get("validated_answers", ())]
            texts = [text for text in map(_drop_answer, given) if text]
            yield (
                f"{where}, passage {name}, question {i}",
                {
                    "passage": entry["passage"],
                    "question": pair["question"],
                    "answers": _answers(texts),
                },
            )


def _drop_answer(answer: Mapping[str, Any]) -> str:
    """An answer of DROP's release: a number, spans of the passage, or a date."""
    if answer.get("number"):
        return str(answer["number"])
    if answer.get("spans"):
        return ", ".join(answer["spans"])
    date = answer.get("date") or {}
    return " ".join(date[part] for part in ("day", "month", "year") if date.get(part))


def _answers(texts: Any) -> list[str]:
    found = list(dict.fromkeys(texts))
    if not found:
        raise LookupError("no answer")
    return found


LAYOUTS: dict[str, Callable[[str, Mapping[str, Any]], Iterator[Row]]] = {
    "multirc": multirc,
    "record": record,
    "squad": squad,
    "drop": drop,
}
