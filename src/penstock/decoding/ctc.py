"""CTC: the head's log-probabilities for every search, and greedy search with its state between chunks.

Greedy search (Graves et al., ICML 2006, 3.2) takes the best label of each frame, collapses repeats and removes blanks.
A token lasts as long as its label repeats. The one that a chunk ends with stays open: the next chunk may repeat it.
"""

from typing import NamedTuple

import torch

from penstock.decoding.tensors.tensor_tree import StateStore
from penstock.decoding.transducer.interface import Prediction, PredictorState
from penstock.decoding.transducer.layers import FrameProjection
from penstock.errors import CheckpointError
from penstock.model.bundle import Checkpoint
from penstock.runtime import prepare_device


class CtcHead:
    """Linear layer and log-softmax of a checkpoint with a CTC head.

    For beam search it has the interface of `TransducerNetwork` without a predictor.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        """CheckpointError for a checkpoint without a CTC head."""
        config = checkpoint.config.ctc
        if config is None:
            raise CheckpointError(f"{checkpoint.directory}: has no CTC head, only {checkpoint.config.head_name}")
        self.device, self.dtype = prepare_device(device), dtype
        self.vocabulary_size = config.vocabulary_size
        """V, labels without blank."""
        tensors = {name: tensor.to(self.device, dtype) for name, tensor in checkpoint.tensors("ctc.").items()}
        self._projection = FrameProjection(checkpoint, tensors["ctc.weight"], tensors["ctc.bias"])
        self.frame_width = config.vocabulary_size + 1
        """Width of `project_encoder`'s output."""

    @property
    def blank(self) -> int:
        """The blank label, after all others."""
        return self.vocabulary_size

    def log_probs(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Log-probabilities [B, T, V + 1] of labels and blank, blank last; encoded: [B, T, D], T may be 0.

        prompts: [B] int64, of a model with language prompts; else not used.
        """
        return torch.log_softmax(self._projection(encoded, prompts), dim=-1)

    def project_encoder(self, encoded: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """`log_probs`, as what beam search does with a chunk before its steps."""
        return self.log_probs(encoded, prompts)

    def start(self, count: int) -> Prediction:
        """The prediction of `count` hypotheses: a CTC head has no predictor, so it is empty, [count, 0]."""
        return Prediction(torch.zeros(count, 0, dtype=self.dtype, device=self.device), ())

    def predict(self, labels: torch.Tensor, state: PredictorState) -> Prediction:
        """The prediction after `labels` [N] int64, which is empty, too."""
        return self.start(len(labels))


class CtcStates(NamedTuple):
    """State of B streams, all [B]. The open token is the label of the last frame, which the next frame may repeat."""

    last_labels: torch.Tensor
    """int64, best label of the last frame; blank before the first frame."""
    first_frames: torch.Tensor
    """int64, encoder frame at which the open token began; not defined where the last label is blank."""
    scores: torch.Tensor
    """Log-probability of the open token at that frame."""
    frames_seen: torch.Tensor
    """int64, encoder frames of all earlier chunks."""


class CtcStateStore(StateStore[CtcStates]):
    """Greedy CTC states of all streams."""

    def __init__(self, head: CtcHead, slots: int):
        super().__init__(fresh_states(head, 1), slots)

    def reset(self, slots: torch.Tensor) -> None:
        """Makes `slots` [B] int64 streams without frames."""
        self.scatter(slots, self._fresh_states(len(slots)))

    def begin_segment(self, slots: torch.Tensor) -> None:
        """Counts the frames of `slots` [B] int64 from here. An open token goes on, from before frame 0."""
        states = self.gather(slots)
        first_frames = states.first_frames - states.frames_seen
        self.scatter(slots, states._replace(first_frames=first_frames, frames_seen=torch.zeros_like(first_frames)))


def fresh_states(head: CtcHead, batch: int) -> CtcStates:
    """`batch` streams without frames."""
    last_labels, first_frames, frames_seen = torch.zeros(3, batch, dtype=torch.int64, device=head.device).unbind()
    scores = torch.zeros(batch, dtype=head.dtype, device=head.device)
    return CtcStates(last_labels + head.blank, first_frames, scores, frames_seen)


class CtcTokens(NamedTuple):
    """Lists of tokens of B streams with room for M each; only entries below `lengths` are valid."""

    labels: torch.Tensor
    """[B, M] int64"""
    timestamps: torch.Tensor
    """[B, M] int64, encoder frame of the label's first occurrence, from the stream's start."""
    durations: torch.Tensor
    """[B, M] int64, encoder frames that the label lasts."""
    scores: torch.Tensor
    """[B, M] log-probability of the label at its first frame."""
    lengths: torch.Tensor
    """[B] int64"""


class CtcUpdate(NamedTuple):
    """Tokens of one chunk of B streams."""

    closed: CtcTokens
    """[B, T]: tokens that ended in the chunk."""
    open: CtcTokens
    """[B, 1]: the token of the last frame, which may go on; none after a blank."""


@torch.inference_mode()
def decode_greedily(log_probs: torch.Tensor, lengths: torch.Tensor, states: CtcStates) -> tuple[CtcUpdate, CtcStates]:
    """Decodes one chunk of B streams; does not synchronize.

    log_probs: [B, T, V + 1], T may be 0; lengths: [B] int64 valid frames, 0 .. T; states: before the chunk, not
    modified. Returns the tokens and the states after. A stream of length 0 keeps its state.
    """
    blank, frames = log_probs.shape[2] - 1, log_probs.shape[1]
    # 1) the best label of each frame after that of the frame before; after the end, the last one goes on: [B, 1 + T]
    best, labels = log_probs.max(dim=2)
    labels = torch.cat([states.last_labels.unsqueeze(1), labels], dim=1)
    scores = torch.cat([states.scores.unsqueeze(1), best], dim=1)
    places = torch.arange(frames + 1, device=lengths.device)
    labels = labels.gather(1, torch.minimum(places, lengths.unsqueeze(1)))
    # 2) where the run of equal labels of each column begins; column 0 goes on what earlier chunks began: [B, 1 + T]
    is_new = torch.nn.functional.pad(labels[:, 1:] != labels[:, :-1], (1, 0))
    begins = torch.where(is_new, places, 0).cummax(dim=1).values
    first_frames = states.frames_seen.unsqueeze(1) + begins - 1
    first_frames = torch.where(begins == 0, states.first_frames.unsqueeze(1), first_frames)
    scores = scores.gather(1, begins)
    # 3) closed tokens: a label before each new run, moved to the front: [B, T]
    is_closed = is_new[:, 1:] & (labels[:, :-1] != blank)
    ends = states.frames_seen.unsqueeze(1) + places[:-1]
    order = (~is_closed).long().argsort(dim=1, stable=True)
    closed = CtcTokens(
        labels=labels.gather(1, order),
        timestamps=first_frames.gather(1, order),
        durations=(ends - first_frames[:, :-1]).gather(1, order),
        scores=scores.gather(1, order),
        lengths=is_closed.sum(dim=1),
    )
    # 4) the state is the last column, with the open token
    after = CtcStates(labels[:, -1], first_frames[:, -1], scores[:, -1], states.frames_seen + lengths)
    still_open = CtcTokens(
        labels=after.last_labels.unsqueeze(1),
        timestamps=after.first_frames.unsqueeze(1),
        durations=(after.frames_seen - after.first_frames).unsqueeze(1),
        scores=after.scores.unsqueeze(1),
        lengths=(after.last_labels != blank).long(),
    )
    return CtcUpdate(closed, still_open), after
