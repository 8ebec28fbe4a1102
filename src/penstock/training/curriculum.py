"""What a network learns from before and after it has found an alignment of labels and frames.

From random weights a Transducer first learns how often each label comes, and stays there until it finds which frames
belong to which label. Easy speech, hardly changed, shows it: synthetic voices, a few words; all that hides them waits.
"""

from penstock.training.augmentation import GENTLE, AugmentationConfig, Augmenter
from penstock.training.batches import BatchMaker, Source


class Curriculum:
    """Sets sources and augmentation of a batch maker by how far the training has come."""

    def __init__(self, maker: BatchMaker, augmenter: Augmenter, early: list[Source], all_sources: list[Source]):
        """early: what is drawn from until there is an alignment."""
        self._maker = maker
        self._augmenter = augmenter
        self._early = early
        self._all = all_sources

    def set_stage(self, is_aligned: bool, masks: bool) -> None:
        """Holds for what is drawn from now on. masks: whether SpecAugment is applied."""
        self._maker.sources = self._all if is_aligned else self._early
        self._augmenter.config = AugmentationConfig() if is_aligned else GENTLE
        self._maker.masks = masks
