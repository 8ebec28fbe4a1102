"""Searches of this project with every driver of the device, and the baselines of label-looping.

`FrameLooping` is arXiv 2406.03791, Algorithm 1, for RNN-T and TDT. All streams of a batch are at the same frame. A
stream that emits a label stalls the others, and predictor and joint run for all streams in every step. A TDT stream is
idle until the batch reaches the frame it jumped to, so the result is exact. The two loops of the paper are one: time
advances in the step in which no stream emits a label. State and labels are those of label-looping.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.systems import (
    AES,
    ALSD,
    BOOSTED,
    CTC,
    EACH_TIME,
    FRAME_LOOPING,
    LABEL_LOOPING,
    PENSTOCK,
    PRECOMPUTED,
    BoostedStreams,
    Chunk,
    FusedStreams,
    Selection,
    System,
    Unavailable,
    Variant,
    setup_errors,
)
from penstock.decoding.beam.memory import fresh_states as fresh_beams
from penstock.decoding.beam.memory import with_choices
from penstock.decoding.beam.results import BeamReport
from penstock.decoding.beam.scratch import BeamNetwork
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch, CapturedBeamSearch, beam_with_driver
from penstock.decoding.ctc import CtcHead, decode_greedily
from penstock.decoding.ctc import fresh_states as fresh_ctc_states
from penstock.decoding.greedy.memory import IS_SEARCHING, GreedyWorkspace, fresh_states
from penstock.decoding.greedy.search import CapturedSearch, GreedySearch, LabelLooping, with_driver
from penstock.decoding.sizes import BeamSizes
from penstock.decoding.tensors.tensor_tree import tree_to_host
from penstock.decoding.transducer.interface import IlmWeights, Prediction, PredictorState, Scores, TransducerNetwork
from penstock.decoding.transducer.networks import StandardNetwork, open_network
from penstock.errors import StreamError
from penstock.graphs.program import Program, While
from penstock.graphs.select import missing_for_graphs, missing_for_while_nodes, select_driver
from penstock.kernels.capability import FUSED, TORCH, why_unavailable
from penstock.model.bundle import Checkpoint

_BEAM = {ALSD: BeamAlgorithm.ALSD, AES: BeamAlgorithm.AES}


class FrameLooping(GreedySearch):
    """Greedy search, one frame after another for all streams together."""

    def _program(self, workspace: GreedyWorkspace) -> Program:
        time = torch.zeros(1, dtype=torch.int64, device=workspace.lengths.device)
        emit = partial(self._emit, workspace)
        loop = While(
            IS_SEARCHING, (partial(self._search_frame, workspace, time), emit, partial(self._move_on, workspace, time))
        )
        begin = partial(self._begin, workspace)
        return Program(workspace.flags, (begin, time.zero_, loop, partial(self._finish, workspace)))

    def _search_frame(self, workspace: GreedyWorkspace, time: torch.Tensor) -> None:
        """Scores the common frame `time` [1] int64; streams with blank there advance."""
        # 1) score the common frame: [B, 1, J]
        is_active = _is_active(workspace, time)
        frames = workspace.projected_frames.index_select(1, time.clamp(max=workspace.max_frames - 1))
        states = workspace.states
        choice = self.network.choose(frames, states.projected_predictions, ilm=states.ilm)
        # 2) store the choice: [B]
        is_blank = choice.is_blank.squeeze(1)
        workspace.label.copy_(choice.label.squeeze(1))
        workspace.score.copy_(choice.score.squeeze(1))
        workspace.jump.copy_(self._advance(choice.duration, choice.is_blank).squeeze(1))
        if workspace.label_scores is not None:
            workspace.label_scores.copy_(choice.labels.squeeze(1))
        # 3) advance where it is blank
        torch.logical_and(is_active, ~is_blank, out=workspace.is_label)
        workspace.frame += workspace.jump * (is_active & is_blank)

    def _move_on(self, workspace: GreedyWorkspace, time: torch.Tensor) -> None:
        time += ~_is_active(workspace, time).any()
        torch.any(time < workspace.lengths, out=workspace.is_searching)


def _is_active(workspace: GreedyWorkspace, time: torch.Tensor) -> torch.Tensor:
    """[B] bool, True for streams at the frame `time` [1]."""
    return (workspace.frame == time) & (time < workspace.lengths)


class UnprojectedNetwork(StandardNetwork):
    """Computes both projections anew for each pair that is scored: the baseline of precomputed projections.

    Its "projected" frames are encoder frames [B, T, D], its "projected" predictions the LSTM's output [N, H].
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu"):
        super().__init__(checkpoint, device, torch.float32, TORCH)
        self.frame_width = checkpoint.tensors("joint.encoder.weight")["joint.encoder.weight"].shape[1]

    def project_encoder(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Does not project; for models without language prompts."""
        return encoded.to(self.dtype)

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """Runs the LSTM without the projection."""
        return Prediction(*self.lstm.step(labels, state))

    def score(
        self, projected_frames: torch.Tensor, projected_predictions: torch.Tensor, ilm: IlmWeights = ()
    ) -> Scores:
        """Projects both, then scores."""
        frames = self._projection(projected_frames.flatten(0, -2).unsqueeze(0))[0]
        predictions = self._predictor_projection(projected_predictions.flatten(0, -2))
        return super().score(
            frames.unflatten(0, projected_frames.shape[:-1]), predictions.unflatten(0, projected_predictions.shape[:-1])
        )


_GREEDY: dict[str, type[GreedySearch]] = {LABEL_LOOPING: LabelLooping, FRAME_LOOPING: FrameLooping}


class GreedySystem(System):
    """Greedy search; labels are copied to the host after every chunk."""

    def __init__(
        self,
        variant: Variant,
        network: TransducerNetwork,
        search: GreedySearch | CapturedSearch,
        streams: FusedStreams | None = None,
    ):
        """streams: with a language model or phrase lists, whose fusion the search has."""
        super().__init__(variant)
        self._network, self._search, self._streams = network, search, streams

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Labels and their number for each chunk."""
        batch, found = len(chunks[0].lengths), []
        states = fresh_states(self._network, batch)
        if self._streams is not None:
            states = states._replace(fusion=self._streams.start(batch))
        for chunk in chunks:
            hyps, states = self._search.decode(self._network.project_encoder(chunk.frames), chunk.lengths, states)
            on_host = hyps.to_host()
            found.append((on_host.labels, on_host.lengths))
        return found


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
    def decode(self, chunks: list[Chunk]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each chunk's stable labels and their number, then the rest of the best finished hypothesis."""
        batch, found = len(chunks[0].lengths), []
        fusion = None if self._streams is None else self._streams.start(batch)
        states = with_choices(fresh_beams(self._network, batch, self._sizes), fusion=fusion)
        for frames, lengths, is_end in chunks:
            update, states = self._search.decode(self._network.project_encoder(frames), lengths, is_end, states)
            report = BeamReport(update, states.forced_blanks, states.pruned_hypotheses).to_host()
            found.append(report.update.stable)
        return [(lists.tokens.labels, lists.lengths) for lists in (*found, report.update.unstable)]


class CtcSystem(System):
    """Greedy CTC search; tokens that ended are copied to the host after every chunk."""

    def __init__(self, variant: Variant, head: CtcHead):
        super().__init__(variant)
        self._head = head

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each chunk's labels and their number, then those of the last frames."""
        states, found = fresh_ctc_states(self._head, len(chunks[0].lengths)), []
        for chunk in chunks:
            update, states = decode_greedily(self._head.log_probs(chunk.frames), chunk.lengths, states)
            found.append(tree_to_host(update.closed))
        return [(tokens.labels, tokens.lengths) for tokens in (*found, tree_to_host(update.open))]


def penstock_systems(checkpoint: Checkpoint, selection: Selection) -> Iterator[System | Unavailable]:
    """Every selected system, or why it is unavailable."""
    networks = _Networks(checkpoint, selection.device)
    for decoder in selection.decoders:
        if decoder == BOOSTED:
            plain = Variant(PENSTOCK, decoder, "no_graphs")
            try:
                streams = BoostedStreams(checkpoint, selection.max_batch, selection.device)
            except StreamError as error:
                yield Unavailable(plain, str(error))
                continue
            for variant in _variants(plain, selection, selection.kernels):
                yield from _greedy(variant, networks, selection._replace(spans=(plain.span,)), streams)
        elif decoder == CTC:
            yield from _ctc(checkpoint, selection)
        elif decoder in _BEAM:
            for beam in selection.beams:
                plain = Variant(PENSTOCK, decoder, "no_graphs", beam, has_lm=selection.streams is not None)
                fusion = None if selection.streams is None else selection.streams.fusion
                for variant in _variants(plain, selection, (TORCH,)):
                    network = networks.get(variant)
                    search = BeamSearch(network, _BEAM[decoder], fusion)
                    yield from _beam(variant, network, search, BeamSizes(beam), selection)
        else:
            # A factorized transducer has one implementation: no fused kernels, and no version without projections.
            is_factorized = checkpoint.config.transducer is not None and checkpoint.config.transducer.is_factorized
            standard = ((PRECOMPUTED, selection.kernels), (EACH_TIME, (TORCH,)))
            has_lm = selection.streams is not None
            for projections, kernels in standard[:1] if is_factorized or has_lm else standard:
                plain = Variant(PENSTOCK, decoder, "no_graphs", projections=projections, has_lm=has_lm)
                for variant in _variants(plain, selection, (TORCH,) if is_factorized else kernels):
                    yield from _greedy(variant, networks, selection, selection.streams)


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
            self._made[key] = (
                UnprojectedNetwork(self._checkpoint, self._device)
                if variant.projections == EACH_TIME
                else open_network(self._checkpoint, self._device, kernels=variant.kernels)
            )
        return self._made[key]


def _beam(
    variant: Variant, network: BeamNetwork, search: BeamSearch, sizes: BeamSizes, selection: Selection
) -> Iterator[System | Unavailable]:
    driven = _driven(variant, selection, lambda *where: beam_with_driver(search, *where, sizes))
    if isinstance(driven, Unavailable):
        yield driven
        return
    for span in selection.spans:
        yield BeamSystem(replace(variant, span=span), network, driven, sizes, selection.streams)


def _ctc(checkpoint: Checkpoint, selection: Selection) -> Iterator[System | Unavailable]:
    """Without drivers: it has no loop that graphs could save."""
    plain = Variant(PENSTOCK, CTC, "no_graphs")
    if checkpoint.config.ctc is None:
        yield Unavailable(plain, "the model has no CTC head")
        return
    head = CtcHead(checkpoint, selection.device)
    for span in selection.spans:
        yield CtcSystem(replace(plain, span=span), head)


def _greedy(
    variant: Variant, networks: _Networks, selection: Selection, streams: FusedStreams | None
) -> Iterator[System | Unavailable]:
    """One search for all spans: capturing is expensive. streams: with phrases or a language model."""

    def drive(*where) -> GreedySearch | CapturedSearch:
        search = _GREEDY.get(variant.decoder, LabelLooping)
        return with_driver(search(networks.get(variant), fusion=streams and streams.fusion), *where)

    driven = _driven(variant, selection, drive)
    if isinstance(driven, Unavailable):
        yield driven
        return
    for span in selection.spans:
        yield GreedySystem(replace(variant, span=span), networks.get(variant), driven, streams)


def _driven(variant: Variant, selection: Selection, drive: Callable) -> Any:
    """Returns the result of `drive`, or why there is none.

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
