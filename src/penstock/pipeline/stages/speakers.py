"""The stage of a speaker model: samples in, probabilities of speakers out. It has a stream table of its own.

Independent of the recognizer: a client sends it the same audio, and joins turns to words by their times.
"""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.decoding.tensors.tensor_tree import copy_to_host
from penstock.encoder.precision import INT8, number_type, prepare_precision, resolve_precision
from penstock.errors import ErrorCode, StreamError, shown
from penstock.frontend.chunk_geometry import ChunkGeometry
from penstock.frontend.log_mel import FeatureExtractor, LogMel
from penstock.frontend.ranks import rounds
from penstock.graphs.program import Driver
from penstock.graphs.select import AUTO, select_step_driver
from penstock.pipeline.memory.server_memory import MAX_STEP_ROWS
from penstock.pipeline.options.stream_options import FINALIZE as FINALIZE_PARAMETER
from penstock.pipeline.slots.guard import STEP_ERRORS
from penstock.pipeline.slots.ledger import STAGES, SlotLedger
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.slots.ticket import END, FINALIZE, START, Column
from penstock.pipeline.stages.admission import RowAdmission
from penstock.pipeline.stages.audio_rows import AudioRows, join_rows
from penstock.runtime import check_device_works, send_to_device
from penstock.speakers.bundle import SpeakerCheckpoint, SpeakerConfig, StepSize
from penstock.speakers.captured_step import CapturedSpeakerStep
from penstock.speakers.diarizer import SpeakerSteps
from penstock.speakers.network import SpeakerNetwork, open_network

FILE = "file"
"""The mode with the steps of whole recordings."""
SPEAKER_MODE = "speaker_mode"
"""Parameter of a start."""


def _step_sizes(config: SpeakerConfig) -> dict[str, StepSize]:
    """The steps of each mode, the default first."""
    return {**config.live_steps, FILE: config.file_step}


class StreamSteps:
    """Frames of S streams, each with a mode, that wait for a step, and the steps of those that have enough.

    A step has streams of all ages, and all live modes.
    """

    def __init__(self, network: SpeakerNetwork, slots: int, driver: Driver | None = None):
        """driver: captures the step of live streams; without one all steps run as they are."""
        config = network.config
        self._config, self._sizes = config, _step_sizes(config)
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
        counts = np.array(list(map(len, frames)))
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


class SpeakerOptions(NamedTuple):
    """The options of a stream."""

    decoder: str
    """The mode: what the stream's log line names."""


class SpeakerFrames(NamedTuple):
    """The answer to one request."""

    probabilities: np.ndarray
    """[N, K] float32, of N frames of 10 ms that are decided now."""
    first_frame: int
    """Number of the first of them in the stream."""


class SpeakerStage(RowAdmission[SpeakerOptions]):
    """Admits streams and runs their steps."""

    def __init__(
        self,
        checkpoint: SpeakerCheckpoint,
        table: StreamTable,
        ledger: SlotLedger,
        device: str = "cpu",
        cuda_graphs: str = AUTO,
        precision: str = AUTO,
    ):
        """ledger: the table's; cuda_graphs, precision: as of an encoder."""
        config, features = checkpoint.config, checkpoint.config.features
        self._factor = config.subsampling_factor
        self._modes = tuple(_step_sizes(config))
        super().__init__(table, features.sample_rate_hz, self._read_options)
        geometry = ChunkGeometry(self._factor, 0, features.hop_samples, features.window_samples)
        self._extractor = FeatureExtractor(LogMel.of(checkpoint), geometry, table.slots)
        place = prepare_precision(precision, device)
        if resolve_precision(precision, device) == INT8 or (checkpoint.int8 and place.type == "cpu"):
            network = open_network(checkpoint, INT8)
        else:
            placed = {name: tensor.to(place) for name, tensor in checkpoint.tensors().items()}
            network = SpeakerNetwork(config, placed, number_type(precision, device))
        driver = select_step_driver(cuda_graphs, device)
        self.streams = StreamSteps(network, table.slots, driver)
        self.speakers = config.speakers
        self._ledger, self._frames_out = ledger, np.zeros(table.slots, np.int64)

    def warm_up(self) -> None:
        """Runs a step, so that its memory is allocated before the first request."""
        width = self._factor * self.streams.network.config.features.mel_bins
        self.streams.open(0, self._modes[0])  # again when a stream gets the slot
        self.streams.advance(np.zeros(1, np.int64), [np.zeros((1, width), np.float32)], np.ones(1, bool))
        self.streams.steps = self.streams.rows = 0

    def process(self, batch: list[AudioRows | StreamError]) -> list[SpeakerFrames | StreamError]:
        """Answers the requests of a batch, each of one row, in order within each stream.

        A rejected request leaves its stream unchanged; a rejected start opens nothing, a rejected end closes.
        """
        good = [rows for rows in batch if isinstance(rows, AudioRows)]
        with self.table.step():
            answers = iter(self._process(join_rows(good))) if good else iter(())
        return [rows if isinstance(rows, StreamError) else next(answers) for rows in batch]

    @torch.inference_mode()
    def _process(self, rows: AudioRows) -> list[SpeakerFrames | StreamError]:
        # 1) who may go on
        finalizes = (rows.flags & FINALIZE > 0).nonzero()[0].tolist()
        message = f"{FINALIZE_PARAMETER} is not accepted by this model; accepted: {SPEAKER_MODE} at the start"
        problems = dict.fromkeys(finalizes, StreamError(ErrorCode.OPTION_INVALID, message))
        ticket, options, errors = self._admit(rows._replace(problems={**rows.problems, **problems}))
        slots, flags = ticket[:, Column.SLOT], rows.flags
        admitted = (slots >= 0).nonzero()[0]
        is_first, is_last = (flags[admitted] & START) > 0, (flags[admitted] & END) > 0
        lost: dict[int, str] = {}
        # 2) log-mel frames in eights, of the last ones as many as there are
        samples = rows.samples if len(admitted) == len(slots) else self._samples_of(rows, slots >= 0)
        try:
            mel, chunks, last_valid, _, _ = self._extractor.extract(
                slots[admitted], samples, rows.lengths[admitted], is_first, is_last
            )
        except STEP_ERRORS as error:  # samples of these streams are lost
            lost = dict.fromkeys(slots[admitted].tolist(), f"its log-mel failed: {error}")
            mel, chunks = self._extractor.no_chunks(), np.zeros(len(admitted), np.int64)
            last_valid = chunks
        self.samples_taken += len(samples)
        ends = chunks.cumsum()
        for end, count, valid in zip(ends, chunks, last_valid, strict=True):
            if count and valid < self._factor:
                mel[end - 1, valid:] = 0.0
        parts = np.split(mel.flatten(1).numpy(), ends[:-1])
        # 3) steps, the next request of all streams at a time
        answers: dict[int, SpeakerFrames | StreamError] = dict(errors)
        for places in rounds(slots[admitted]):
            for row in admitted[places[is_first[places]]].tolist():
                self.streams.open(int(slots[row]), options[row].decoder)
                self._frames_out[slots[row]] = 0
            own = slots[admitted[places]]
            found = self.streams.advance(own, [parts[place] for place in places], is_last[places])
            for place, slot, values in zip(places, own, found, strict=True):
                if isinstance(values, str):
                    lost.setdefault(slot, values)
                row = int(admitted[place])
                missing = self._factor - int(last_valid[place]) if is_last[place] and chunks[place] else 0
                answers[row] = self._answer(rows.stream_ids[row], int(slot), lost.get(slot, values), missing)
        self._ledger.settle_all(STAGES[-1], slots[admitted], ticket[admitted, Column.GENERATION])
        return [answers[row] for row in range(len(slots))]

    def _answer(
        self, stream_id: Hashable, slot: int, found: np.ndarray | str, missing: int
    ) -> SpeakerFrames | StreamError:
        """missing: frames that the last eight of a stream lack."""
        if isinstance(found, str):
            if self.table.stream_in(slot) == stream_id:  # it may have been started again since
                self.table.close(stream_id, "was lost by the speaker model", ErrorCode.STREAM_LOST.name)
            return StreamError(ErrorCode.STREAM_LOST, f"stream {stream_id!r}: {found}; start it again")
        first = int(self._frames_out[slot])
        found = found[: len(found) - missing]
        self._frames_out[slot] += len(found)
        return SpeakerFrames(found, first)

    def _read_options(self, given: Mapping[str, Any]) -> SpeakerOptions:
        unknown = sorted(given.keys() - {SPEAKER_MODE})
        if unknown:
            message = f"{', '.join(map(shown, unknown))} is not accepted; accepted: {SPEAKER_MODE}"
            raise StreamError(ErrorCode.OPTION_INVALID, message)
        mode = given.get(SPEAKER_MODE, self._modes[0])
        if mode not in self._modes:
            message = f"{SPEAKER_MODE} is {shown(mode)}; accepted: {', '.join(self._modes)}"
            raise StreamError(ErrorCode.OPTION_INVALID, message)
        return SpeakerOptions(mode)
