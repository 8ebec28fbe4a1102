"""What a stream's beam carries from one chunk to the next, in slots on the device."""

from typing import NamedTuple

import torch

from penstock.decoding.beam_hyps import ABSENT, KEEP, BeamPaths, HypothesisRows, TokenRows
from penstock.decoding.beam_sizes import LARGEST_BEAM, BeamSizes
from penstock.decoding.beam_work import BeamContext
from penstock.decoding.networks import TransducerNetwork
from penstock.decoding.rows import leaves, map_rows
from penstock.fusion.fusion import FusionRows


class BeamRows(NamedTuple):
    """State of B beams. J joint width, K beam, M tail, R carried frames."""

    hypotheses: HypothesisRows
    """[B, K]"""
    tail: BeamPaths
    """tokens [B, K, M], lengths [B, K]: labels that have not been reported as stable."""
    context: BeamContext
    """[B, K, ...]"""
    carried_rows: torch.Tensor
    """[B, R, J], the last R encoder rows seen, newest last."""
    frames_seen: torch.Tensor
    """[B] int64, encoder frames of all earlier chunks."""
    beam_sizes: torch.Tensor
    """[B] int64, hypotheses that the stream asked for."""
    forced_on: torch.Tensor
    """[B] int64, frames that hypotheses were moved on by because theirs were about to be lost."""
    dropped: torch.Tensor
    """[B] int64, hypotheses dropped because their tail grew too long."""


class BeamState:
    """Per-stream beams."""

    def __init__(self, network: TransducerNetwork, slots: int, sizes: BeamSizes | None = None):
        self._fresh = fresh_rows(network, 1, sizes or BeamSizes())
        self._slots: BeamRows = map_rows(lambda t: t.expand(slots, *t.shape[1:]).clone(), self._fresh)
        self.slots = slots

    @property
    def device(self) -> torch.device:
        """Where the states lie."""
        return self._fresh.frames_seen.device

    @property
    def bytes_per_slot(self) -> int:
        """Device memory of one stream."""
        return sum(t.numel() * t.element_size() for t in leaves(self._slots)) // self.slots

    def gather(self, slots: torch.Tensor) -> BeamRows:
        """Copies the rows of `slots` [B] int64."""
        return map_rows(lambda t: t.index_select(0, slots), self._slots)

    def scatter(self, slots: torch.Tensor, rows: BeamRows) -> None:
        """Writes the rows of `slots` [B] back."""
        for storage, new in zip(leaves(self._slots), leaves(rows), strict=True):
            storage.index_copy_(0, slots, new)

    def reset(
        self, slots: torch.Tensor, beam_sizes: torch.Tensor | None = None, fusion: FusionRows | None = None
    ) -> None:
        """Makes `slots` [B] beams of one empty hypothesis.

        beam_sizes: [B] int64, 1 .. K; all K by default. fusion: fields [B], start states and weights; none by default.
        """
        fresh = map_rows(lambda t: t.expand(len(slots), *t.shape[1:]), self._fresh)
        self.scatter(slots, with_choices(fresh, beam_sizes, fusion))


def fresh_rows(
    network: TransducerNetwork,
    batch: int,
    sizes: BeamSizes,
    beam_sizes: torch.Tensor | None = None,
    fusion: FusionRows | None = None,
) -> BeamRows:
    """`batch` beams of one empty hypothesis; beam_sizes and fusion as in `BeamState.reset`.

    ValueError names a size that cannot be.
    """
    beam_size, carried, longest = sizes
    if not 1 <= beam_size <= LARGEST_BEAM:
        raise ValueError(f"beam_size: {beam_size} is not supported; supported: 1 .. {LARGEST_BEAM}")
    if carried < 0 or longest < 1:
        raise ValueError(f"carried_encoder_frames: {carried}, tail_labels: {longest}; they must be at least 0 and 1")
    device = network.device

    def whole(*shape: int, value: int = 0) -> torch.Tensor:
        return torch.full((batch, *shape), value, dtype=torch.int64, device=device)

    def real(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(batch, *shape, dtype=dtype, device=device)

    scores = real(beam_size, dtype=torch.float64)
    scores[:, 1:] = ABSENT
    hypotheses = HypothesisRows(
        scores,
        external_scores=real(beam_size, dtype=torch.float64),
        hashes=whole(beam_size),
        lengths=whole(beam_size),
        last_labels=whole(beam_size, value=KEEP),
        next_frames=whole(beam_size),
        labels_at_frame=whole(beam_size),
    )
    scored = [real(beam_size, longest, dtype=torch.float32) for _ in range(2)]
    tokens = TokenRows(*(whole(beam_size, longest) for _ in range(3)), *scored)
    start = network.start(batch * beam_size)
    per_hypothesis = map_rows(lambda t: t.unflatten(0, (batch, beam_size)), (start.rows, start.state))
    no_fusion = FusionRows(whole(beam_size), whole(beam_size), real(beam_size, dtype=torch.float32))
    rows = BeamRows(
        hypotheses=hypotheses,
        tail=BeamPaths(tokens, whole(beam_size)),
        context=BeamContext(*per_hypothesis, no_fusion),
        carried_rows=real(carried, network.joint_hidden, dtype=network.dtype),
        frames_seen=whole(),
        beam_sizes=whole(value=beam_size),
        forced_on=whole(),
        dropped=whole(),
    )
    return with_choices(rows, beam_sizes, fusion)


def with_choices(rows: BeamRows, beam_sizes: torch.Tensor | None, fusion: FusionRows | None) -> BeamRows:
    """`rows` with what each stream chose; None keeps what there is."""
    if beam_sizes is not None:
        rows = rows._replace(beam_sizes=beam_sizes)
    if fusion is not None:
        each = map_rows(lambda t: t.unsqueeze(1).expand(-1, rows.hypotheses.scores.shape[1]), fusion)
        rows = rows._replace(context=rows.context._replace(fusion=map_rows(torch.clone, each)))
    return rows
