"""Squared gradients of a model before and after fine-tuning it a little, and the masks that they or weights choose."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.masks import coverage as sums
from research.support.cells import Cells, name_of
from zoexport import models
from zoexport.core.errors import ZoExportError
from zoexport.core.files import atomic_file, sha256
from zoexport.core.mask import Mask, write_mask
from zoexport.core.progress import Progress
from zoexport.tools import mask_choice as choose
from zoexport.tools.gradients import hessian_gradients
from zoexport.tools.linears import linear_weights, shapes
from zoexport.tools.mask_choice import MaskConfig
from zoexport.tools.mask_text import Text, read_text
from zoexport.tools.sensitivity import averaged_squares, facts

if TYPE_CHECKING:
    import torch

    from zoexport.data.examples import Candidate
    from zoexport.models import LoadedModel

TEXTS = ("corpus", "held-out text", "task", "held-out task")
"""Masks are made of the first and the third; the others choose nothing."""
TIMES = ("before", "after")
"""Whether the model is measured before or after fine-tuning."""
MASKS = ("corpus", "task", "grasp", "smallest", "largest", "random")
"""By the text whose squared gradients choose, or by the kind; all chosen before fine-tuning."""
OVERLAPS = (
    *((text, "before") for text in TEXTS),
    ("task", "after"),
    ("held-out task", "after"),
)
"""Whose largest squares are compared."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        sequences: of plain text; of the task's short ones more, of grasp's two passes fewer. max_length: tokens of the
            longest.
        tuning_steps, tuning_batch, tuning_rate: of the fine-tuning: Adam over all weights, a rate that falls to 0.
        densities: ascending.
        seed: of the sequences, and of the random mask.
    """

    sequences: int = 64
    task_sequences: int = 128
    grasp_sequences: int = 16
    max_length: int = 256
    tuning_steps: int = 200
    tuning_batch: int = 8
    tuning_rate: float = 1e-5
    densities: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    seed: int = 0


class Gradients:
    """Gradients of one model on some texts; squares and rankings are kept as files, 4 bytes a linear weight and pass.

    Args:
        model: a MODEL argument.
        texts: the files of :data:`TEXTS`.
        work: where everything is kept.
        progress: called with what is being done, and how much of that is done.
    """

    def __init__(
        self, model: str, texts: Mapping[str, Path], sizes: Sizes, work: Path, progress: Progress
    ) -> None:
        self.source = models.resolve(model)
        self.texts, self.sizes, self._progress = texts, sizes, progress
        files = {name: sha256(path) for name, path in texts.items()}
        # Masks of other densities are beginnings of the same rankings, but for the longest.
        key = dataclasses.asdict(sizes) | {"densities": max(sizes.densities), "texts": files}
        self.sha256 = models.fingerprint(self.source)
        self.folder = work / f"gradients-{name_of(key | {'model': self.sha256})}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._cells = Cells(self.folder)
        self._model: tuple[str, LoadedModel] | None = None

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The shape of every linear weight."""
        return shapes(linear_weights(models.load(self.source, lazy=True).model))

    @functools.cached_property
    def counts(self) -> list[int]:
        """Places of the masks, by density."""
        return sums.counts(self.shapes, self.sizes.densities)

    def result(self) -> dict[str, Any]:
        """All that is reported of gradients.

        Returns:
            ``tuning`` (see :meth:`tuning`); ``coverage``: for each mask, text and time the ``shares`` by density, the
            mask ``task, chosen anew`` being that of each time; ``curves``: for each text and time ``mean`` and ``std``
            over the layers at ``fractions``; ``overlap``: ``names``, and by density a table of ``shares``.
        """
        for time in TIMES:
            for text in TEXTS:
                self.squares(text, time)
        self._model = None
        coverage, curves = [], []
        for time in TIMES:
            for text in TEXTS:
                key = {"text": text, "time": time}
                found = self._cells.get("curve", key, functools.partial(self._curve, text, time))
                curves.append({**key, **found})
                for mask in (*MASKS, "task, chosen anew"):
                    shares = self._covered(mask, text, time)
                    coverage.append({"mask": mask, **key, "shares": shares})
        return {
            "densities": list(self.sizes.densities),
            "chosen": self.counts,
            "weights": sum(sums.sizes(self.shapes).values()),
            "layers": len(self.shapes),
            "tuning": self.tuning(),
            "coverage": coverage,
            "fractions": list(sums.FRACTIONS),
            "curves": curves,
            "overlap": self._cells.get(
                "overlap", {"densities": self.sizes.densities}, self._overlaps
            ),
        }

    def tuning(self) -> dict[str, Any]:
        """The fine-tuning, done now where it is not yet: mean losses of the held-out task ``before`` and ``after``."""
        return self._cells.get("tuning", {}, self._tune)

    def squares(self, text: str, time: str) -> torch.Tensor:
        """The averaged squared gradients on a text, float32 (linear weights), mapped."""
        import torch

        path = self.folder / f"squares-{text.replace(' ', '-')}-{time}.f32"
        if not path.exists():
            loaded = self._loaded(time)
            label = f"{text} {time} fine-tuning: "
            with averaged_squares(
                loaded,
                self.texts[text],
                self._config(text),
                self.folder,
                progress=lambda phase, done: self._progress(label + phase, done),
            ) as squares:
                sums.save(path, [squares[name] for name in self.shapes])
        return sums.mapped(path, torch.float32)

    def ranking(self, mask: str, time: str = "before") -> torch.Tensor:
        """The places of the densest mask, the best first, int64; ``time`` only of those that a text chose."""
        import torch

        path = self.folder / f"ranking-{mask.replace(' ', '-')}-{time}.i64"
        if not path.exists():
            self._progress(f"ranking: {mask} {time} fine-tuning", None)
            sums.save(path, [self._ranked(mask, time)])
        return sums.mapped(path, torch.int64)

    def mask_file(self, mask: str, density: float) -> Path:
        """One of :data:`MASKS` as a file, as ``zoexport sensitivity`` would write it."""
        path = self.folder / f"{mask}-{density:g}.mask"
        if not path.exists():
            (count,) = sums.counts(self.shapes, [density])
            places = sums.by_weight(self.shapes, self.ranking(mask)[:count])
            loaded = models.load(self.source, lazy=True)
            kind = mask if mask not in TEXTS else "sensitive"
            config = dataclasses.replace(self._config(mask), kind=kind, density=density)
            text = self._text(mask, loaded) if config.reads_text else None
            write_mask(path, Mask(facts(loaded, text, config, self.shapes), places))
        return path

    def _config(self, text: str) -> MaskConfig:
        """For one of :data:`TEXTS`, or for a kind that needs none."""
        sizes = self.sizes
        counts = {"grasp": sizes.grasp_sequences, "task": sizes.task_sequences}
        count = counts.get(text.removeprefix("held-out "), sizes.sequences)
        return MaskConfig(sequences=count, max_length=sizes.max_length, seed=sizes.seed)

    def _text(self, mask: str, loaded: LoadedModel) -> Text:
        return read_text(self.texts.get(mask, self.texts["corpus"]), loaded, self._config(mask))

    def _ranked(self, mask: str, time: str) -> torch.Tensor:
        count = self.counts[-1]

        def of(score: choose.Score) -> torch.Tensor:
            return sums.ranking(self.shapes, score, count)

        if mask in TEXTS:
            squares = sums.views(self.shapes, self.squares(mask, time))
            return of(choose.squares_score(squares))
        if mask == "random":
            return of(choose.random_score(self.shapes, self.sizes.seed))
        if mask != "grasp":
            weights = models.load(self.source, lazy=True).weights
            scores = {"largest": choose.largest_score, "smallest": choose.smallest_score}
            return of(scores[mask](weights))
        loaded = models.load(self.source)
        sequences = self._text(mask, loaded).sequences
        phase = f"gradients for grasp of {len(sequences)} sequences"
        with hessian_gradients(
            loaded.model,
            linear_weights(loaded.model),
            sequences,
            self.folder,
            lambda share: self._progress(phase, share),
        ) as products:
            return of(choose.grasp_score(loaded.weights, products))

    def _covered(self, mask: str, text: str, time: str) -> list[float]:
        def make() -> dict[str, Any]:
            # Chosen anew, the task's mask is that of the time at which it is looked at.
            anew = mask not in MASKS
            ranked = self.ranking("task", time) if anew else self.ranking(mask)
            return {"shares": sums.covered(self.squares(text, time), ranked, self.counts)}

        key = {"mask": mask, "text": text, "time": time, "densities": self.sizes.densities}
        shares: list[float] = self._cells.get("coverage", key, make)["shares"]
        return shares

    def _curve(self, text: str, time: str) -> dict[str, Any]:
        self._progress(f"sorting: {text} {time} fine-tuning", None)
        squares = sums.views(self.shapes, self.squares(text, time))
        return {**sums.curve(squares, sums.FRACTIONS)}

    def _overlaps(self) -> dict[str, Any]:
        weights = sum(sums.sizes(self.shapes).values())
        rankings = [self.ranking(text, time) for text, time in OVERLAPS]
        table = [
            [sums.overlap(first, second, self.counts, weights) for second in rankings]
            for first in rankings
        ]
        shares = [
            [[cell[number] for cell in row] for row in table] for number in range(len(self.counts))
        ]
        return {"names": [f"{text}, {time}" for text, time in OVERLAPS], "shares": shares}

    def _loaded(self, time: str) -> LoadedModel:
        """The model of a time; only one is in memory."""
        if time == "after":
            self.tuning()
        if self._model is None or self._model[0] != time:
            self._model = None
            self._progress("loading the model", None)
            loaded = models.load(self.source)
            if time == "after":
                from safetensors.torch import load_model

                load_model(loaded.model, self._tuned())
                loaded.model.requires_grad_(False)
            self._model = time, loaded
        return self._model[1]

    def _tuned(self) -> Path:
        return self.folder / "tuned.safetensors"

    def _tune(self) -> dict[str, Any]:
        from safetensors.torch import save_model

        loaded = self._loaded("before")
        self._model = None
        sizes = self.sizes
        held = read_text(self.texts["held-out task"], loaded, self._config("task")).sequences
        wanted = dataclasses.replace(
            self._config("task"),
            sequences=sizes.tuning_steps * sizes.tuning_batch,
            seed=sizes.seed + 1,
        )
        sequences = read_text(self.texts["task"], loaded, wanted).sequences
        before = mean_loss(loaded.model, held)
        fine_tune(loaded.model, sequences, sizes, self._progress)
        with atomic_file(self._tuned()) as temporary:
            save_model(loaded.model, str(temporary))
        return {"loss": {"before": before, "after": mean_loss(loaded.model, held)}}


def fine_tune(model: Any, sequences: Sequence[Candidate], sizes: Sizes, progress: Progress) -> None:
    """Train all weights of a model in place: Adam, the mean cross-entropy over a batch's labels.

    Args:
        sequences: in batches of ``sizes.tuning_batch`` as they stand, from the beginning again when they end.

    Raises:
        ZoExportError: a loss is not finite.
    """
    import torch

    model.requires_grad_(True)
    steps = sizes.tuning_steps
    optimizer = torch.optim.Adam(model.parameters(), sizes.tuning_rate)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = sizes.tuning_rate * (1 - step / steps)
        begin = step * sizes.tuning_batch
        batch = [sequences[n % len(sequences)] for n in range(begin, begin + sizes.tuning_batch)]
        loss = batch_loss(model, batch)
        if not bool(torch.isfinite(loss)):
            raise ZoExportError(
                f"fine-tuning, step {step}",
                found="a loss that is not finite",
                expected="a number",
                fix="Use a smaller rate.",
            )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        progress(f"fine-tuning, loss {loss.item():.3f}", (step + 1) / steps)
    model.requires_grad_(False)


def batch_loss(model: Any, batch: Sequence[Candidate]) -> torch.Tensor:
    """The mean cross-entropy over all labels of sequences that are padded on the right, where nothing looks at it."""
    import torch

    from zoexport.data.examples import IGNORED

    length = max(len(sequence.tokens) for sequence in batch)

    def padded(rows: list[list[int]], value: int) -> torch.Tensor:
        return torch.tensor([row + [value] * (length - len(row)) for row in rows])

    tokens = padded([sequence.tokens for sequence in batch], 0)
    labels = padded([sequence.labels for sequence in batch], IGNORED)
    logits = model(input_ids=tokens, use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def mean_loss(model: Any, sequences: Sequence[Candidate]) -> float:
    """The mean over sequences of their labels' cross-entropy."""
    import torch

    with torch.no_grad():
        losses = [float(batch_loss(model, [sequence])) for sequence in sequences]
    return sum(losses) / len(losses)
