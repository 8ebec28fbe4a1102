"""Searches of this project with every driver of the device."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.frame_looping import FrameLooping, UnprojectedNetwork
from benchmarks.systems import (
    AES,
    ALSD,
    BOOSTED,
    CTC,
    CTC_BEAM,
    EACH_TIME,
    FRAME_LOOPING,
    LABEL_LOOPING,
    LM,
    PENSTOCK,
    PRECOMPUTED,
    Chunk,
    Selection,
    System,
    Unavailable,
    Variant,
    setup_errors,
)
from benchmarks.workload import BoostedStreams, FusedStreams, LmStreams
from penstock.decoding.beam.hyps import TokenLists
from penstock.decoding.beam.memory import fresh_states as fresh_beams
from penstock.decoding.beam.results import BeamReport
from penstock.decoding.beam.scratch import BeamNetwork
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch, CapturedBeamSearch, beam_with_driver
from penstock.decoding.ctc import CtcHead, CtcTokens, decode_greedily
from penstock.decoding.ctc import fresh_states as fresh_ctc_states
from penstock.decoding.greedy.memory import BatchedHyps, GreedyStates, fresh_states
from penstock.decoding.greedy.search import CapturedSearch, GreedySearch, LabelLooping, with_driver
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.tensors.tensor_tree import tree_to_host
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.decoding.transducer.networks import open_network
from penstock.errors import StreamError
from penstock.graphs.select import missing_for_graphs, missing_for_while_nodes, select_driver
from penstock.kernels.capability import FUSED, TORCH, why_unavailable
from penstock.model.bundle import Checkpoint

_GREEDY: dict[str, type[GreedySearch]] = {LABEL_LOOPING: LabelLooping, FRAME_LOOPING: FrameLooping}
_FUSED: dict[str, Callable[..., FusedStreams]] = {BOOSTED: BoostedStreams, LM: LmStreams}
_BEAM = {ALSD: BeamAlgorithm.ALSD, AES: BeamAlgorithm.AES}


class GreedySystem(System):
    """Greedy search; labels are copied to the host after every chunk."""

    def __init__(self, variant: Variant, network: TransducerNetwork, search: GreedySearch | CapturedSearch):
        super().__init__(variant)
        self._network, self._search = network, search

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list[BatchedHyps]:
        """The labels of each chunk."""
        states, found = self.start_states(len(chunks[0].lengths)), []
        for chunk in chunks:
            hyps, states = self._search.decode(self._network.project_encoder(chunk.frames), chunk.lengths, states)
            found.append(hyps.to_host())
        return found

    def start_states(self, batch: int) -> GreedyStates:
        """Hypotheses without labels."""
        return fresh_states(self._network, batch)

    def labels(self, decoded: list[BatchedHyps]) -> list[list[int]]:
        """Labels of all chunks."""
        return _joined([(hyps.labels, hyps.lengths) for hyps in decoded])


class FusedSystem(GreedySystem):
    """Label-looping with a language model or with one phrase list per stream."""

    def __init__(
        self,
        variant: Variant,
        network: TransducerNetwork,
        search: GreedySearch | CapturedSearch,
        streams: FusedStreams,
    ):
        """search: with the streams' fusion."""
        super().__init__(variant, network, search)
        self._streams = streams

    def start_states(self, batch: int) -> GreedyStates:
        """Hypotheses at the start of their automata."""
        return self._streams.start_states(self._network, batch)


class BeamSystem(System):
    """Beam search; stable labels and the best unstable suffix are copied to the host after every chunk."""

    def __init__(
        self,
        variant: Variant,
        network: BeamNetwork,
        search: BeamSearch | CapturedBeamSearch,
        sizes: BeamSizes,
        streams: FusedStreams | None = None,
    ):
        """streams: whose fusion the search has."""
        super().__init__(variant)
        self._network, self._sizes, self._search, self._streams = network, sizes, search, streams

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list[TokenLists]:
        """Each chunk's stable labels, then the rest of the best finished hypothesis."""
        batch, found = len(chunks[0].lengths), []
        fusion = None if self._streams is None else self._streams.start(batch)
        states = fresh_beams(self._network, batch, self._sizes, fusion=fusion)
        for frames, lengths, is_end in chunks:
            update, states = self._search.decode(self._network.project_encoder(frames), lengths, is_end, states)
            report = BeamReport(update, states.forced_blanks, states.pruned_hypotheses).to_host()
            found.append(report.update.stable)
        return [*found, report.update.unstable]

    def labels(self, decoded: list[TokenLists]) -> list[list[int]]:
        """Stable labels, then the rest."""
        return _joined([(lists.tokens.labels, lists.lengths) for lists in decoded])


class CtcSystem(System):
    """Greedy CTC search; tokens that ended are copied to the host after every chunk."""

    def __init__(self, variant: Variant, head: CtcHead):
        super().__init__(variant)
        self._head = head

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list[CtcTokens]:
        """Each chunk's tokens, then those of the last frames."""
        states, found = fresh_ctc_states(self._head, len(chunks[0].lengths)), []
        for chunk in chunks:
            update, states = decode_greedily(self._head.log_probs(chunk.frames), chunk.lengths, states)
            found.append(tree_to_host(update.closed))
        return [*found, tree_to_host(update.open)]

    def labels(self, decoded: list[CtcTokens]) -> list[list[int]]:
        """Labels of all chunks."""
        return _joined([(tokens.labels, tokens.lengths) for tokens in decoded])


def _joined(pieces: list[tuple[torch.Tensor, torch.Tensor]]) -> list[list[int]]:
    """Pieces of labels [B, M] with their lengths [B] -> each stream's labels."""
    streams: list[list[int]] = [[] for _ in pieces[0][1]]
    for labels, lengths in pieces:
        for stream, row, length in zip(streams, labels.tolist(), lengths.tolist(), strict=True):
            stream += row[:length]
    return streams


def penstock_systems(checkpoint: Checkpoint, selection: Selection) -> Iterator[System | Unavailable]:
    """Every selected system, or why it is unavailable."""
    networks = _Networks(checkpoint, selection.device)
    for decoder in selection.decoders:
        if decoder in _FUSED:
            yield from _fused(decoder, checkpoint, networks, selection)
        elif decoder in (CTC, CTC_BEAM):
            yield from _ctc(decoder, checkpoint, selection)
        elif decoder in _BEAM:
            for beam in selection.beams:
                plain = Variant(PENSTOCK, decoder, "no_graphs", beam, has_lm=selection.streams is not None)
                for variant in _variants(plain, selection, (TORCH,)):
                    yield from _beam(variant, networks, selection)
        else:
            # A factorized transducer has one implementation: no fused kernels, and no version without projections.
            is_factorized = checkpoint.config.transducer is not None and checkpoint.config.transducer.is_factorized
            standard = ((PRECOMPUTED, selection.kernels), (EACH_TIME, (TORCH,)))
            has_lm = selection.streams is not None
            for projections, kernels in standard[:1] if is_factorized or has_lm else standard:
                plain = Variant(PENSTOCK, decoder, "no_graphs", projections=projections, has_lm=has_lm)
                for variant in _variants(plain, selection, (TORCH,) if is_factorized else kernels):
                    yield from _greedy(variant, networks, selection)


def _variants(variant: Variant, selection: Selection, kernels: Sequence[str]) -> Iterator[Variant]:
    """The variant with each of the kernels and every driver of this kind of device."""
    for kernel in kernels:
        for driver in available_drivers(selection.device):
            yield replace(variant, driver=driver, kernels=kernel)


class _Networks:
    """One network for all variants that can share it."""

    def __init__(self, checkpoint: Checkpoint, device: str):
        self._checkpoint, self._device = checkpoint, device
        self._made: dict[tuple[str, str], TransducerNetwork] = {}

    def get(self, variant: Variant) -> TransducerNetwork:
        """Builds the network on first use."""
        key = variant.projections, variant.kernels
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _make(self, projections: str, kernels: str) -> TransducerNetwork:
        if projections == EACH_TIME:
            return UnprojectedNetwork(self._checkpoint, self._device)
        return open_network(self._checkpoint, self._device, kernels=kernels)


def _beam(variant: Variant, networks: _Networks, selection: Selection) -> Iterator[System | Unavailable]:
    """One search for all spans."""
    network, sizes = networks.get(variant), BeamSizes(variant.beam)
    fusion = None if selection.streams is None else selection.streams.fusion
    yield from _beam_spans(variant, network, BeamSearch(network, _BEAM[variant.decoder], fusion), sizes, selection)


def _beam_spans(
    variant: Variant, network: BeamNetwork, search: BeamSearch, sizes: BeamSizes, selection: Selection
) -> Iterator[System | Unavailable]:
    driven = _driven(variant, selection, lambda *where: beam_with_driver(search, *where, sizes))
    if isinstance(driven, Unavailable):
        yield driven
        return
    for span in selection.spans:
        yield BeamSystem(replace(variant, span=span), network, driven, sizes, selection.streams)


def _ctc(decoder: str, checkpoint: Checkpoint, selection: Selection) -> Iterator[System | Unavailable]:
    if checkpoint.config.ctc is None:
        yield Unavailable(Variant(PENSTOCK, decoder, "no_graphs"), "the model has no CTC head")
        return
    head = CtcHead(checkpoint, selection.device)
    if decoder == CTC:  # it has no loop that graphs could save
        for span in selection.spans:
            yield CtcSystem(Variant(PENSTOCK, CTC, "no_graphs", span=span), head)
        return
    for beam in selection.beams:
        for variant in _variants(Variant(PENSTOCK, CTC_BEAM, "no_graphs", beam), selection, (TORCH,)):
            sizes = BeamSizes(beam, carried_encoder_frames=0)
            yield from _beam_spans(variant, head, BeamSearch(head), sizes, selection)


def _greedy(variant: Variant, networks: _Networks, selection: Selection) -> Iterator[System | Unavailable]:
    """One search for all spans: capturing is expensive."""

    streams = selection.streams

    def drive(*where) -> GreedySearch | CapturedSearch:
        fusion = None if streams is None else streams.fusion
        return with_driver(_GREEDY[variant.decoder](networks.get(variant), fusion=fusion), *where)

    driven = _driven(variant, selection, drive)
    if isinstance(driven, Unavailable):
        yield driven
        return
    for span in selection.spans:
        named, network = replace(variant, span=span), networks.get(variant)
        yield (
            GreedySystem(named, network, driven) if streams is None else FusedSystem(named, network, driven, streams)
        )


def _fused(
    decoder: str, checkpoint: Checkpoint, networks: _Networks, selection: Selection
) -> Iterator[System | Unavailable]:
    plain = Variant(PENSTOCK, decoder, "no_graphs")
    try:
        streams = _FUSED[decoder](checkpoint, selection.max_batch, selection.device)
    except StreamError as error:
        yield Unavailable(plain, str(error))
        return
    for variant in _variants(plain, selection, selection.kernels):

        def drive(*where, variant=variant) -> GreedySearch | CapturedSearch:
            return with_driver(LabelLooping(networks.get(variant), fusion=streams.fusion), *where)

        driven = _driven(variant, selection, drive)
        yield (
            driven if isinstance(driven, Unavailable) else FusedSystem(variant, networks.get(variant), driven, streams)
        )


def _driven(variant: Variant, selection: Selection, drive: Callable) -> Any:
    """What `drive` returns, or why there is none.

    drive: called with driver, largest batch and encoder frames per chunk; returns one search.
    """
    obstacle = available_drivers(selection.device)[variant.driver]
    if variant.kernels == FUSED:
        obstacle = why_unavailable(selection.device) or obstacle
    if obstacle:
        return Unavailable(variant, obstacle)
    try:
        driver = select_driver(variant.driver, selection.device).driver
        return drive(driver, selection.max_batch, selection.chunk_encoder_frames)
    except setup_errors() as error:
        return Unavailable(variant, f"cannot be set up: {error}")


def available_drivers(device: str) -> dict[str, str | None]:
    """Driver -> why it is unavailable, or None; only no_graphs without a CUDA device."""
    where = torch.device(device)
    if missing_for_graphs(where):
        return {"no_graphs": None}
    return {"no_graphs": None, "no_while_loops": None, "full_graph": missing_for_while_nodes()}
