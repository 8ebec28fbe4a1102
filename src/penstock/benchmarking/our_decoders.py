"""Our searches as contestants, with every driver that the device has. Knows no clock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from penstock.benchmarking.boosted import BoostedStreams, tokenizer_of
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
from penstock.benchmarking.failures import setup_failures
from penstock.checkpoint import Checkpoint
from penstock.cuda_graphs import obstacle_to_graphs, obstacle_to_while, select_driver
from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.beam_report import BeamReport
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
from penstock.errors import StreamError
from penstock.kernels.capability import FUSED, TORCH, why_unavailable

LABEL_LOOPING, FRAME_LOOPING, ALSD, AES = "label-looping", "frame-looping", "alsd", "aes"
BOOSTED = "boosted"
DECODERS = (LABEL_LOOPING, FRAME_LOOPING, ALSD, AES)
"""Those that find the same labels, and beams."""
ALL_DECODERS = (*DECODERS, BOOSTED)
_GREEDY: dict[str, type[GreedySearch]] = {LABEL_LOOPING: LabelLooping, FRAME_LOOPING: FrameLooping}
_BEAM = {ALSD: BeamAlgorithm.ALSD, AES: BeamAlgorithm.AES}


class OurGreedy(Contestant):
    """Greedy search with its labels brought to the host after every chunk."""

    def __init__(self, entry: Entry, network: TransducerNetwork, search: GreedySearch | CapturedSearch):
        super().__init__(entry)
        self._network, self._search = network, search

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list[BatchedHyps]:
        """The labels of each chunk."""
        batch, found = len(chunks[0].lengths), []
        search, rows = self.search_for(batch), self.fresh_rows(batch)
        for chunk in chunks:
            hyps, rows = search.decode(self._network.project_encoder(chunk.frames), chunk.lengths, rows)
            found.append(hyps.to_host())
        return found

    def search_for(self, batch: int) -> GreedySearch | CapturedSearch:
        """The same for every batch."""
        return self._search

    def fresh_rows(self, batch: int) -> GreedyRows:
        """Hypotheses without labels."""
        return fresh_rows(self._network, batch)

    def labels(self, decoded: list[BatchedHyps]) -> list[list[int]]:
        """All chunks' labels together."""
        return _joined([(hyps.labels, hyps.lengths) for hyps in decoded])


class OurBoosted(OurGreedy):
    """Label-looping with a phrase list a stream."""

    def __init__(self, entry: Entry, network: TransducerNetwork, searches: list, streams: BoostedStreams):
        """searches: with each of the streams' fusions, those that no batch needs left out."""
        super().__init__(entry, network, searches[-1])
        self._searches, self._streams = searches, streams

    def search_for(self, batch: int) -> GreedySearch | CapturedSearch:
        """As a server takes it."""
        return self._searches[self._streams.least_fusion(batch)]

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
            report = BeamReport(update, rows.forced_on, rows.dropped).to_host()
            found.append(report.update.stable)
        return [*found, report.update.tail]

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
    kernels: Sequence[str] = (TORCH,)
    """Of greedy search with precomputed projections; all else is torch's."""


def our_contestants(checkpoint: Checkpoint, wanted: Wanted) -> Iterator[Contestant | Absence]:
    """Everything asked for, or why it cannot be."""
    networks = _Networks(checkpoint, wanted.device)
    for decoder in wanted.decoders:
        if decoder == BOOSTED:
            yield from _boosted(checkpoint, networks, wanted)
        elif decoder in _BEAM:
            for beam in wanted.beams:
                for entry in _entries(Entry(PENSTOCK, decoder, "eager", beam), wanted, (TORCH,)):
                    yield from _beam(entry, networks, wanted)
        else:
            for projections, kernels in ((PRECOMPUTED, wanted.kernels), (EACH_TIME, (TORCH,))):
                for entry in _entries(Entry(PENSTOCK, decoder, "eager", projections=projections), wanted, kernels):
                    yield from _greedy(entry, networks, wanted)


def _entries(entry: Entry, wanted: Wanted, kernels: Sequence[str]) -> Iterator[Entry]:
    """The entry with each of the kernels and every driver that a device of this kind may have."""
    for kernel in kernels:
        for driver in available_drivers(wanted.device):
            yield replace(entry, driver=driver, kernels=kernel)


class _Networks:
    """One network for all entries that can share it."""

    def __init__(self, checkpoint: Checkpoint, device: str):
        self._checkpoint, self._device = checkpoint, device
        self._made: dict[tuple[str, str], TransducerNetwork] = {}

    def get(self, entry: Entry) -> TransducerNetwork:
        """For an entry that nothing prevents."""
        key = entry.projections, entry.kernels
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _make(self, projections: str, kernels: str) -> TransducerNetwork:
        if projections == EACH_TIME:
            return UnprojectedNetwork(self._checkpoint, self._device)
        return TransducerNetwork(self._checkpoint, self._device, kernels=kernels)


def _beam(entry: Entry, networks: _Networks, wanted: Wanted) -> Iterator[Contestant | Absence]:
    """One search for all spans."""
    network, sizes = networks.get(entry), BeamSizes(entry.beam)
    search = BeamSearch(network, _BEAM[entry.decoder])
    driven = _driven(entry, wanted, lambda *where: beam_with_driver(search, *where, sizes))
    if isinstance(driven, Absence):
        yield driven
        return
    for span in wanted.spans:
        yield OurBeam(replace(entry, span=span), network, driven)


def _greedy(entry: Entry, networks: _Networks, wanted: Wanted) -> Iterator[Contestant | Absence]:
    """One search for all spans: capturing is what costs."""

    def drive(*where) -> GreedySearch | CapturedSearch:
        return with_driver(_GREEDY[entry.decoder](networks.get(entry)), *where)

    driven = _driven(entry, wanted, drive)
    if isinstance(driven, Absence):
        yield driven
        return
    for span in wanted.spans:
        if span == CHUNKS or entry.projections == PRECOMPUTED:
            yield OurGreedy(replace(entry, span=span), networks.get(entry), driven)


def _boosted(checkpoint: Checkpoint, networks: _Networks, wanted: Wanted) -> Iterator[Contestant | Absence]:
    try:
        streams = BoostedStreams(tokenizer_of(checkpoint), wanted.max_batch, wanted.device)
    except StreamError as error:
        yield Absence(Entry(PENSTOCK, BOOSTED, "eager"), str(error))
        return
    for entry in _entries(Entry(PENSTOCK, BOOSTED, "eager"), wanted, wanted.kernels):

        def drive(*where, entry=entry) -> list[GreedySearch | CapturedSearch]:
            needed = streams.fusions[: streams.least_fusion(wanted.max_batch) + 1]
            return [with_driver(LabelLooping(networks.get(entry), fusion=fusion), *where) for fusion in needed]

        driven = _driven(entry, wanted, drive)
        yield driven if isinstance(driven, Absence) else OurBoosted(entry, networks.get(entry), driven, streams)


def _driven(entry: Entry, wanted: Wanted, drive: Callable) -> Any:
    """What `drive` returns, or an Absence.

    drive: gets driver, largest batch and frames of a chunk, and returns one search or several, ready to be called.
    """
    obstacle = available_drivers(wanted.device)[entry.driver]
    if entry.kernels == FUSED:
        obstacle = why_unavailable(wanted.device) or obstacle
    if obstacle:
        return Absence(entry, obstacle)
    try:
        driver = select_driver(entry.driver, wanted.device).driver
        return drive(driver, wanted.max_batch, wanted.chunk_encoder_frames)
    except setup_failures() as error:
        return Absence(entry, f"cannot be set up: {error}")


def available_drivers(device: str) -> dict[str, str | None]:
    """Driver -> what prevents it; only the eager one where there is no CUDA device."""
    where = torch.device(device)
    if obstacle_to_graphs(where):
        return {"eager": None}
    return {"eager": None, "staged": None, "while": obstacle_to_while(where)}
