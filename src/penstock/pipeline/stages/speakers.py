"""The stage of a speaker model: samples in, probabilities of speakers out, of the streams that asked for them.

A step beside the encoder: its slots are places of its own, by the lease in a ticket. Its failures end no words.
"""

import logging
from dataclasses import dataclass

import numpy as np
import torch

from penstock.decoding.tensors.tensor_tree import copy_to_host
from penstock.encoder.precision import INT8, number_type, prepare_precision, resolve_precision
from penstock.errors import DeviceLostError, ErrorCode, StreamError
from penstock.frontend.chunk_geometry import ChunkGeometry
from penstock.frontend.log_mel import FeatureExtractor, LogMel
from penstock.frontend.ranks import rounds
from penstock.graphs.program import Driver
from penstock.graphs.select import AUTO, select_step_driver
from penstock.pipeline.memory.server_memory import MAX_STEP_ROWS
from penstock.pipeline.results.speakers import LOST, RowFrames, SpeakerFrames
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.guard import STEP_ERRORS
from penstock.pipeline.slots.table import slot_count
from penstock.pipeline.slots.ticket import END, FINALIZE, SPEAKER_MODE, START, Column, Ticket
from penstock.pipeline.stages.audio_rows import SpeakerAudio
from penstock.pipeline.stages.requests import answer_requests
from penstock.runtime import check_device_works, send_to_device
from penstock.speakers.bundle import FILE, SpeakerCheckpoint
from penstock.speakers.captured_step import CapturedSpeakerStep
from penstock.speakers.diarizer import SpeakerSteps
from penstock.speakers.network import SpeakerNetwork, open_network
from penstock_common.options import SPEAKER_MODES

_log = logging.getLogger(__name__)


class StreamSteps:
    """Frames of S streams, each with a mode, that wait for a step, and the steps of those that have enough.

    A step has streams of all ages, and all live modes.
    """

    def __init__(self, network: SpeakerNetwork, slots: int, driver: Driver | None = None):
        """driver: captures the step of live streams; without one all steps run as they are."""
        config = network.config
        self._config, self._sizes = config, config.steps
        queue = max(config.live_queue, config.file_queue)
        # One slot more for the rows that pad a captured step.
        self._steps = SpeakerSteps(network, queue, slots + (driver is not None))
        self._device = network.silence.device
        longest = max(map(sum, self._sizes.values()))
        self._live_frames = max(map(sum, config.live_steps.values()))
        width = config.subsampling_factor * config.features.mel_bins
        self._mel = np.zeros((slots, longest, width), np.float32)
        """[S, L, 8 F], look-back, chunk and look-ahead; memory is taken when a stream needs it."""
        self._filled, self._left, self._mode = np.zeros((3, slots), np.int64)  # [S]; frames, of the look-back
        self._table = np.array([tuple(size) for size in self._sizes.values()])  # [modes, 3]
        self._captured: CapturedSpeakerStep | None = None
        if driver is not None:
            size = config.cache.frames + config.live_queue.frames + self._live_frames
            self._captured = CapturedSpeakerStep(self._steps, self._live_frames, size, driver)
        self.steps = self.rows = 0
        """Steps, and the chunks of streams in them."""

    @property
    def network(self) -> SpeakerNetwork:
        """The network that all streams share."""
        return self._steps.network

    @torch.inference_mode()
    def open(self, slot: int, mode: str) -> None:
        """Makes `slot` a new stream."""
        queue = self._config.file_queue if mode == FILE else self._config.live_queue
        self._steps.cache.reset(torch.tensor([slot], device=self._device), queue)
        self._filled[slot] = self._left[slot] = 0
        self._mel[slot, : None if mode == FILE else self._live_frames] = 0.0  # no padding with what made others NaN
        self._mode[slot] = list(self._sizes).index(mode)

    @torch.inference_mode()
    def advance(self, slots: np.ndarray, frames: list[np.ndarray], is_end: np.ndarray) -> list[np.ndarray | str]:
        """Gives different streams `slots` [n] their next log-mel frames, in eights [k, 8 F], and runs their steps.

        is_end: [n] bool, no more will come. Returns for each the probabilities [8 c, K] float32 of the c frames that
        are decided now, or why the stream is lost. Raises DeviceLostError if no later step can succeed.
        """
        found: list[list[np.ndarray]] = [[np.zeros((0, self._config.speakers), np.float32)] for _ in slots]
        lost: dict[int, str] = {}
        taken = np.zeros(len(slots), np.int64)
        counts = np.array(list(map(len, frames)), np.int64)
        while True:
            # 1) each stream takes as many frames as one step needs
            room = np.minimum(self._table[self._mode[slots]].sum(axis=1) - self._filled[slots], counts - taken)
            for row in room.nonzero()[0].tolist():
                slot, start, count = slots[row], taken[row], room[row]
                self._mel[slot, self._filled[slot] :][:count] = frames[row][start : start + count]
            self._filled[slots] += room
            taken += room
            # 2) those that have enough, live ones first
            chunk, right = self._plan(slots, is_end & (taken == counts))
            chunk[list(lost)] = 0
            ready = chunk.nonzero()[0]
            if not len(ready):
                return [lost.get(row, np.concatenate(found[row])) for row in range(len(slots))]
            are_files = self._are_files(slots[ready])
            for rows, captured in ((ready[~are_files], self._captured), (ready[are_files], None)):
                most = MAX_STEP_ROWS if captured is None else captured.max_batch
                for part in np.split(rows, range(most, len(rows), most)):
                    if len(part):
                        self._run(part, slots[part], chunk[part], right[part], captured, found, lost)

    @torch.inference_mode()
    def advance_copies(self, slots: np.ndarray, frames: list[np.ndarray]) -> list[np.ndarray | str]:
        """Does `advance` to the end with these last frames, on copies of different streams, which are then as before.

        So an end of a segment has the frames that wait for their look-ahead, and changes no later one.
        """
        at = torch.from_numpy(slots).to(self._device)
        kept, filled, left = self._steps.cache.copy(at), self._filled[slots], self._left[slots]
        # Copies: a step moves the frames that are left to the front of the same memory.
        mel = [self._mel[slot, :count].copy() for slot, count in zip(slots, filled, strict=True)]
        try:
            return self.advance(slots, frames, np.ones(len(slots), bool))
        finally:
            self._steps.cache.put_back(at, kept)
            self._filled[slots], self._left[slots] = filled, left
            for slot, before in zip(slots, mel, strict=True):
                self._mel[slot, : len(before)] = before

    def _plan(self, slots: np.ndarray, is_over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Chunk and look-ahead [n] of the next step of each stream; chunk 0 where frames are missing."""
        chunk, right, _ = self._table[self._mode[slots]].T.copy()
        waiting = self._filled[slots] - self._left[slots]
        is_full = waiting >= chunk + right
        # The last frames of a live stream are one chunk: all of them together are no more than chunk and look-ahead.
        last = np.where(self._are_files(slots), np.minimum(chunk, waiting), waiting)
        right = np.where(is_full, right, waiting - last)
        return np.where(is_full, chunk, np.where(is_over, last, 0)), right

    def _are_files(self, slots: np.ndarray) -> np.ndarray:
        """[n] bool, of streams."""
        return self._mode[slots] == len(self._sizes) - 1

    def _run(
        self, rows: np.ndarray, slots: np.ndarray, chunk: np.ndarray, right: np.ndarray,
        captured: CapturedSpeakerStep | None, found: list[list[np.ndarray]], lost: dict[int, str],
    ) -> None:  # fmt: skip
        """Runs a step of different streams [B], live ones or files, and moves their frames on.

        captured: the step, unless it runs as it is.
        """
        left, factor = self._left[slots], self._config.subsampling_factor
        lengths = left + chunk + right
        numbers = send_to_device(torch.from_numpy(np.array([slots, left, chunk, lengths])), self._device)
        frames, step = (lengths.max(), self._steps.step_of_mel) if captured is None else (captured.frames, captured)
        try:
            mel = send_to_device(torch.from_numpy(self._mel[slots, :frames]), self._device)
            probabilities = copy_to_host(step(mel, numbers)).numpy()  # waits for the device, which reports errors here
        except STEP_ERRORS as error:  # the states of these streams are undefined now
            check_device_works(self._device, error)
            lost |= dict.fromkeys(rows.tolist(), f"the speaker model failed: {error}")
            return
        self.steps, self.rows = self.steps + 1, self.rows + len(rows)
        kept = np.minimum(left + chunk, self._table[self._mode[slots], 2])
        for row, slot, count, drop, values in zip(
            rows.tolist(), slots, chunk, left + chunk - kept, probabilities, strict=True
        ):
            if not np.isfinite(values[: factor * count]).all():
                lost[row] = "the speaker model computes NaN for this audio"
            found[row].append(values[: factor * count])
            self._mel[slot, : self._filled[slot] - drop] = self._mel[slot, drop : self._filled[slot]]
            self._filled[slot] -= drop
        self._left[slots] = kept


@dataclass(eq=False)
class _Stream:
    """One that asked for speakers."""

    generation: int
    place: int | None
    """In `StreamSteps`; None once it has ended or is lost."""
    mode: str
    requests: int = 0
    frames: int = 0
    """Decided ones."""
    is_lost: bool = False


class SpeakerStage:
    """Runs the steps of the streams whose rows come with a ticket."""

    def __init__(
        self,
        checkpoint: SpeakerCheckpoint,
        streams: int,
        board: DrainBoard,
        device: str = "cpu",
        cuda_graphs: str = AUTO,
        precision: str = AUTO,
    ):
        """streams: the most that the features stage admits; board: tells which are over; cuda_graphs, precision: as of
        an encoder.
        """
        config, features = checkpoint.config, checkpoint.config.features
        self._factor = config.subsampling_factor
        places = slot_count(streams)
        geometry = ChunkGeometry(self._factor, 0, features.hop_samples, features.window_samples)
        self._extractor = FeatureExtractor(LogMel.of(checkpoint), geometry, places)
        device_of = prepare_precision(precision, device)
        if resolve_precision(precision, device) == INT8 or (checkpoint.int8 and device_of.type == "cpu"):
            network = open_network(checkpoint, INT8)
        else:
            placed = {name: tensor.to(device_of) for name, tensor in checkpoint.tensors().items()}
            network = SpeakerNetwork(config, placed, number_type(precision, device))
        self.steps = StreamSteps(network, places, select_step_driver(cuda_graphs, device))
        self._speakers, self._board = config.speakers, board
        self._streams: dict[int, _Stream] = {}
        """By slot of the other stages."""
        self._free = list(range(places))
        self.lost_streams = 0
        """Streams that went on without speakers."""

    @property
    def busy_s(self) -> float:
        """Seconds in steps."""
        return self._board.speaker_busy_s

    def warm_up(self, streams: int) -> None:
        """Runs a step of one stream, whatever `streams` says: its memory is allocated before the first request."""
        width = self._factor * self.steps.network.config.features.mel_bins
        self.steps.open(0, next(iter(self.steps.network.config.steps)))  # again when a stream gets the place
        self.steps.advance(np.zeros(1, np.int64), [np.zeros((1, width), np.float32)], np.ones(1, bool))
        self.steps.steps = self.steps.rows = 0

    def process_tickets(
        self, tickets: list[Ticket | StreamError], audio: list[SpeakerAudio | StreamError]
    ) -> list[SpeakerFrames | StreamError]:
        """Returns for each request of a batch the frames of its rows, or why it is rejected as a whole.

        Whatever fails here, the rows of a ticket go on to the decoder: else it would lose their streams. Raises
        DeviceLostError if no later step can succeed.
        """
        return answer_requests(tickets, audio, _problem_with, self._reply)

    def _reply(self, good: list[tuple[Ticket, SpeakerAudio | StreamError]]) -> list[SpeakerFrames]:
        with self._board.speaker_step():
            audio = [sent for _, sent in good if isinstance(sent, SpeakerAudio)]  # all of them
            found = iter(self._of_rows([ticket.rows for ticket, _ in good], audio))
        return [SpeakerFrames.of([next(found) for _ in ticket.rows], self._speakers) for ticket, _ in good]

    def _of_rows(self, rows_of: list[np.ndarray], audio: list[SpeakerAudio]) -> list[RowFrames]:
        """The frames of all rows [R, 8] of these requests."""
        if not rows_of:
            return []
        rows = np.concatenate(rows_of)
        sent = SpeakerAudio(*map(np.concatenate, zip(*audio, strict=True)))
        admitted = [self._admit(*each) for each in zip(rows.tolist(), sent.flags.tolist(), strict=True)]
        try:
            return self._process(admitted, sent)
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001  of whatever kind: a row without a reply would not reach the decoder
            _log.exception("the speaker model failed")
            for stream, _ in admitted:
                if stream is not None:
                    self._lose(stream, str(error))
            return [self._nothing(stream) for stream, _ in admitted]

    def _admit(self, row: list[int], flags: int) -> tuple["_Stream | None", int]:
        """The stream of a row, if it asked for speakers, and its place: -1 where the row has nothing to compute.

        Places are given and freed in the order of the rows, and so are their steps: see `_process`.
        """
        slot, generation, number, ticket_flags = row[: Column.FLAGS + 1]
        if slot < 0:
            return None, -1
        if ticket_flags & START:
            if (before := self._streams.get(slot)) is not None:
                # A start that comes late: the slot has this stream, or a newer one.
                if before.generation >= generation:
                    return None, -1
                # Its END may never have come, and its place would stay taken.
                self._leave(self._streams.pop(slot))
            if mode := ticket_flags // SPEAKER_MODE:
                self._streams[slot] = self._open(generation, SPEAKER_MODES[mode - 1])
        stream = self._streams.get(slot)
        if stream is None or stream.generation != generation:
            return None, -1
        if stream.requests != number:
            self._lose(stream, "a request is missing")
        stream.requests += 1
        # Read before an END frees it: the row itself still has its step.
        place = -1 if stream.place is None else stream.place
        if flags & END or ticket_flags & END:
            self._leave(stream)
        return stream, place

    def _open(self, generation: int, mode: str) -> _Stream:
        if not self._free:  # the ends of some streams never came here
            for slot, stream in list(self._streams.items()):
                if stream.place is not None and self._board.is_over(slot, stream.generation):
                    self._leave(stream)
        opened = _Stream(generation, self._free.pop() if self._free else None, mode)
        if opened.place is None:
            self._lose(opened, "no place is free")
        return opened

    def _leave(self, stream: _Stream) -> None:
        """Frees its place."""
        if stream.place is not None:
            self._free.append(stream.place)
            stream.place = None

    def _lose(self, stream: _Stream, why: str) -> None:
        """Lets a stream go on without speakers."""
        self._leave(stream)
        if not stream.is_lost:
            stream.is_lost = True
            self.lost_streams += 1
            _log.warning("a stream goes on without speakers: %s", why)

    def _nothing(self, stream: _Stream | None) -> RowFrames:
        """The reply to a row without frames."""
        first = LOST if stream is None or stream.is_lost else stream.frames
        return RowFrames(first, np.zeros((0, self._speakers), np.float32))

    @torch.inference_mode()
    def _process(self, admitted: list[tuple[_Stream | None, int]], sent: SpeakerAudio) -> list[RowFrames]:
        places = np.array([place for _, place in admitted], np.int64)
        answers = {row: self._nothing(stream) for row, (stream, place) in enumerate(admitted) if place < 0}
        own = (places >= 0).nonzero()[0]
        streams, flags = [stream for stream, place in admitted if stream is not None and place >= 0], sent.flags[own]
        # 1) log-mel frames in eights; of the last one of a segment as many as there are
        kept = np.repeat(places >= 0, sent.lengths)
        mel, chunks, last_valid, _, has_open = self._extractor.extract(
            places[own], sent.samples[kept], sent.lengths[own], flags & START > 0, flags & (END | FINALIZE) > 0
        )
        ends = chunks.cumsum()
        for end, count, valid in zip(ends, chunks, last_valid, strict=True):
            if count and valid < self._factor:
                mel[end - 1, valid:] = 0.0
        parts = np.split(mel.flatten(1).numpy(), ends[:-1])
        is_copied = (flags & FINALIZE > 0) & (flags & END == 0)
        is_open, missing = is_copied & has_open, np.where(has_open, self._factor - last_valid, 0)
        # 2) steps, the next row of each place at a time
        for at in rounds(places[own]):
            for i in at[flags[at] & START > 0].tolist():
                self.steps.open(int(places[own[i]]), streams[i].mode)
            # Lost since it was admitted, with an earlier row of this batch.
            answers |= {int(own[i]): self._nothing(streams[i]) for i in at.tolist() if streams[i].is_lost}
            at = at[[not streams[i].is_lost for i in at.tolist()]]
            decided = [parts[i][: len(parts[i]) - is_open[i]] for i in at.tolist()]
            found = self.steps.advance(places[own[at]], decided, flags[at] & END > 0)
            copies = at[is_copied[at]]
            open_parts = [parts[i][len(parts[i]) - is_open[i] :] for i in copies.tolist()]
            ended: list[np.ndarray | str] = []
            for start in range(0, len(copies), MAX_STEP_ROWS):  # each group is copied by itself
                part = slice(start, start + MAX_STEP_ROWS)
                ended += self.steps.advance_copies(places[own[copies[part]]], open_parts[part])
            copied = dict(zip(copies.tolist(), ended, strict=True))
            for i, values in zip(at.tolist(), found, strict=True):
                answers[int(own[i])] = self._answer(streams[i], values, copied.get(i), int(missing[i]))
        return [answers[row] for row in range(len(admitted))]

    def _answer(
        self, stream: _Stream, found: np.ndarray | str, copied: np.ndarray | str | None, missing: int
    ) -> RowFrames:
        """missing: frames that the last eight of a segment lack."""
        if isinstance(found, str) or isinstance(copied, str):
            self._lose(stream, str(found if isinstance(found, str) else copied))
            return self._nothing(stream)
        first, last = stream.frames, found if copied is None else copied
        last = last[: len(last) - missing]
        decided, copied = (last, None) if copied is None else (found, last)
        stream.frames += len(decided)
        return RowFrames(first, decided, copied)


def _problem_with(ticket: Ticket, sent: SpeakerAudio | StreamError) -> StreamError | None:
    if isinstance(sent, StreamError):
        return sent
    lengths = sent.lengths
    if len(lengths) == len(ticket.rows) and min(lengths) >= 0 and int(lengths.sum()) == len(sent.samples):
        return None
    return StreamError(ErrorCode.REQUEST_INVALID, "the samples are not those of the ticket")
