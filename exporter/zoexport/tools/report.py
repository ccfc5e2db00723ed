"""``report``: runs as one page that needs no network and runs no script (docs/choose.md)."""

from __future__ import annotations

import dataclasses
import math
import statistics
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.errors import ConfigError, StateError, ZoExportError
from zoexport.core.files import atomic_file, open_within, refuse_existing
from zoexport.core.progress import Progress
from zoexport.run.logging import default_file, read, same_loss, same_run
from zoexport.session import Bundle
from zoexport.tools.describe import describe_state

if TYPE_CHECKING:
    from zoexport.run.generate import Prompt

MOST_POINTS = 400
"""Of a curve, as of jobs (docs/android.md)."""
_HEADER = 64


@dataclasses.dataclass(frozen=True)
class Run:
    """Data of a run.

    Attributes:
        state: run directory. found: description of the state (docs/formats.md).
        losses: loss of each step.
        seconds, anonymous_mb: values by step, for the steps in the report next to the state.
        bytes: size of the state's files.
    """

    state: Path
    found: dict[str, Any]
    losses: list[float]
    seconds: dict[int, float]
    anonymous_mb: dict[int, float]
    bytes: int

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Evaluations on the validation set, by steps."""
        validation = self.found["validation"]
        return [] if validation is None else validation["evaluations"]

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation with the lowest loss."""
        validation = self.found["validation"]
        step = None if validation is None else validation["best_step"]
        return next((one for one in self.evaluations if one["step"] == step), None)

    @property
    def step_seconds(self) -> float | None:
        """The median of the steps whose time is known."""
        return statistics.median(self.seconds.values()) if self.seconds else None

    @property
    def peak_anonymous_mb(self) -> float | None:
        """The most after a step whose memory is known."""
        return max(self.anonymous_mb.values(), default=None)


@dataclasses.dataclass(frozen=True)
class _Row:
    name: str
    cells: list[str]
    differs: bool = False


@dataclasses.dataclass(frozen=True)
class _Table:
    caption: str
    head: list[str]
    rows: list[_Row]


@dataclasses.dataclass(frozen=True)
class _Chart:
    title: str
    svg: Any


@dataclasses.dataclass(frozen=True)
class _Section:
    title: str
    notes: Sequence[str] = ()
    charts: Sequence[_Chart] = ()
    tables: Sequence[_Table] = ()


def write_report(
    states: Sequence[Path],
    output: Path,
    *,
    bundle: Bundle | None = None,
    prompts: Sequence[str] = (),
    system: str | None = None,
    chat_template: bool | None = None,
    max_new_tokens: int = 64,
    force: bool = False,
    progress: Progress,
) -> dict[str, Any]:
    """Write the page of one run, or of several compared.

    Args:
        states: their folders, which stay as they are.
        output: the page. force: replace what is there.
        bundle: of all of them; adds what was planned, and the answers to ``prompts``, before and after training.
        system, chat_template: as :func:`zoexport.run.generate.asked` takes them.
        max_new_tokens: of such an answer.
        progress: called with what is being done.

    Returns:
        The keys of ``report --json``.

    Raises:
        ZoExportError: a state or the bundle cannot be used, or a library is missing; nothing is written.
    """
    refuse_existing(output, replace=force)
    check_libraries()
    from zoexport.tools.charts import MOST

    if len(states) > MOST:
        raise ConfigError(
            "STATE",
            found=f"{len(states)} states",
            expected=f"at most {MOST}",
            fix="Compare fewer of them; more curves cannot be told apart.",
        )
    if prompts and bundle is None:
        raise ConfigError(
            "--prompt",
            found="no --bundle",
            expected="the bundle that answers it",
            fix="Pass --bundle, or leave it out.",
        )
    progress("reading", None)
    runs = [read_run(state, bundle) for state in states]
    letters = [chr(ord("A") + number) for number in range(len(runs))]
    sections = [_overview(runs, letters), _losses(runs, letters), _held_out(runs, letters)]
    sections += [_measured(runs, letters), _settings(runs, letters), _changes(runs, letters)]
    if prompts and bundle is not None:
        from zoexport.run.generate import asked

        progress("generating", None)
        about: dict[str, Any] = {"system": system, "template": chat_template}
        questions = [
            {text: asked(bundle, text, state=run.state, **about) for text in prompts}
            for run in runs
        ]
        sections.append(_texts(bundle, runs, letters, questions, max_new_tokens))
    if bundle is not None:
        progress("planning", None)
        sections.append(_planned(bundle.manifest, runs, letters, progress))
    name = states[0].name or str(states[0])
    title = f"Run {name}" if len(runs) == 1 else f"{len(runs)} runs compared"
    page = _rendered(title, [section for section in sections if section is not None])
    with atomic_file(output) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return {
        "report": str(output),
        "bytes": output.stat().st_size,
        "runs": [
            {
                "state": str(run.state),
                "steps": run.found["steps"],
                "best_step": None if run.best is None else run.best["step"],
                "step_seconds_median": run.step_seconds,
                "peak_anonymous_mb": run.peak_anonymous_mb,
            }
            for run in runs
        ],
    }


def check_libraries() -> None:
    """Check that pages can be written.

    Raises:
        ConfigError: jinja2 or matplotlib is not installed.
    """
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "report",
            found=f"no {error.name}",
            expected="the packages that write pages",
            fix="Install them: pip install 'zoexport[report]'.",
        ) from error


def _rendered(title: str, sections: Sequence[_Section]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from zoexport.tools.charts import DARK, LIGHT

    # Every value is escaped: states, bundles and texts may be a stranger's.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    template = environment.get_template("page.html.jinja")
    # Lone surrogates, as names of files may have, are no UTF-8.
    page = template.render(title=title, sections=sections, light=LIGHT, dark=DARK)
    return page.encode("utf-8", "replace").decode()


def _overview(runs: Sequence[Run], letters: Sequence[str]) -> _Section:
    facts: dict[str, list[str]] = {}

    def add(name: str, value: object) -> None:
        facts.setdefault(name, []).append("-" if value is None else str(value))

    for run in runs:
        found, best = run.found, run.best
        add("state", run.state)
        add("method", found["method"])
        add("bundle", found["bundle_id"][:12])
        add("seed", found["seed"])
        add("steps", found["steps"])
        add("loss of the first step", _number(run.losses[0]) if run.losses else None)
        add("loss of the last step", _number(run.losses[-1]) if run.losses else None)
        data = found["data"]
        add("examples", None if data is None else f"{data['examples']} ({data['sha256'][:12]})")
        add(
            "best held-out loss",
            None if best is None else f"{_number(best['loss'])} at step {best['step']}",
        )
        add("seconds a step (median)", _number(run.step_seconds))
        add("anonymous memory after a step, at most (MB)", _number(run.peak_anonymous_mb))
        add("damage of the log", found["damage"])
    rows = [
        _Row(name, cells) for name, cells in facts.items() if any(cell != "-" for cell in cells)
    ]
    return _Section("Overview", tables=[_Table("Facts of each run", ["fact", *letters], rows)])


def _losses(runs: Sequence[Run], letters: Sequence[str]) -> _Section | None:
    curves = {
        number: thinned([(float(n), loss) for n, loss in enumerate(run.losses, 1)])
        for number, run in enumerate(runs)
        if run.losses
    }
    note = "Of each step; of a long run, means of neighbouring steps, at most 400 points."
    return _curves("Loss", [note], [("loss", "Training loss", "loss", curves)], letters)


def _held_out(runs: Sequence[Run], letters: Sequence[str]) -> _Section | None:
    losses = {n: _of(run.evaluations, "loss") for n, run in enumerate(runs)}
    accuracies = {n: _of(run.evaluations, "accuracy") for n, run in enumerate(runs)}
    best = {
        n: (float(run.best["step"]), float(run.best["loss"]))
        for n, run in enumerate(runs)
        if run.best is not None
    }
    charts = [("held", "Held-out loss", "loss", losses)]
    charts.append(("accuracy", "Held-out accuracy", "accuracy", accuracies))
    margins = {n: _of(run.evaluations, "margin") for n, run in enumerate(runs)}
    charts.append(("margin", "Held-out margin of pairs", "margin", margins))
    section = _curves(
        "Held-out examples",
        ["The diamond marks the evaluation with the lowest loss."],
        charts,
        letters,
        best={"held": best},
        dots=True,
    )
    if section is None:
        return None
    tables = []
    for run, letter in zip(runs, letters, strict=True):
        rows = [
            _Row(
                f"{one['step']}{' (best)' if one is run.best else ''}",
                [_number(one[key]) for key in ("loss", "accuracy", "token_accuracy")],
            )
            for one in run.evaluations
        ]
        if rows:
            head = ["step", "loss", "accuracy", "token accuracy"]
            tables.append(_Table(f"Evaluations of run {letter}", head, rows))
    return dataclasses.replace(section, tables=tables)


def _measured(runs: Sequence[Run], letters: Sequence[str]) -> _Section | None:
    def points(values: Mapping[int, float]) -> list[tuple[float, float]]:
        return thinned([(float(step), value) for step, value in sorted(values.items())])

    seconds = {n: points(run.seconds) for n, run in enumerate(runs)}
    memory = {n: points(run.anonymous_mb) for n, run in enumerate(runs)}
    charts = [("seconds", "Time of a step", "seconds", seconds)]
    charts.append(("memory", "Anonymous memory after a step", "MB", memory))
    note = "As train --report-to jsonl recorded them; other steps are left out."
    return _curves("Time and memory", [note], charts, letters)


def _curves(
    title: str,
    notes: Sequence[str],
    charts: Sequence[tuple[str, str, str, Mapping[int, Sequence[tuple[float, float]]]]],
    letters: Sequence[str],
    *,
    best: Mapping[str, Mapping[int, tuple[float, float]]] | None = None,
    dots: bool = False,
) -> _Section | None:
    """Return a section of charts, or None if no run has a point."""
    from markupsafe import Markup

    from zoexport.tools.charts import Curve, chart

    drawn = []
    for name, caption, y, curves in charts:
        shown = {}
        for number, points in curves.items():
            finite = [point for point in points if math.isfinite(point[1])]
            if finite:
                shown[number] = finite
        if not shown:
            continue
        marked = (best or {}).get(name, {})
        said = []
        for number, points in shown.items():
            text = (
                f"run {letters[number]} from {_number(points[0][1])} to {_number(points[-1][1])}"
                f" at step {points[-1][0]:g}"
            )
            if number in marked:
                text += f", lowest {_number(marked[number][1])} at step {marked[number][0]:g}"
            said.append(text)
        lines = [
            Curve(number, letters[number], points, dots, marked.get(number))
            for number, points in shown.items()
        ]
        alt = f"{caption} by step: {'; '.join(said)}."
        drawn.append(_Chart(caption, Markup(chart(name, lines, y=y, alt=alt))))
    return _Section(title, notes, drawn) if drawn else None


def _settings(runs: Sequence[Run], letters: Sequence[str]) -> _Section | None:
    kept = [run.found["settings"] or {} for run in runs]
    rows = []
    for key in sorted({key for settings in kept for key in settings}):
        cells = [str(settings[key]) if key in settings else "-" for settings in kept]
        rows.append(_Row(key, cells, len(set(cells)) > 1))
    if not rows:
        return None
    return _Section(
        "Settings", tables=[_Table("Settings of each run", ["setting", *letters], rows)]
    )


def _changes(runs: Sequence[Run], letters: Sequence[str]) -> _Section | None:
    rows = [
        _Row(letter, [str(change[key]) for key in ("step", "key", "old", "new")])
        for run, letter in zip(runs, letters, strict=True)
        for change in run.found["changes"]
    ]
    if not rows:
        return None
    head = ["run", "first step", "setting", "before", "after"]
    return _Section("Changes on the way", tables=[_Table("What was changed when", head, rows)])


def _texts(
    bundle: Bundle,
    runs: Sequence[Run],
    letters: Sequence[str],
    questions: Sequence[Mapping[str, Prompt]],
    max_new_tokens: int,
) -> _Section:
    from zoexport.run.generate import generator

    texts: dict[str, list[tuple[str, str]]] = {text: [] for text in questions[0]}
    for number, (run, letter) in enumerate(zip(runs, letters, strict=True)):
        with generator(bundle, state=run.state) as opened:
            for text, prompt in questions[number].items():
                if number == 0:
                    made = opened.generate(prompt, untrained=True, max_new_tokens=max_new_tokens)
                    texts[text].append(("before training", made.text))
                made = opened.generate(prompt, max_new_tokens=max_new_tokens)
                texts[text].append((f"after, run {letter}", made.text))
    tables = [
        _Table(
            f"After the prompt {prompt!r}",
            ["values", "text"],
            [_Row(n, [text]) for n, text in found],
        )
        for prompt, found in texts.items()
    ]
    note = f"The likeliest token each time, at most {max_new_tokens}."
    return _Section("Text before and after", [note], tables=tables)


def _planned(
    manifest: Mapping[str, Any], runs: Sequence[Run], letters: Sequence[str], progress: Progress
) -> _Section:
    from zoexport.tools.plan import plan_training

    size = sum(entry["bytes"] for entry in manifest["files"].values())
    try:
        planned = plan_training(
            manifest["model"]["source"],
            method=manifest["method"],
            target=manifest["target"],
            settings=manifest["settings"],
            progress=progress,
        )
    except ZoExportError as error:
        planned = {}
        notes = [f"Nothing was planned: {error}"]
    else:
        notes = [f"Planned for the process {planned['process']}, {planned['threads']} threads."]
    rows = [
        _Row(
            "anonymous memory (MB)",
            [
                _number(planned.get("peak_anonymous_mb")),
                *(_number(run.peak_anonymous_mb) for run in runs),
            ],
        ),
        _Row(
            "bundle and state on the disk (MB)",
            [
                _number(planned.get("disk_mb")),
                *(_number((size + run.bytes) / 1e6) for run in runs),
            ],
        ),
    ]
    head = ["figure", "planned", *(f"measured, run {letter}" for letter in letters)]
    return _Section("Planned and measured", notes, tables=[_Table("Figures", head, rows)])


def _of(evaluations: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    return [
        (float(one["step"]), float(one[key])) for one in evaluations if one.get(key) is not None
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def read_run(state: Path, bundle: Bundle | None = None) -> Run:
    """Read a run.

    Args:
        state: run directory; it is not changed. A report next to it is used if it is of this run.
        bundle: if given, the bundle that the state must belong to.

    Raises:
        StateError: the state is missing, of another bundle, or damaged beyond its log.
    """
    found = describe_state(state, bundle)
    losses = _stored_losses(state, found["steps"])
    seconds: dict[int, float] = {}
    memory: dict[int, float] = {}
    report = read(default_file(state)) if default_file(state).is_file() else None
    if report is not None and same_run(report[0], found):
        for row in report[1]:
            if row["kind"] != "step" or not 0 < row["step"] <= len(losses):
                continue
            if not same_loss(row, losses[row["step"] - 1]):
                continue  # of a step that the run has taken otherwise since
            for kept, name in ((seconds, "seconds"), (memory, "anonymous_mb")):
                if row[name] is not None:
                    kept[row["step"]] = float(row[name])
    size = sum(path.stat().st_size for path in state.iterdir() if path.is_file())
    return Run(state, found, losses, seconds, memory, size)


def _stored_losses(state: Path, steps: int) -> list[float]:
    """Read the losses of the first ``steps`` log records, which the session has checked."""
    if steps == 0:
        return []
    try:
        with open_within(state, "trajectory.log") as file:
            content = file.read()
        (queries,) = struct.unpack_from("<I", content, 48)
        size = 20 + 4 * queries
        return [struct.unpack_from("<f", content, _HEADER + n * size + 12)[0] for n in range(steps)]
    except (OSError, struct.error) as error:
        raise StateError(
            str(state / "trajectory.log"),
            found=str(error),
            expected=f"{steps} records",
            fix="Make the report again; the run may have changed meanwhile.",
        ) from error


def thinned(values: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Reduce a curve to at most 400 points by averaging pairs of neighbours."""
    points = list(values)
    while len(points) > MOST_POINTS:
        pairs = [points[at : at + 2] for at in range(0, len(points), 2)]
        points = [
            (sum(x for x, _ in pair) / len(pair), sum(y for _, y in pair) / len(pair))
            for pair in pairs
        ]
    return points
