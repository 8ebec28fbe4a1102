"""Rows in silence, for models that normalize a recording."""

import numpy as np
import pytest

from recipes.training.augmentation import GENTLE, Augmenter
from recipes.training.batches import Batch, BatchMaker, Source, Utterance


def batches(count: int, **options: float) -> list[Batch]:
    random = np.random.default_rng(1)
    noise = random.normal(-12, 1, (300, 80)).astype(np.float32)

    def draw() -> Utterance:
        frames = random.normal(-6, 2, (int(random.integers(60, 400)), 80)).astype(np.float32)
        return Utterance(frames, ("one", "two"), "speaker")

    augmenter = Augmenter(GENTLE, [noise], random)
    maker = BatchMaker([Source(1.0, draw)], augmenter, lambda text: [7] * len(text.split()), random, 1600,
                       is_normalized=True, joined=options.get("joined", 0.0))  # fmt: skip
    maker.masks, maker.padded = False, options.get("padded", 0.0)
    return [batch for batch, _ in zip(maker, range(count), strict=False)]


def test_a_padded_row_is_normalized_with_silence_that_it_lost():
    plain, padded = ([float(batch.mel.sum() / batch.mel_counts.sum()) for batch in batches(12, padded=share)]
                     for share in (0.0, 1.0))  # fmt: skip
    assert max(map(abs, plain)) < 0.01 and np.median(padded) > 1.0


@pytest.mark.parametrize("joined", [0.0, 1.0])
def test_the_parts_of_padded_rows_cover_them(joined):
    for batch in batches(15, joined=joined, padded=1.0):
        assert int(batch.mel_counts.max()) <= 1600 and int(batch.label_counts.sum()) > 0
        if batch.spans is not None:
            for row, count in enumerate(batch.mel_counts.tolist()):
                spans = batch.spans[batch.spans[:, 0] == row, 1:].tolist()
                ends = [0, *(end for _, end in spans)]
                assert [begin for begin, _ in spans] == ends[:-1] and ends[-1] * 8 >= count
