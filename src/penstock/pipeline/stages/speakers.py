"""The stage of a speaker model: samples in, probabilities of speakers out. It has a stream table of its own.

Independent of the recognizer: a client sends it the same audio, and joins turns to words by their times.
"""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.encoder.precision import INT8, number_type, prepare_precision, resolve_precision
from penstock.errors import ErrorCode, StreamError, shown
from penstock.frontend.chunk_geometry import ChunkGeometry
from penstock.frontend.log_mel import FeatureExtractor, LogMel
from penstock.frontend.ranks import rounds
from penstock.graphs.select import AUTO, select_step_driver
from penstock.pipeline.options.stream_options import FINALIZE as FINALIZE_PARAMETER
from penstock.pipeline.slots.guard import STEP_ERRORS
from penstock.pipeline.slots.ledger import STAGES, SlotLedger
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.slots.ticket import END, FINALIZE, START, Column
from penstock.pipeline.stages.admission import RowAdmission
from penstock.pipeline.stages.audio_rows import AudioRows, join_rows
from penstock.pipeline.stages.speaker_steps import StreamSteps, step_sizes
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock.speakers.network import SpeakerNetwork, open_network

SPEAKER_MODE = "speaker_mode"
"""Parameter of a start."""


class SpeakerOptions(NamedTuple):
    """Of a stream."""

    decoder: str
    """The mode: what the stream's log line names."""


class SpeakerFrames(NamedTuple):
    """The answer to one request."""

    probabilities: np.ndarray
    """[N, K] float32, of N frames of 10 ms that are decided now."""
    first_frame: int
    """Of the stream, the number of the first one."""


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
        self._modes = tuple(step_sizes(config))
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
