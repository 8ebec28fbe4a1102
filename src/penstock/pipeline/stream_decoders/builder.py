"""Builds the stream decoders that are offered, each with the network heads and state stores that it needs."""

import logging
from typing import NamedTuple

import torch

from penstock.decoding.beam.memory import BeamStateStore
from penstock.decoding.beam.scratch import BeamNetwork
from penstock.decoding.ctc import CtcHead
from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.decoding.transducer.networks import open_network
from penstock.decoding.wfst.captured_search import wfst_with_driver
from penstock.decoding.wfst.device_graph import MEMORY_PER_FILE, DeviceGraph
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.search import WfstSearch
from penstock.decoding.wfst.state import StartStates, WfstStateStore
from penstock.graphs.program import Driver
from penstock.model.bundle import Checkpoint
from penstock.model.bundle_files import sha256_of
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import DecoderOffer
from penstock.pipeline.stream_decoders.base import StreamDecoder
from penstock.pipeline.stream_decoders.fusion import StreamFusion
from penstock.pipeline.stream_decoders.searches import (
    BeamStreamDecoder,
    CtcStreamDecoder,
    GreedyStreamDecoder,
    SearchFactory,
)
from penstock.pipeline.stream_decoders.wfst import LatticeStore, WfstStreamDecoder, word_writer
from penstock.runtime import available_memory_bytes
from penstock.scoring.wfst.graph_file import read_graph
from penstock.scoring.wfst.words import GraphWords, WordBoosts
from penstock_common.options import CTC, CTC_BEAM, GREEDY, TRANSDUCER_BEAMS, WFST

_log = logging.getLogger(__name__)


class DecoderParts(NamedTuple):
    """The parts that all stream decoders of a stage share."""

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
    has_int8: bool
    """Large products of the predictor may be in int8."""


def build_stream_decoders(offer: DecoderOffer, parts: DecoderParts) -> dict[str, StreamDecoder]:
    """The offered decoders by name."""
    searches = SearchFactory(parts.decoding, parts.driver, parts.max_batch, parts.chunk_encoder_frames)
    decoders: dict[str, StreamDecoder] = {}
    if GREEDY in offer.names:
        network = open_network(parts.checkpoint, parts.device, kernels=parts.decoding.kernels)
        if parts.has_int8:
            _log.info("predictor: %s", network.lstm.use_int8())
        decoders[GREEDY] = GreedyStreamDecoder(searches, network, parts.slots, parts.fusion)
        decoders |= _beam_decoders(TRANSDUCER_BEAMS, searches, network, parts)
    if CTC in offer.names:
        head = CtcHead(parts.checkpoint, parts.device)
        decoders[CTC] = CtcStreamDecoder(head, parts.slots)
        decoders |= _beam_decoders((CTC_BEAM,), searches, head, parts)
        if WFST in offer.names:
            decoders[WFST] = _wfst_decoder(head, parts)
    return decoders


def _beam_decoders(
    names: tuple[str, ...], searches: SearchFactory, network: BeamNetwork, parts: DecoderParts
) -> dict[str, StreamDecoder]:
    states = BeamStateStore(network, parts.slots, searches.beam_sizes(network))
    return {name: BeamStreamDecoder(name, searches, network, states, parts.fusion) for name in names}


def _wfst_decoder(head: CtcHead, parts: DecoderParts) -> StreamDecoder:
    """GraphError for a broken graph, one of another model, or one above the device's memory."""
    decoding, device = parts.decoding, parts.device
    assert decoding.graph is not None
    if device.type == "cuda":
        graph = read_graph(decoding.graph, torch.cuda.mem_get_info(device)[0], MEMORY_PER_FILE)
    else:  # beside the file's own arrays
        graph = read_graph(decoding.graph, available_memory_bytes(), MEMORY_PER_FILE + 1)
    graph.check_model(head.vocabulary_size, sha256_of(parts.checkpoint.tokenizer_path))
    words = WordBoosts(GraphWords(graph), len(graph.words), parts.slots, device)
    parts.fusion.word_boosts = words
    sizes, limits = WfstSizes(decoding.wfst_max_active), WfstLimits(decoding.wfst_beam)
    search = WfstSearch(DeviceGraph(graph, device), sizes, limits, decoding.kernels)
    no_rows = torch.zeros(0, dtype=torch.int64, device=device)
    boosts = StreamBoosts(words.table, no_rows, parts.fusion.phrases)
    driven = wfst_with_driver(search, parts.driver, parts.max_batch, parts.chunk_encoder_frames, boosts)
    start = StartStates(graph, search.graph, search.sizes, search.limits.beam)
    states = WfstStateStore(search.graph, parts.slots, search.sizes)
    writer = word_writer(graph, Tokenizer(parts.checkpoint.tokenizer_path))
    alternatives = LatticeStore(search, start, graph.words)
    return WfstStreamDecoder(head, driven, start, states, parts.fusion, alternatives, writer)
