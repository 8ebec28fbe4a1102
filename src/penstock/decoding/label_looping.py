"""Greedy Transducer decoding by label-looping (arXiv 2406.06220, Algorithm 3), for RNN-T and TDT.

The outer loop finds one label for every stream a turn, the inner loop skips blanks. The inner loop looks at a window of
frames at once: with the predictor fixed, which blank leads where is known for each frame, and following the jumps needs
no further network evaluation. The result is that of frame-by-frame search. Knows nothing of streams or of CUDA graphs.
"""

from typing import NamedTuple

import torch

from penstock.decoding.batched_hyps import BatchedHyps
from penstock.decoding.frame_advance import FrameAdvance
from penstock.decoding.greedy_state import GreedyRows, select
from penstock.decoding.networks import TransducerNetwork

DEFAULT_WINDOW_ENCODER_FRAMES = 8


class Found(NamedTuple):
    """What the inner loop found for each of B rows."""

    frame: torch.Tensor
    """[B] int64 frame of this chunk at which the row stands: at a label, or at or behind its end."""
    label: torch.Tensor
    """[B] int64"""
    score: torch.Tensor
    """[B]"""
    jump: torch.Tensor
    """[B] int64, encoder frames that the label moves time on."""
    is_label: torch.Tensor
    """[B] bool, True where a label was found; False where the row still searches or has run out of frames."""


class LabelLooping:
    """Greedy search driven eagerly."""

    def __init__(
        self,
        network: TransducerNetwork,
        max_symbols: int | None = None,
        window_encoder_frames: int = DEFAULT_WINDOW_ENCODER_FRAMES,
    ):
        """max_symbols: labels at one frame before time is forced on by one; None: as the checkpoint says."""
        self._network = network
        self._advance = FrameAdvance(network.config, network.device)
        self._max_symbols = max_symbols or network.config.max_symbols
        self._window = window_encoder_frames

    @torch.inference_mode()
    def decode(
        self, frame_rows: torch.Tensor, lengths: torch.Tensor, rows: GreedyRows
    ) -> tuple[BatchedHyps, GreedyRows]:
        """Decodes one chunk of B streams.

        frame_rows: [B, T, J] from `project_encoder`; lengths: [B] int64 valid frames, 0 .. T; rows: state before.
        Returns the labels found and the state after. A row of length 0 keeps its state. Synchronises once a turn.
        """
        hyps = BatchedHyps(len(lengths), 2 * frame_rows.shape[1] + 2, frame_rows.device)
        frame = rows.next_frame - rows.frames_seen
        turns = 0
        while bool((frame < lengths).any()):
            found = self._skip_blanks(frame_rows, lengths, frame, rows.predictor_rows)
            frame = found.frame
            if not bool(found.is_label.any()):
                break
            turns += 1
            if turns > hyps.max_labels:
                hyps.grow()
            frame, rows = self._emit(hyps, found, rows)
        next_frame = rows.frames_seen + frame
        return hyps, rows._replace(
            next_frame=next_frame,
            frames_seen=rows.frames_seen + lengths,
            labels_at_frame=torch.where(next_frame == rows.next_frame, rows.labels_at_frame, 0),
        )

    def _skip_blanks(
        self, frame_rows: torch.Tensor, lengths: torch.Tensor, frame: torch.Tensor, predictor_rows: torch.Tensor
    ) -> Found:
        found = self._search_window(frame_rows, lengths, frame, predictor_rows)
        while bool((~found.is_label & (found.frame < lengths)).any()):
            # Rows that have their label stand still: searched again, they find it again.
            found = self._search_window(frame_rows, lengths, found.frame, predictor_rows)
        return found

    def _search_window(
        self, frame_rows: torch.Tensor, lengths: torch.Tensor, frame: torch.Tensor, predictor_rows: torch.Tensor
    ) -> Found:
        """One turn of the inner loop: from `frame` [B] over at most a window of frames."""
        batch, total, width = frame_rows.shape
        window = min(self._window, total)
        offsets = torch.arange(window, device=frame_rows.device)
        frames = frame.unsqueeze(1) + offsets  # [B, W]
        index = frames.clamp(max=total - 1).unsqueeze(2).expand(-1, -1, width)
        scores = self._network.score(frame_rows.gather(1, index), predictor_rows.unsqueeze(1))
        label_score, label = scores.labels.max(dim=-1)
        is_blank = scores.blank > label_score
        jump = self._advance(scores, is_blank).view(batch, window)
        keeps_searching = is_blank.view(batch, window) & (frames < lengths.unsqueeze(1))
        stop = _follow(torch.where(keeps_searching, offsets + jump, offsets), window)  # [B]
        at = stop.clamp(max=window - 1).unsqueeze(1)

        def pick(values: torch.Tensor) -> torch.Tensor:
            return values.view(batch, window).gather(1, at).squeeze(1)

        stands_at = frame + stop
        return Found(stands_at, pick(label), pick(label_score), pick(jump), (stop < window) & (stands_at < lengths))

    def _emit(self, hyps: BatchedHyps, found: Found, rows: GreedyRows) -> tuple[torch.Tensor, GreedyRows]:
        """Adds the labels found, moves time and the predictor on where there is one."""
        is_label = found.is_label
        hyps.add(is_label, found.label, rows.frames_seen + found.frame, found.jump, found.score)
        stood_here = rows.frames_seen + found.frame == rows.next_frame
        labels_here = torch.where(stood_here, rows.labels_at_frame, 0) + is_label
        forced = is_label & (found.jump == 0) & (labels_here >= self._max_symbols)
        moved = torch.where(is_label, found.jump, 0) + forced
        frame = found.frame + moved
        prediction = self._network.predict(found.label, rows.predictor_state)
        state = tuple(
            select(is_label, new, old) for new, old in zip(prediction.state, rows.predictor_state, strict=True)
        )
        return frame, rows._replace(
            predictor_rows=select(is_label, prediction.rows, rows.predictor_rows),
            predictor_state=state,
            next_frame=rows.frames_seen + frame,
            labels_at_frame=torch.where(moved > 0, 0, labels_here),
        )


def _follow(successor: torch.Tensor, window: int) -> torch.Tensor:
    """Where the jumps from position 0 end, [B]: the first position that is its own successor, or beyond the window.

    successor: [B, W] int64, at least the position itself. Doubles the length of every jump log2(W) times.
    """
    for _ in range(window.bit_length()):
        further = successor.gather(1, successor.clamp(max=window - 1))
        successor = torch.where(successor < window, further, successor)
    return successor[:, 0]
