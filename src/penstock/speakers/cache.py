"""The state of streams: a queue of their newest frames and a cache of frames of each speaker, in slots.

A step sees [cache | queue | look-back | chunk | look-ahead]. Its chunk joins the queue. What overflows goes to the
cache, which keeps the frames that tell the speakers apart best, by speaker and then in their order. Each row has counts
of its own, so that streams of all ages share a step.
"""

import math
from typing import NamedTuple

import torch

from penstock.speakers.bundle import QueueSize, SpeakerConfig

_LOG_2 = math.log(2)


class StepRows(NamedTuple):
    """New frames of a step, one row a stream."""

    slots: torch.Tensor
    """[B] int64, different ones."""
    frames: torch.Tensor
    """[B, L, D], look-back, chunk and look-ahead."""
    left: torch.Tensor
    """[B] int64, frames of the look-back."""
    chunk: torch.Tensor
    """[B] int64, frames of the chunk."""
    lengths: torch.Tensor
    """[B] int64, frames of all three."""


class SpeakerCache:
    """Frames of S streams. All rows of an operation are computed as one; a row does not see the others."""

    def __init__(self, config: SpeakerConfig, queue: QueueSize, slots: int, silence: torch.Tensor):
        """queue: the largest of all streams; silence: [D], of the network, with the device and type of the frames."""
        self._config, self._policy, self._queue = config, config.cache, queue
        self._silence = silence
        shape = (slots, self._policy.frames)
        self.frames = silence.new_zeros(*shape, config.d_model)
        self.probabilities = silence.new_zeros(*shape, config.speakers, dtype=torch.float32)
        self.queue = silence.new_zeros(slots, queue.frames, config.d_model)
        self.queue_limit = torch.full_like(silence[:1], queue.frames, dtype=torch.int64).repeat(slots)
        self.queue_update = torch.full_like(self.queue_limit, queue.update)
        """[S], the `QueueSize` of each stream."""
        self.cached, self.queued = silence.new_zeros(2, slots, dtype=torch.int64).unbind()
        """[S], frames that are in use."""
        self.is_compressed = silence.new_zeros(slots, dtype=torch.bool)
        """[S]; before, the cache is the first frames of the stream in their order."""

    def reset(self, slots: torch.Tensor, queue: QueueSize | None = None) -> None:
        """Makes `slots` [n] new streams; queue: theirs, by default the largest."""
        self.queue_limit[slots], self.queue_update[slots] = queue or self._queue
        self.cached[slots] = self.queued[slots] = 0
        self.is_compressed[slots] = False

    @property
    def _state(self) -> tuple[torch.Tensor, ...]:
        counts = (self.queue_limit, self.queue_update, self.cached, self.queued, self.is_compressed)
        return self.frames, self.probabilities, self.queue, *counts

    def copy(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """Returns the state of `slots` [n], for `put_back`."""
        return [tensor[slots] for tensor in self._state]

    def put_back(self, slots: torch.Tensor, kept: list[torch.Tensor]) -> None:
        """Makes `slots` [n] what they were at `copy`."""
        for tensor, before in zip(self._state, kept, strict=True):
            tensor[slots] = before

    def window(self, rows: StepRows, size: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what a step sees: frames [B, T, D] without gaps, and their number [B].

        size: T, by default that of the longest row (a synchronization on a GPU).
        """
        cached, queued = self.cached[rows.slots], self.queued[rows.slots]
        lengths = cached + queued + rows.lengths
        pool = torch.cat([self.frames[rows.slots], self.queue[rows.slots], rows.frames], dim=1)
        at = torch.arange(size or int(lengths.max()), device=pool.device).expand(len(lengths), -1)
        queue_at, new_at = self._policy.frames, self._policy.frames + self._queue.frames
        at = torch.where(
            at < cached[:, None],
            at,
            torch.where(
                at < (cached + queued)[:, None],
                at - cached[:, None] + queue_at,
                at - (cached + queued)[:, None] + new_at,
            ),
        )
        return _take(pool, at.clamp_max(pool.shape[1] - 1)), lengths

    def update(self, rows: StepRows, window: torch.Tensor, probabilities: torch.Tensor) -> None:
        """Moves the rows' chunks to the queue, and what overflows to the cache.

        window: [B, T, D], of `window`; probabilities: [B, T, K] float32, of its frames.
        """
        slots, largest = rows.slots, self._queue.frames
        cached, queued, limit = self.cached[slots], self.queued[slots], self.queue_limit[slots]
        waiting = queued + rows.chunk
        # 1) how many leave the queue, and where those that wait are in the window: queue, then chunk
        leaving = (waiting - limit).maximum(self.queue_update[slots]).minimum(waiting)
        leaving = torch.where(waiting > limit, leaving, 0)
        size = largest + self._policy.frames + rows.frames.shape[1]
        places = torch.arange(size, device=window.device).expand(len(slots), -1)
        at = cached[:, None] + places + torch.where(places < queued[:, None], 0, rows.left[:, None])
        at = at.clamp_max(window.shape[1] - 1)
        # 2) the queue goes on without those that leave
        staying = places[:, :largest] + leaving[:, None]
        self.queue[slots] = _take(window, at.gather(1, staying))
        self.queued[slots] = waiting - leaving
        # 3) the cache takes them; on a CPU there is work only for rows that have some
        moving = leaving.nonzero()[:, 0] if window.is_cpu else slice(None)
        if len(leaving[moving]):
            appended = at[moving].gather(1, (places[moving] - cached[moving, None]).clamp_min(0))
            at = torch.where(places[moving] < cached[moving, None], places[moving], appended)
            at = at.clamp_max(window.shape[1] - 1)
            self._move(slots[moving], _take(window[moving], at), _take(probabilities[moving], at), leaving[moving])

    def _move(
        self, slots: torch.Tensor, frames: torch.Tensor, probabilities: torch.Tensor, leaving: torch.Tensor
    ) -> None:
        """Appends frames to the caches of `slots` [B], and compresses those that are full.

        frames: [B, P, D], probabilities: [B, P, K], those of the cache and then the `leaving` [B] ones of the queue.
        """
        cached, limit, size = self.cached[slots], self._policy.frames, frames.shape[1]
        places = torch.arange(size, device=frames.device).expand(len(slots), -1)
        # 1) a compressed cache keeps the probabilities that its frames had at their time
        keeps = ((places < cached[:, None]) & self.is_compressed[slots, None]).unsqueeze(2)
        stored = torch.nn.functional.pad(self.probabilities[slots], (0, 0, 0, size - limit))
        probabilities = torch.where(keeps, stored, probabilities)
        # 2) those that stay; the place after the last one is silence
        count = cached + leaving
        is_full = (count > limit)[:, None]
        kept = torch.where(is_full, self.kept(probabilities, count), places[:, :limit])
        frames = torch.cat([frames, self._silence.expand(len(slots), 1, -1)], dim=1)
        probabilities = torch.nn.functional.pad(probabilities, (0, 0, 0, 1))
        is_moved = (leaving > 0)[:, None, None]
        self.frames[slots] = torch.where(is_moved, _take(frames, kept), self.frames[slots])
        self.probabilities[slots] = torch.where(is_moved, _take(probabilities, kept), self.probabilities[slots])
        self.cached[slots] = count.clamp_max(limit)
        self.is_compressed[slots] = self.is_compressed[slots] | is_full[:, 0]

    def kept(self, probabilities: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The frames [B, C] that stay of [B, P, K], by speaker and then in their order; P is silence.

        lengths: [B], frames that are in use. Of equal frames the earlier one stays, of equal speakers the first.
        """
        policy, (batch, size, speakers) = self._policy, probabilities.shape
        places = policy.frames // speakers - policy.silence_frames
        # 1) a frame is worth more for a speaker that alone is sure to speak
        is_used = (torch.arange(size, device=lengths.device) < lengths[:, None]).unsqueeze(2)
        sure = probabilities.clamp_min(policy.min_probability).log()
        unsure = (1.0 - probabilities).clamp_min(policy.min_probability).log()
        scores = sure - unsure + unsure.sum(dim=-1, keepdim=True) + _LOG_2
        speaks = (probabilities > 0.5) & is_used
        is_alone = speaks & (scores > 0)
        has_enough = is_alone.sum(dim=1, keepdim=True) >= math.floor(places * policy.positive_rate)
        scores = scores.masked_fill(~speaks | (~is_alone & has_enough), -math.inf)
        # 2) the newest, and some of each speaker, are worth more
        scores[:, policy.frames :] += policy.newest_boost
        for rate, boost in ((policy.strong_rate, 2 * _LOG_2), (policy.weak_rate, _LOG_2)):
            best = scores.sort(dim=1, descending=True, stable=True).indices[:, : math.floor(places * rate)]
            scores = scores.scatter_add(1, best, scores.new_full(best.shape, boost))
        # 3) the best pairs of speaker and frame, silence first
        scores = torch.nn.functional.pad(scores, (0, 0, 0, policy.silence_frames), value=math.inf)
        values, pairs = scores.transpose(1, 2).reshape(batch, -1).sort(dim=1, descending=True, stable=True)
        values, pairs = values[:, : policy.frames], pairs[:, : policy.frames]
        is_empty = values == -math.inf
        pairs = pairs.masked_fill(is_empty, speakers * scores.shape[1]).sort(dim=1).values
        kept = (pairs % scores.shape[1]).clamp_max(size)
        return torch.where(pairs == speakers * scores.shape[1], size, kept)


def _take(values: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """values [B, n, D] at `at` [B, m], as [B, m, D]."""
    return values.gather(1, at.unsqueeze(2).expand(-1, -1, values.shape[2]))
