"""Second stage of an offline model: log-mel of files and live windows in, encoder frames out, part by part.

Its tickets are not those of the features stage: only here is it known when a stream has which frames. Independent of
words and searches.
"""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from penstock.decoding.tensors.tensor_tree import copy_to_host
from penstock.encoder.precision import FLOAT32, open_window_encoder
from penstock.encoder.window.encoder import WindowEncoder
from penstock.errors import StreamError
from penstock.model.bundle import Checkpoint
from penstock.pipeline.offline.jobs import JobQueue, WholeFiles, Window, WindowFile
from penstock.pipeline.options.windows import MAX_CALL_PARTS, LiveWindow, decoded_frames
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.guard import SlotGuard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.ticket import COMPLETE, END, FINALIZE, LIVE, LOCAL, NO_ROW, POLL, START, Column, Ticket
from penstock.pipeline.stages.encoder import EncodedRows, EncodingStage
from penstock.runtime import check_device

_DROPPED_S = 10.0
"""After this time frames that the decoder has not settled count as dropped."""
_MAX_COVERED = 0.999
"""Share of a stream's samples that is reported before its last reply: AUDIO_PROCESSED is float32."""


class WindowEncoderStage(EncodingStage):
    """Collects the log-mel of streams, encodes those that are complete, and passes on their frames with their polls."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        slots: int,
        ledger: SlotLedger,
        board: DrainBoard,
        device: str = "cpu",
        precision: str = FLOAT32,
        clock: Callable[[], float] = time.monotonic,
        whole_files: WholeFiles | None = None,
    ):
        """board: tells which streams the features stage has closed. whole_files: of a process without other work."""
        check_device(device)
        config = checkpoint.config
        self._encoder: WindowEncoder = open_window_encoder(checkpoint, device, precision)
        self._config, self._features = config.encoder, config.features
        self._chunk_shape = [1, config.encoder.mel_bins]
        self._device = torch.device(device)
        self._queue = JobQueue(self._encoder, self._device, self._features.hop_ms, whole_files=whole_files)
        self._whole_files = whole_files
        self._complete: list[Window] = []
        """Windows that wait until all files that are on their way have come."""
        self._part_frames = decoded_frames(config)
        self._chunk_frames = self._config.decoding_chunk_frames(None)
        self._frame_ms, self._frame_samples = config.encoder_frame_ms, config.encoder_frame_samples
        self._guard = SlotGuard("encoder", slots, ledger)
        self._board = board
        self._files: dict[int, WindowFile] = {}
        """By slot."""
        self._ledger, self._clock = ledger, clock
        self._decoding: dict[int, _Decoding] = {}
        """By slot, the frames that the decoder has not settled."""

    @torch.inference_mode()
    def warm_up(self, streams: int) -> None:
        """Encodes 20 s, so that its memory is allocated before the first request."""
        mel = torch.zeros(int(20_000 / self._features.hop_ms), self._config.mel_bins)
        for is_local in (False, True):
            self._encoder.encode([mel], [self._queue.band(is_local)])

    @torch.inference_mode()
    def _process(self, good: list[tuple[Ticket, torch.Tensor]], to_host: bool) -> list[EncodedRows]:
        """Works for at most a step (`penstock.pipeline.offline.jobs.STEP_S`); replies have rows for the decoder."""
        requests = [_Request(ticket.rows.copy(), mel[:, 0], {}, {}) for ticket, mel in good]
        for request in requests:
            self._complete += self._collect(request)
        # Before the windows are queued: no work for streams that are closed.
        self._drop_closed()
        if self._whole_files is None or not any(file.pieces and not file.samples for file in self._files.values()):
            self._queue.add(window for window in self._complete if self._is_open(window.file))
            self._complete = []
        for job, error in self._queue.advance():
            failed = dict.fromkeys(window.file for window in job.windows)
            self._fail([file for file in failed if self._is_open(file)], error, requests)
        return self._reply(requests, to_host)

    def _collect(self, request: "_Request") -> list[Window]:
        """Takes the log-mel of a request's rows; returns the windows that are complete with it."""
        rows, complete = request.rows, list[Window]()
        forwarded = (rows[:, Column.SLOT] != NO_ROW[Column.SLOT]).nonzero()[0]
        slots, generations, numbers, flags, chunks, live_windows, covered, segment_ends = rows[forwarded].T
        # Read above, by a copy: for the decoder this column is FRAMES.
        rows[:, Column.SEGMENT_END] = 0
        rejected = self._guard.admit(slots, generations, numbers, flags)
        request.errors.update({int(forwarded[place]): error for place, error in rejected.items()})
        ends = chunks.cumsum()
        for place in range(len(forwarded)):
            slot, flag = int(slots[place]), int(flags[place])
            if place in rejected:
                continue
            if flag & END:  # cancelled, or a probe
                self._files.pop(slot, None)
                continue
            if flag & START:
                live = LiveWindow.unpack(int(live_windows[place])) if flag & LIVE else None
                self._files[slot] = WindowFile(slot, int(generations[place]), live)
            file = self._files.get(slot)
            if file is None:  # closed by the features stage since, which tells the client why
                continue
            mel = request.mel[ends[place] - chunks[place] : ends[place]]
            if self._whole_files is None:
                mel = mel.clone()  # the request's memory is Triton's
            band = self._queue.band(flag & LOCAL > 0, file.live)
            samples = int(covered[place]) if flag & COMPLETE else 0
            file.due_samples = int(covered[place])
            complete += file.collect(mel, band, self._config.subsampling_factor, samples)
            if flag & FINALIZE:
                file.end_segment(int(segment_ends[place]), int(numbers[place]))
        return complete

    def _is_open(self, file: WindowFile) -> bool:
        return self._files.get(file.slot) is file

    def _drop_closed(self) -> None:
        """Drops the streams that the features stage has closed, and the work that is left to none."""
        closed = [file for file in self._files.values() if not self._board.is_live(file.slot, file.generation)]
        for file in closed:
            del self._files[file.slot]
        self._queue.drop(self._is_open)

    def _fail(self, files: list[WindowFile], error: Exception, requests: list["_Request"]) -> None:
        """Ends streams whose job has failed, and rejects their rows of this call."""
        for file in files:
            rejection = self._guard.reject(file.slot, file.generation, f"the encoder failed: {error}")
            del self._files[file.slot]
            for request in requests:
                own = request.rows[:, Column.SLOT] == file.slot
                request.errors.update(dict.fromkeys(own.nonzero()[0].tolist(), rejection))

    def _reply(self, requests: list["_Request"], to_host: bool) -> list[EncodedRows]:
        """Fills the rows for the decoder, and gives each the frames that its stream has ready, fewest first."""
        polls = [
            (self._files[slot], request, row)
            for request in requests
            for row, (slot, flags) in enumerate(request.rows[:, [Column.SLOT, Column.FLAGS]].tolist())
            if flags & (POLL | LIVE) and row not in request.errors and slot in self._files
        ]
        room = self._decoder_room()
        for file, request, row in sorted(polls, key=lambda poll: poll[0].frames_left):
            count = min(file.frames_left, self._part_frames, room)
            if count < file.frames_left:  # whole steps, after which endpoints are evaluated
                count -= count % self._step_frames(file)
            if count:
                request.parts[row] = file.emit(count)
                room -= count
                before = self._decoding.get(file.slot)
                waiting = before.frames if before is not None and before.generation == file.generation else 0
                number = int(request.rows[row, Column.NUMBER])
                self._decoding[file.slot] = _Decoding(file.generation, number, waiting + count, self._clock())
            ends_segment = file.pop_segment_end(int(request.rows[row, Column.NUMBER]))
            is_last = request.rows[row, Column.FLAGS] & POLL > 0 and not ends_segment
            # Not open where an earlier row of this call has taken the last frames.
            is_done = is_last and file.is_done and self._is_open(file)
            request.rows[row, [Column.FRAMES, Column.COVERED]] = count, self._covered(file)
            request.rows[row, Column.FLAGS] &= ~FINALIZE
            if ends_segment:
                request.rows[row, Column.FLAGS] |= FINALIZE
            if is_done:
                request.rows[row, Column.FLAGS] |= END
                self._guard.end(file.slot, file.generation)
                del self._files[file.slot]
        for file in self._files.values():
            if file.live is not None:
                self._ledger.count_windows("encoder", file.slot, file.generation, file.encoded_windows)
        return [self._encoded(request, copy_to_host if to_host else lambda frames: frames) for request in requests]

    def _step_frames(self, file: WindowFile) -> int:
        return self._chunk_frames if file.live is None else file.live.step_frames(self._frame_ms)

    def _covered(self, file: WindowFile) -> int:
        """Samples that a row reports of those of its stream: of a file the share of the work."""
        if file.is_done:  # maybe with an earlier row than the last one of this call
            return file.samples
        if file.live is not None:
            due = next((window.ends[0] for window in file.windows if window.ends), file.due_samples)
            return min(file.origin + file.emitted * self._frame_samples, due)
        return int(min(file.progress, _MAX_COVERED) * file.due_samples)

    def _decoder_room(self) -> int:
        """Encoder frames that may go on now: those of earlier calls may wait for the decoder, which takes all at once.

        Triton may have dropped some because their client disconnected: they count for a while.
        """
        if self._whole_files is not None:
            return sys.maxsize
        now_s = self._clock()
        self._decoding = {
            slot: one
            for slot, one in self._decoding.items()
            if self._ledger.settled_requests(slot, one.generation) <= one.number and now_s < one.since_s + _DROPPED_S
        }
        return max(0, MAX_CALL_PARTS * self._part_frames - sum(one.frames for one in self._decoding.values()))

    def _encoded(self, request: "_Request", copied: Callable[[torch.Tensor], torch.Tensor]) -> EncodedRows:
        rows = request.rows
        # For this stage alone: the decoder reads LIVE_WINDOW's column as another number.
        rows[:, [Column.CHUNKS, Column.LIVE_WINDOW]] = 0
        is_poll = rows[:, Column.FLAGS] & POLL > 0
        rows[:, Column.FLAGS] &= np.where(is_poll, START | END | FINALIZE | POLL | LIVE, START | END | FINALIZE)
        parts = [request.parts[row] for row in sorted(request.parts)]
        frames = copied(torch.cat(parts)) if parts else torch.zeros(0, self._config.d_model)
        return EncodedRows(frames, request.errors, rows)


class _Decoding(NamedTuple):
    """Frames of a stream that have gone on to the decoder."""

    generation: int
    number: int
    """Number of their request, as in the ticket."""
    frames: int
    since_s: float


class _Request(NamedTuple):
    """One request of a call."""

    rows: np.ndarray
    """[R, 8] int64, of its ticket, changed into those of the decoder's."""
    mel: torch.Tensor
    """[n, F], of all rows."""
    errors: dict[int, StreamError]
    """By row."""
    parts: dict[int, torch.Tensor]
    """Frames [T, D] by row."""
