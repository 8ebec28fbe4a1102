"""Makes a decoder's searches as its settings say: limits, fusion strategy, and the driver that runs them.

Knows no streams.
"""

from penstock.decoding.beam_search import BeamAlgorithm, BeamSearch
from penstock.decoding.beam_sizes import AesLimits, BeamSizes
from penstock.decoding.captured_beam_search import CapturedBeamSearch, beam_with_driver
from penstock.decoding.captured_search import CapturedSearch, with_driver
from penstock.decoding.greedy_search import GreedySearch
from penstock.decoding.label_looping import LabelLooping
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding_config import DecodingConfig
from penstock.fusion.blank_scoring import BlankScoring, FusionStrategy, Pruning
from penstock.fusion.fusion import Fusion
from penstock.graphs.driver import Driver

_EQUATIONS = {"eq2": BlankScoring.LABELS_ONLY, "eq3": BlankScoring.BLANK_TOO}


class SearchMaker:
    """Makes searches that are ready to be called with any chunk."""

    def __init__(
        self,
        network: TransducerNetwork,
        decoding: DecodingConfig,
        driver: Driver,
        max_batch: int,
        chunk_encoder_frames: int,
    ):
        """max_batch: streams at once that graphs are captured for; chunk_encoder_frames: of a usual chunk."""
        self.network = network
        self.beam_sizes = BeamSizes(decoding.beam_size)
        self._decoding = decoding
        self._driving = driver, max_batch, chunk_encoder_frames

    def greedy(self, fusion: Fusion | None = None) -> GreedySearch | CapturedSearch:
        """Label-looping."""
        search = LabelLooping(self.network, max_symbols=self._decoding.max_symbols, fusion=fusion)
        return with_driver(search, *self._driving)

    def beam(self, name: str, fusion: Fusion | None = None) -> BeamSearch | CapturedBeamSearch:
        """One of `penstock.stream_options.BEAM_DECODERS`, for states of `beam_sizes`."""
        settings = self._decoding
        search = BeamSearch(
            self.network,
            BeamAlgorithm(name),
            fusion,
            fusion_strategy(settings.lm_fusion),
            settings.max_symbols,
            AesLimits(settings.aes_expansions, settings.aes_margin, settings.aes_extra_labels),
            settings.length_normalisation,
        )
        return beam_with_driver(search, *self._driving, self.beam_sizes)


def fusion_strategy(name: str) -> FusionStrategy:
    """name: one of `penstock.decoding_config.LM_FUSIONS`."""
    equation, _, pruning = name.partition("-")
    return FusionStrategy(_EQUATIONS[equation], Pruning(pruning))
