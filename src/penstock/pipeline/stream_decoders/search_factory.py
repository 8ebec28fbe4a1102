"""SearchFactory builds searches from the decoding options: limits, fusion strategy and CUDA graph driver."""

from penstock.decoding.beam.scratch import BeamNetwork
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch, CapturedBeamSearch, beam_with_driver
from penstock.decoding.ctc import CtcHead
from penstock.decoding.greedy.search import CapturedSearch, GreedySearch, LabelLooping, with_driver
from penstock.decoding.sizes import AesLimits, BeamSizes
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.graphs.program import Driver
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.scoring.fusion import BlankScoring, Fusion, FusionStrategy, Pruning
from penstock_client.options import TRANSDUCER_BEAMS

_EQUATIONS = {"eq2": BlankScoring.LABELS_ONLY, "eq3": BlankScoring.BLANK_TOO}


class SearchFactory:
    """Builds searches that accept any chunk."""

    def __init__(self, decoding: DecodingConfig, driver: Driver, max_batch: int, chunk_encoder_frames: int):
        """max_batch, chunk_encoder_frames: the largest batch and the chunk length that graphs are captured for."""
        self._decoding = decoding
        self._driving = driver, max_batch, chunk_encoder_frames

    def greedy(self, network: TransducerNetwork, fusion: Fusion | None = None) -> GreedySearch | CapturedSearch:
        """Returns label-looping search."""
        search = LabelLooping(network, max_symbols=self._decoding.max_symbols, fusion=fusion)
        return with_driver(search, *self._driving)

    def beam(self, network: BeamNetwork, name: str, fusion: Fusion | None = None) -> BeamSearch | CapturedBeamSearch:
        """Returns the search `name` of `decoding_config.BEAM_DECODERS`, for states of `beam_sizes(network)`.

        It is captured if the setting `capture_beams` says so: each is memory and seconds at a start.
        """
        settings = self._decoding
        search = BeamSearch(
            network,
            BeamAlgorithm(name) if name in TRANSDUCER_BEAMS else BeamAlgorithm.ALSD,
            fusion,
            fusion_strategy(settings.lm_fusion),
            settings.max_symbols,
            AesLimits(settings.aes_expansions, settings.aes_margin, settings.aes_extra_labels),
            settings.length_normalization,
            settings.ctc_beam_label_bonus,
        )
        if not settings.capture_beams:
            return search
        return beam_with_driver(search, *self._driving, self.beam_sizes(network))

    def beam_sizes(self, network: BeamNetwork) -> BeamSizes:
        """Capacity of a slot; no hypothesis of a CTC beam lags, so it carries no frames."""
        sizes = BeamSizes(self._decoding.beam_size)
        return sizes._replace(carried_encoder_frames=0) if isinstance(network, CtcHead) else sizes


def fusion_strategy(name: str) -> FusionStrategy:
    """Returns the strategy `name` of `decoding_config.LM_FUSIONS`."""
    equation, _, pruning = name.partition("-")
    return FusionStrategy(_EQUATIONS[equation], Pruning(pruning))
