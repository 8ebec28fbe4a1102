"""Our searches as contestants, with every driver that the device has. Knows no clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from penstock.benchmarking.boosted import BoostedStreams
from penstock.benchmarking.contestant import (
    CHUNKS,
    EACH_TIME,
    PENSTOCK,
    PRECOMPUTED,
    Absence,
    Chunk,
    Contestant,
    Entry,
)
from penstock.checkpoint import Checkpoint
from penstock.cuda_graphs import obstacle_to_graphs, obstacle_to_while, select_driver
from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.beam_results import TokenLists
from penstock.decoding.beam_search import BeamAlgorithm, BeamSearch
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding.beam_state import fresh_rows as fresh_beams
from penstock.decoding.captured_beam_search import CapturedBeamSearch, beam_with_driver
from penstock.decoding.captured_search import CapturedSearch, with_driver
from penstock.decoding.frame_looping import FrameLooping
from penstock.decoding.greedy_search import GreedySearch
from penstock.decoding.greedy_state import GreedyRows, fresh_rows
from penstock.decoding.label_looping import LabelLooping
from penstock.decoding.networks import TransducerNetwork, UnprojectedNetwork
from penstock.graphs.driver import GraphError

LABEL_LOOPING, FRAME_LOOPING, ALSD, AES = "label-looping", "frame-looping", "alsd", "aes"
BOOSTED = "boosted"
DECODERS = (LABEL_LOOPING, FRAME_LOOPING, ALSD, AES)
"""Those that find the same labels, and beams."""
ALL_DECODERS = (*DECODERS, BOOSTED)
_GREEDY: dict[str, type[GreedySearch]] = {LABEL_LOOPING: LabelLooping, FRAME_LOOPING: FrameLooping}
_NETWORKS = {PRECOMPUTED: TransducerNetwork, EACH_TIME: UnprojectedNetwork}
_BEAM = {ALSD: BeamAlgorithm.ALSD, AES: BeamAlgorithm.AES}


class OurGreedy(Contestant):
    """Greedy search with its labels brought to the host after every chunk."""

    def __init__(self, entry: Entry, network: TransducerNetwork, search: GreedySearch | CapturedSearch):
        super().__init__(entry)
        self._network, self._search = network, search

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list[BatchedHyps]:
        """The labels of each chunk."""
        rows, found = self.fresh_rows(len(chunks[0].lengths)), []
        for chunk in chunks:
            hyps, rows = self._search.decode(self._network.project_encoder(chunk.frames), chunk.lengths, rows)
            found.append(hyps.to_host())
        return found

    def fresh_rows(self, batch: int) -> GreedyRows:
        """Hypotheses without labels."""
        return fresh_rows(self._network, batch)

    def labels(self, decoded: list[BatchedHyps]) -> list[list[int]]:
        """All chunks' labels together."""
        return _joined([(hyps.labels, hyps.lengths) for hyps in decoded])


class OurBoosted(OurGreedy):
    """Label-looping with a phrase list a stream."""

    def __init__(self, entry: Entry, network: TransducerNetwork, search, streams: BoostedStreams):
        super().__init__(entry, network, search)
        self._streams = streams

    def fresh_rows(self, batch: int) -> GreedyRows:
        """Hypotheses that stand at the start of their lists."""
        return self._streams.start_rows(self._network, batch)


class OurBeam(Contestant):
    """Beam search with stable labels and the best tail brought to the host after every chunk."""

    def __init__(self, entry: Entry, network: TransducerNetwork, search: BeamSearch | CapturedBeamSearch):
        super().__init__(entry)
        self._network, self._sizes, self._search = network, BeamSizes(entry.beam), search

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list[TokenLists]:
        """Each chunk's stable labels, and what the best finished hypothesis has beyond."""
        rows, found = fresh_beams(self._network, len(chunks[0].lengths), self._sizes), []
        for frames, lengths, is_end in chunks:
            update, rows = self._search.decode(self._network.project_encoder(frames), lengths, is_end, rows)
            found.append(update.stable.to_host())
            tail = update.tail.to_host()
        return [*found, tail]

    def labels(self, decoded: list[TokenLists]) -> list[list[int]]:
        """Stable labels, then the tail."""
        return _joined([(lists.tokens.labels, lists.lengths) for lists in decoded])


def _joined(pieces: list[tuple[torch.Tensor, torch.Tensor]]) -> list[list[int]]:
    """Pieces of labels [B, M] with their lengths [B] -> each stream's labels."""
    streams: list[list[int]] = [[] for _ in pieces[0][1]]
    for labels, lengths in pieces:
        for stream, row, length in zip(streams, labels.tolist(), lengths.tolist(), strict=True):
            stream += row[:length]
    return streams


class Wanted(NamedTuple):
    """What to set up."""

    decoders: Sequence[str]
    beams: Sequence[int]
    spans: Sequence[str]
    device: str
    max_batch: int
    chunk_encoder_frames: int


def our_contestants(checkpoint: Checkpoint, wanted: Wanted) -> Iterator[Contestant | Absence]:
    """Everything asked for, or why it cannot be."""
    networks = {name: kind(checkpoint, wanted.device) for name, kind in _NETWORKS.items()}
    drivers = available_drivers(wanted.device)
    for decoder in wanted.decoders:
        if decoder == BOOSTED:
            yield from _boosted(checkpoint, networks[PRECOMPUTED], drivers, wanted)
            continue
        if decoder in _BEAM:
            for beam in wanted.beams:
                for driver, obstacle in drivers.items():
                    entry = Entry(PENSTOCK, decoder, driver, beam)
                    yield from [Absence(entry, obstacle)] if obstacle else _beam(entry, networks[PRECOMPUTED], wanted)
            continue
        for projections, network in networks.items():
            for driver, obstacle in drivers.items():
                entry = Entry(PENSTOCK, decoder, driver, projections=projections)
                yield from [Absence(entry, obstacle)] if obstacle else _greedy(entry, network, wanted)


def _beam(entry: Entry, network: TransducerNetwork, wanted: Wanted) -> Iterator[Contestant | Absence]:
    """One search for all spans."""
    search, sizes = BeamSearch(network, _BEAM[entry.decoder]), BeamSizes(entry.beam)
    driven = _driven(entry, wanted, lambda *where: beam_with_driver(search, *where, sizes))
    if isinstance(driven, Absence):
        yield driven
        return
    for span in wanted.spans:
        yield OurBeam(replace(entry, span=span), network, driven)


def _greedy(entry: Entry, network: TransducerNetwork, wanted: Wanted) -> Iterator[Contestant | Absence]:
    """One search for all spans: capturing is what costs."""
    search = _GREEDY[entry.decoder](network)
    driven = _driven(entry, wanted, lambda *where: with_driver(search, *where))
    if isinstance(driven, Absence):
        yield driven
        return
    for span in wanted.spans:
        if span == CHUNKS or entry.projections == PRECOMPUTED:
            yield OurGreedy(replace(entry, span=span), network, driven)


def _boosted(
    checkpoint: Checkpoint, network: TransducerNetwork, drivers: dict[str, str | None], wanted: Wanted
) -> Iterator[Contestant | Absence]:
    if not isinstance(checkpoint, Checkpoint):
        yield Absence(Entry(PENSTOCK, BOOSTED, "eager"), "random weights have no tokenizer to write phrases with")
        return
    streams = BoostedStreams(checkpoint, wanted.max_batch, wanted.device)
    for driver, obstacle in drivers.items():
        entry = Entry(PENSTOCK, BOOSTED, driver)
        if obstacle:
            yield Absence(entry, obstacle)
            continue
        search = LabelLooping(network, fusion=streams.fusion)
        driven = _driven(entry, wanted, lambda *where, search=search: with_driver(search, *where))
        yield driven if isinstance(driven, Absence) else OurBoosted(entry, network, driven, streams)


def _driven(entry: Entry, wanted: Wanted, drive: Callable) -> CapturedSearch | CapturedBeamSearch | Absence:
    """drive: gets driver, largest batch and frames of a chunk, and returns the search ready to be called."""
    try:
        driver = select_driver(entry.driver, wanted.device).driver
        return drive(driver, wanted.max_batch, wanted.chunk_encoder_frames)
    except (GraphError, RuntimeError) as error:
        return Absence(entry, f"cannot be captured: {error}")


def available_drivers(device: str) -> dict[str, str | None]:
    """Driver -> what prevents it; only the eager one where there is no CUDA device."""
    where = torch.device(device)
    if obstacle_to_graphs(where):
        return {"eager": None}
    return {"eager": None, "staged": None, "while": obstacle_to_while(where)}
