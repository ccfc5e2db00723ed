"""Masks of the real model: how much of the squared gradient norm of other texts each kind covers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.smollm2 import MODEL
from zoexport import models
from zoexport.core.mask import read_mask, write_mask
from zoexport.data import corpus
from zoexport.data.samples import Samples
from zoexport.tools.mask_choice import coverage
from zoexport.tools.sensitivity import MaskConfig, averaged_squares, choose_mask

pytestmark = [pytest.mark.slow, pytest.mark.network]

CONFIG = MaskConfig(density=0.001, sequences=8, max_length=128)
KINDS = ("sensitive", "random", "largest", "smallest")


def quiet(phase: str, done: float | None) -> None:
    pass


def test_a_corpus_mask_covers_other_texts(folder: Path, samples: Samples) -> None:
    loaded = models.load(models.resolve(MODEL))
    masks = {}
    for kind in KINDS:
        config = dataclasses.replace(CONFIG, kind=kind)
        mask, _ = choose_mask(loaded, None, config, folder, progress=quiet)
        write_mask(folder / kind, mask)
        masks[kind] = read_mask(folder / kind)
        assert masks[kind].count() == round(0.001 * 106_168_320)
    assert masks["sensitive"].facts.corpus == "brown"
    # Only the label of each sentence is predicted: this is the task's gradient.
    for text in (corpus.rows(CONFIG.max_length).test, samples.test):
        with averaged_squares(loaded, text, CONFIG, folder, progress=quiet) as squares:
            share = {kind: coverage(mask, squares) for kind, mask in masks.items()}
        assert share["sensitive"] >= 50 * share["random"]
        assert share["sensitive"] >= 5 * share["largest"]
        assert share["sensitive"] >= 5 * share["smallest"]
