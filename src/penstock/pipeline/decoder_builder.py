"""Builds the stream decoders that are offered, each with the network heads and state stores that it needs."""

from typing import NamedTuple

import torch

from penstock.decoding.beam.state import BeamStateStore
from penstock.decoding.ctc.head import CtcHead
from penstock.decoding.transducer import TransducerNetwork
from penstock.graphs.driver import Driver
from penstock.model.bundle import Checkpoint
from penstock.pipeline.ctc_stream_decoder import CtcStreamDecoder
from penstock.pipeline.decoder_offer import DecoderOffer
from penstock.pipeline.decoding_config import CTC, GREEDY, TRANSDUCER_BEAMS, DecodingConfig
from penstock.pipeline.search_factory import SearchFactory
from penstock.pipeline.stream_decoders import BeamStreamDecoder, GreedyStreamDecoder, StreamDecoder
from penstock.pipeline.stream_fusion import StreamFusion


class DecoderParts(NamedTuple):
    """What all stream decoders of a stage share."""

    checkpoint: Checkpoint
    decoding: DecodingConfig
    fusion: StreamFusion
    driver: Driver
    device: torch.device
    slots: int
    max_batch: int
    """The largest batch that graphs are captured for."""
    chunk_encoder_frames: int
    """The chunk length that graphs are captured for."""


def build_stream_decoders(offer: DecoderOffer, parts: DecoderParts) -> dict[str, StreamDecoder]:
    """The offered decoders by name."""
    decoders: dict[str, StreamDecoder] = {}
    if GREEDY in offer.names:
        decoders |= _transducer_decoders(parts)
    if CTC in offer.names:
        head = CtcHead(parts.checkpoint, parts.device)
        decoders[CTC] = CtcStreamDecoder(head, parts.slots)
    return decoders


def _transducer_decoders(parts: DecoderParts) -> dict[str, StreamDecoder]:
    network = TransducerNetwork(parts.checkpoint, parts.device, kernels=parts.decoding.kernels)
    searches = SearchFactory(network, parts.decoding, parts.driver, parts.max_batch, parts.chunk_encoder_frames)
    beams = BeamStateStore(network, parts.slots, searches.beam_sizes)
    greedy = GreedyStreamDecoder(searches, parts.slots, parts.fusion)
    return {GREEDY: greedy} | {
        name: BeamStreamDecoder(name, searches, beams, parts.fusion) for name in TRANSDUCER_BEAMS
    }
