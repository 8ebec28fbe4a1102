"""Greedy Transducer decoding by label-looping (arXiv 2406.06220, Algorithm 3), for RNN-T and TDT.

`GreedySearch` has the steps that greedy searches share: they begin a chunk, emit labels and finish the chunk. A search
is a program of steps over a `GreedyWorkspace`, which is run eagerly, or by a driver in a `CapturedSearch`: CUDA graphs
need bucketed batch sizes.
"""

from abc import ABC, abstractmethod
from functools import partial

import torch

from penstock.decoding.greedy.memory import (
    IS_EMITTING,
    IS_SEARCHING,
    BatchedHyps,
    GreedyBuffers,
    GreedyStates,
    GreedyWorkspace,
)
from penstock.decoding.sizes import GREEDY_WINDOW_ENCODER_FRAMES
from penstock.decoding.tensors.graph_buckets import Bucket, Buckets, split_chunk
from penstock.decoding.tensors.tensor_tree import first, map_tensors, overwrite
from penstock.decoding.transducer.interface import FrameAdvance, Prediction, TransducerNetwork, max_labels
from penstock.graphs.program import Driver, Program, While, run_eagerly
from penstock.kernels.capability import TORCH
from penstock.scoring.fusion import Fusion

_LARGE_VOCABULARY, _WINDOW_OF_LARGE_VOCABULARY = 4096, 4
"""On the CPU. A frame after the label found was scored in vain, which takes longer the larger the joint is."""
_LEAST_LEFT_OUT = 8
"""Leaving out fewer takes longer than scoring them in vain."""


class GreedySearch(ABC):
    """Base of the greedy searches; `decode` runs the search eagerly."""

    def __init__(self, network: TransducerNetwork, max_symbols: int | None = None, fusion: Fusion | None = None):
        """max_symbols: labels at one frame before time moves on by one frame; by default as in the checkpoint.

        fusion: language model and boosting; each stream's choices are in its state.
        """
        self.network = network
        self.max_symbols = max_symbols or network.config.max_symbols
        self._fusion = None if fusion is None or fusion.is_empty else fusion
        self._advance = FrameAdvance(network.config, network.device)

    def decode(
        self,
        projected_frames: torch.Tensor,
        lengths: torch.Tensor,
        states: GreedyStates,
        overwrites_states: bool = False,
    ) -> tuple[BatchedHyps, GreedyStates]:
        """Decodes one chunk of B streams.

        projected_frames: [B, T, J] from `project_encoder`; lengths: [B] int64 valid frames, 0 .. T; states: before the
        chunk, not modified unless `overwrites_states`. Returns the labels found and the states after. A stream of
        length 0 keeps its state. Synchronizes once per round of each loop.
        """
        batch, frames, _ = projected_frames.shape
        hyps = BatchedHyps(batch, 2 * frames + 2, projected_frames.device, is_growable=True)
        states = states if overwrites_states else map_tensors(torch.clone, states)
        workspace = GreedyWorkspace(projected_frames, lengths, states, hyps, projected_frames.is_cpu)
        run_eagerly(self.program(workspace))
        return hyps, workspace.states

    def program(self, workspace: GreedyWorkspace) -> Program:
        """The search over the tensors of `workspace`, to which it adds what this search needs."""
        if self._fusion is not None and self.network.kernels == TORCH:
            workspace.allocate_label_scores(self.network.config.vocabulary_size)
        return self._program(workspace)

    @abstractmethod
    def _program(self, workspace: GreedyWorkspace) -> Program: ...

    def _begin(self, workspace: GreedyWorkspace) -> None:
        workspace.hyps.clear()
        torch.sub(workspace.states.next_frame, workspace.states.frames_seen, out=workspace.frame)
        workspace.is_emitting.zero_()
        torch.any(workspace.frame < workspace.lengths, out=workspace.is_searching)

    def _emit(self, workspace: GreedyWorkspace) -> None:
        """Adds the labels found, and advances time and predictor there; all tensors [B]."""
        states, is_label, jump = workspace.states, workspace.is_label, workspace.jump
        # 1) fuse: choose the label anew with external scores
        if self._fusion is not None:
            self._choose_fused_label(self._fusion, workspace)
        # 2) store the labels
        timestamp = states.frames_seen + workspace.frame
        workspace.hyps.add(is_label, workspace.label, timestamp, jump, workspace.score, workspace.rows)
        # 3) advance time by the label's duration, or by one frame after max_symbols labels at the frame
        labels_here = states.labels_at_frame * (timestamp == states.next_frame) + is_label
        advance = is_label & (labels_here >= self.max_symbols)
        if self.network.config.is_tdt:  # else a label's `jump` is 0
            advance = jump * is_label + (advance & (jump == 0))
        workspace.frame += advance
        torch.add(states.frames_seen, workspace.frame, out=states.next_frame)
        torch.mul(labels_here, advance == 0, out=states.labels_at_frame)
        # 4) advance the predictor
        prediction = Prediction(states.projected_predictions, states.predictor_state)
        self.network.replace_(workspace.label, is_label, prediction)
        workspace.is_emitting.zero_()  # until a search step sets it
        torch.any(workspace.frame < workspace.lengths, out=workspace.is_searching)

    def _choose_fused_label(self, fusion: Fusion, workspace: GreedyWorkspace) -> None:
        """Chooses which label it is by the fused scores. That it is a label, not blank, was decided without them.

        External scores depend on the labels so far, not on the frame: they are looked up once per label, and so are the
        internal language model's, which also had a part in that decision. The score kept is that of the network. The
        fused kernel keeps no scores of all labels, so the joint is computed again there, at the one frame of each
        hypothesis.
        """
        states, label = workspace.states, workspace.label
        assert states.fusion, "a search with external scores needs their states"
        transitions = fusion.score_all(states.fusion)  # scores [B, V]
        if workspace.label_scores is None:
            frames = workspace.frames_at(workspace.frame.unsqueeze(1))  # [B, 1, J]
            choice = self.network.choose(frames, states.projected_predictions, transitions.scores, states.ilm)
            label.copy_(choice.label.squeeze(1))
            workspace.score.copy_(choice.score.squeeze(1))
        else:
            own = self.network.ilm_scores(states.projected_predictions, states.ilm)
            external = transitions.scores if own is None else own + transitions.scores
            torch.argmax(workspace.label_scores + external, dim=1, out=label)
            torch.gather(workspace.label_scores, 1, label.unsqueeze(1), out=workspace.score.unsqueeze(1))
        overwrite(states.fusion, workspace.is_label, transitions.follow(label), states.fusion)

    def _finish(self, workspace: GreedyWorkspace) -> None:
        workspace.widen()
        states = workspace.states
        next_frame = states.frames_seen + workspace.frame
        states.labels_at_frame.mul_(next_frame == states.next_frame)
        states.next_frame.copy_(next_frame)
        states.frames_seen.add_(workspace.lengths)


class LabelLooping(GreedySearch):
    """Label-looping: each round of the outer loop emits at most one label per stream; the inner loop skips blanks.

    The inner loop scores a window of frames at once: while the predictor does not change, the jump from each blank
    frame is known, and following the jumps needs no further network evaluation. The result is that of frame-by-frame
    search.
    """

    def __init__(
        self,
        network: TransducerNetwork,
        max_symbols: int | None = None,
        window_encoder_frames: int | None = None,
        fusion: Fusion | None = None,
    ):
        """window_encoder_frames: frames that one round of the inner loop scores; does not change the result.

        By default 8, and 4 for large vocabularies on the CPU.
        """
        super().__init__(network, max_symbols, fusion)
        self.window_encoder_frames = window_encoder_frames or _default_window(network)
        self._offsets = torch.arange(self.window_encoder_frames, device=network.device)

    def _program(self, workspace: GreedyWorkspace) -> Program:
        offsets = self._offsets[: workspace.max_frames]
        skip_blanks = While(IS_SEARCHING, (partial(self._search_window, workspace, offsets),))
        can_leave_out = workspace.is_narrowable and workspace.lengths.shape[0] > _LEAST_LEFT_OUT
        leave_out = (partial(_leave_out, workspace),) if can_leave_out else ()
        emit_labels = While(IS_EMITTING, (*leave_out, partial(self._emit, workspace), skip_blanks))
        begin, finish = partial(self._begin, workspace), partial(self._finish, workspace)
        return Program(workspace.flags, (begin, skip_blanks, emit_labels, finish))

    def _search_window(self, workspace: GreedyWorkspace, offsets: torch.Tensor) -> None:
        """One round of the inner loop, from `workspace.frame` over a window; offsets: 0, 1, ... [W] int64.

        A chunk that is no longer than a window is the window, as it lies in memory, and takes one round. Hypotheses
        that have found their label find it again at the same frame.
        """
        window, states = len(offsets), workspace.states
        is_whole_chunk = window == workspace.max_frames
        # 1) score the window: [B, W]
        first = workspace.frame.unsqueeze(1)
        frames = offsets if is_whole_chunk else first + offsets
        projected = workspace.projected_frames if is_whole_chunk else workspace.frames_at(frames)
        choice = self.network.choose(projected, states.projected_predictions, ilm=states.ilm)
        # 2) follow the blanks' jumps to the first label, or out of the window or chunk: [B], a place in the window
        keeps_searching = choice.is_blank & (frames < workspace.lengths.unsqueeze(1))
        jump = None
        if self.network.config.is_tdt:
            jump = self._advance(choice.duration, choice.is_blank)
            successor = torch.where(keeps_searching, offsets + jump, offsets)
            stop = _follow(successor, first if is_whole_chunk else torch.zeros_like(first))
        else:  # each blank's jump is one frame, and a label's 0, as `workspace.jump` is
            if is_whole_chunk:
                keeps_searching |= offsets < first
            stop = keeps_searching.cumprod(1).sum(1)
        # 3) store the choice there
        at = stop.clamp(max=window - 1).unsqueeze(1)

        def pick_(place: torch.Tensor, values: torch.Tensor) -> None:
            torch.gather(values, 1, at, out=place.unsqueeze(1))

        if jump is not None:
            pick_(workspace.jump, jump)
        if workspace.label_scores is None:
            pick_(workspace.label, choice.label)
            pick_(workspace.score, choice.score)
        else:
            assert choice.labels is not None
            at_label = at.unsqueeze(2).expand(-1, -1, choice.labels.shape[2])
            torch.gather(choice.labels, 1, at_label, out=workspace.label_scores.unsqueeze(1))
        # 4) advance time and set the flags
        if is_whole_chunk:
            workspace.frame.copy_(stop)
            torch.lt(stop, workspace.lengths, out=workspace.is_label)
            workspace.is_searching.zero_()
        else:
            workspace.frame += stop
            has_frame = workspace.frame < workspace.lengths
            torch.logical_and(stop < window, has_frame, out=workspace.is_label)
            torch.any(has_frame > workspace.is_label, out=workspace.is_searching)
        torch.any(workspace.is_label, out=workspace.is_emitting)


def _leave_out(workspace: GreedyWorkspace) -> None:
    """Goes on without the hypotheses that have found no label, so are through with the chunk, if they are enough."""
    kept = workspace.is_label.nonzero().squeeze(1)
    left_out = len(workspace.is_label) - len(kept)
    if left_out >= max(_LEAST_LEFT_OUT, len(kept) // 3):
        workspace.narrow(kept)


def _default_window(network: TransducerNetwork) -> int:
    is_large = network.config.vocabulary_size > _LARGE_VOCABULARY
    return _WINDOW_OF_LARGE_VOCABULARY if is_large and network.device.type == "cpu" else GREEDY_WINDOW_ENCODER_FRAMES


def _follow(successor: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Returns where the jumps from `first` [B, 1] int64 end, [B]: at a fixed point, or beyond the window.

    successor: [B, W] int64, not below the position itself. Doubles the length of every jump log2(W) times.
    """
    window = successor.shape[1]
    for _ in range(window.bit_length()):
        further = successor.gather(1, successor.clamp(max=window - 1))
        successor = torch.where(successor < window, further, successor)
    end = successor.gather(1, first.clamp(max=window - 1))
    return torch.where(first < window, end, first).squeeze(1)


class CapturedSearch:
    """Runs a greedy search with a driver; a batch is padded to a bucket with streams of length 0."""

    def __init__(self, search: GreedySearch, driver: Driver, max_batch: int, frames: int):
        """Prepares all buckets.

        frames: encoder frames of a usual chunk; longer ones are decoded in parts, with the same result.
        """
        self._search, self._frames = search, frames
        labels = max_labels(search.network.config, frames, search.max_symbols)
        self._buffers = GreedyBuffers(search.network, max_batch, frames, labels)
        self._buckets = Buckets(driver, max_batch, self._buffers.workspace, search.program)

    @torch.inference_mode()
    def decode(
        self,
        projected_frames: torch.Tensor,
        lengths: torch.Tensor,
        states: GreedyStates,
        overwrites_states: bool = False,
    ) -> tuple[BatchedHyps, GreedyStates]:
        """Equals `GreedySearch.decode`, but the next call overwrites the tensors returned.

        A batch above the largest bucket is decoded eagerly. It synchronizes as its driver does.
        """
        batch = len(lengths)
        bucket = self._buckets.fitting(batch)
        if bucket is None:
            return self._search.decode(projected_frames, lengths, states, overwrites_states)
        self._buffers.load_states(states)
        hyps = self._decode_parts(bucket, projected_frames, lengths)
        new_states = bucket.workspace.states
        return hyps.first(batch), first(new_states if states.fusion else new_states._replace(fusion=()), batch)

    def _decode_parts(
        self, bucket: Bucket[GreedyWorkspace], projected_frames: torch.Tensor, lengths: torch.Tensor
    ) -> BatchedHyps:
        hyps, frames = bucket.workspace.hyps, projected_frames.shape[1]
        if frames <= self._frames:
            self._buffers.load(projected_frames, lengths)
            bucket.run()
            return hyps
        room = -(-frames // self._frames) * hyps.max_labels
        together = BatchedHyps(len(hyps.lengths), room, lengths.device, expected_labels=2 * frames + 2)
        for part in split_chunk(projected_frames, lengths, self._frames):
            self._buffers.load(part.projected_frames, part.lengths)
            bucket.run()
            together.extend(hyps)
        return together


def with_driver(search: GreedySearch, driver: Driver, max_batch: int, frames: int) -> GreedySearch | CapturedSearch:
    """Prepares the search for `driver`; the eager one needs no preparation, and takes the search as it is."""
    return search if driver.name == "no_graphs" else CapturedSearch(search, driver, max_batch, frames)
