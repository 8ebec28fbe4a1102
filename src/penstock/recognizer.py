"""Recognizers run the three stages in one process: samples in, words out."""

import contextlib
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.encoder.precision import AUTO
from penstock.errors import SettingError, StreamError
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, ModelConfig, parse_context
from penstock.model.resolve import BUNDLED_MODEL, resolve_model
from penstock.pipeline.offline.encoder import WindowEncoderStage
from penstock.pipeline.offline.features import WindowFeatureStage, WindowLimits
from penstock.pipeline.offline.jobs import WholeFiles
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.options.offers import offer_languages
from penstock.pipeline.options.windows import live_window
from penstock.pipeline.results.results import StreamResult, joined
from penstock.pipeline.results.words import Token, Word
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable, slot_count
from penstock.pipeline.slots.ticket import END, POLL, Column, Ticket
from penstock.pipeline.stages.admission import AdmittingStage
from penstock.pipeline.stages.audio_rows import AudioRequest, rows_of
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from penstock_common.options import FILE, LIVE

NO_SAMPLES = np.zeros(0, np.float32)
_NO_LIMITS = WindowLimits(2**62, 2**62)


def as_floats(samples: np.ndarray) -> np.ndarray:
    """Samples of floats or int16 as float32 in -1 .. 1; others as they are, which the features stage rejects."""
    samples = np.asarray(samples)
    if samples.dtype == np.int16:
        return samples / np.float32(32768)
    return samples.astype(np.float32, copy=False) if samples.dtype.kind == "f" else samples


class Recognizer:
    """The three stages in one process, single-threaded."""

    batch_audio_s = float("inf")
    """Seconds of whole files that are recognized together."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: AttentionContext | None,
        max_streams: int,
        device: str,
        decoding: DecodingConfig,
        precision: str,
        whole_files: WholeFiles | None = None,
    ):
        """context: None for an offline model. whole_files: streams of an offline model are files, unless their options
        have another window; None: they are live.
        """
        self._name, self._device = checkpoint.directory.name, device
        self.config: ModelConfig = checkpoint.config
        self.sample_rate_hz = self.config.features.sample_rate_hz
        """Rate that samples must have."""
        self.languages = offer_languages(checkpoint, decoding)
        """The languages that a stream may choose, and the one that is known without a choice."""
        self.context = context
        self._window = LIVE if whole_files is None else FILE
        ledger, board = SlotLedger(slot_count(max_streams)), DrainBoard(slot_count(max_streams))
        self.table = StreamTable(max_streams, ledger, board=board)
        slots = self.table.slots
        self._features: AdmittingStage
        self._encoder: EncoderStage | WindowEncoderStage
        if context is None:
            self._features = WindowFeatureStage(checkpoint, self.table, _NO_LIMITS, decoding, self._window)
            self._encoder = WindowEncoderStage(
                checkpoint, slots, ledger, board, device, precision, whole_files=whole_files
            )
        else:
            self._features = FeatureStage(checkpoint, context, self.table, decoding)
            self._encoder = EncoderStage(
                checkpoint, context, slots, ledger, device, decoding.cuda_graphs, precision, decoding.kernels
            )
        self._decoder = DecoderStage(checkpoint, slots, ledger, device, decoding, context, precision)

    def chunk_samples(self, options: Mapping[str, Any] | None = None) -> int:
        """Samples after which a stream with these options has new words; 0 for a file of an offline model."""
        if self.context is not None:
            return self.config.encoder_frame_samples * self.context.chunk_encoder_frames
        window = live_window((options or {}).get("window") or self._window, self.config)
        return 0 if window is None else self.config.encoder_frame_samples * window.chunk

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises StreamError if a stream cannot start with these options."""
        self._features.parse_options(options)

    def cancel(self, stream_id: Hashable) -> None:
        """Frees the slot of a stream that goes on no more; does nothing if the stream has ended."""
        self.table.close(stream_id, "was cancelled")

    @contextlib.contextmanager
    def _closing_on_error(self, stream_ids: Sequence[Hashable]) -> Iterator[None]:
        """Closes these streams if the work on them is interrupted, as by Ctrl-C: a part of it is missing, and their
        requests never settle.
        """
        try:
            yield
        except BaseException:
            for stream_id in stream_ids:
                self.cancel(stream_id)
            self.table.free_closed()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name} {self.context or self._window} {self._device}>"

    def process(
        self, requests: list[AudioRequest], note: Callable[[float], None] = lambda audio_s: None
    ) -> list[StreamResult | StreamError]:
        """Processes one request each of different streams in one batch; results in the order of the requests.

        note: called with the seconds of these streams that are decoded, of whole files those of the share of the work
        that is done. Raises ValueError, and does nothing, if a stream occurs twice.
        """
        stream_ids = [request.stream_id for request in requests]
        if len(set(stream_ids)) < len(stream_ids):
            repeated = next(stream_id for stream_id, count in Counter(stream_ids).items() if count > 1)
            raise ValueError(f"stream {repeated!r} occurs more than once; a batch takes one request per stream")
        with self._closing_on_error(stream_ids):
            return self._process(requests, note)

    def _process(self, requests: list[AudioRequest], note: Callable[[float], None]) -> list[StreamResult | StreamError]:
        answers_of: list[list[StreamResult | StreamError]] = [[] for _ in requests]
        places = list(range(len(requests)))
        while places:
            answers, unfinished = self._step(requests)
            for place, answer in zip(places, answers, strict=True):
                answers_of[place].append(answer)
            going_on = [row for row in unfinished if isinstance(answers[row], StreamResult)]
            places = [places[row] for row in going_on]
            note(sum(parts[-1].audio_processed_s for parts in answers_of if isinstance(parts[-1], StreamResult)))
            requests = [AudioRequest(requests[row].stream_id, NO_SAMPLES) for row in going_on]
        return [parts[0] if len(parts) == 1 else joined(parts) for parts in answers_of]

    def _step(self, requests: list[AudioRequest]) -> tuple[list[StreamResult | StreamError], list[int]]:
        """Results of one pass through the stages, and for which of them an offline model has work left: for polls until
        END, and where words are due.
        """
        features = self._features.process_rows([rows_of(requests, is_batched=True)])[0]
        assert not isinstance(features, StreamError), "rows are answered one by one"
        ticket = Ticket(features.rows, options=features.options, errors=features.errors)
        with self.table.step():
            encoded = self._encoder.process_tickets([ticket], [features.mel], to_host=False)[0]
            assert not isinstance(encoded, StreamError), "the ticket is that of the chunks"
            if encoded.rows is not None:
                ticket = replace(ticket, rows=encoded.rows)
            # The decoder also gets what the encoder has rejected: it settles every request, and rejects these too.
            decoded = self._decoder.process_tickets([ticket], [encoded.encoded])[0]
            assert not isinstance(decoded, StreamError), "the ticket is that of the frames"
        flags, covered = ticket.rows[:, Column.FLAGS], ticket.rows[:, Column.COVERED]
        has_work = ((flags & (POLL | END)) == POLL) | (covered < features.rows[:, Column.COVERED])
        answers = [encoded.errors.get(row, decoded.answers[row]) for row in range(len(requests))]
        return answers, has_work.nonzero()[0].tolist()


class Stream:
    """One live stream of a recognizer; close it, or use it as a context manager."""

    def __init__(self, recognizer: Recognizer, stream_id: Hashable, options: Mapping[str, Any] | None = None):
        self.id = stream_id
        self._options = options or {}
        self.words: list[Word] = []
        """All complete words so far."""
        self.tokens: list[Token] = []
        """All tokens so far."""
        self._recognizer = recognizer
        self._is_started = False
        self._is_ended = False

    def __repr__(self) -> str:
        return f"<Stream {self.id!r}>"

    def push(self, samples: np.ndarray) -> StreamResult:
        """Adds mono samples [n] at the recognizer's rate, floats in -1 .. 1 or int16, and returns the result so far.

        With endpointing, segments that ended in them are `earlier` results of the one returned, and this may be final.
        """
        return self._request(samples)

    def finalize(self, samples: np.ndarray | None = None, options: Mapping[str, Any] | None = None) -> StreamResult:
        """Ends the current segment after optional last samples and returns its final result.

        The stream continues: the next samples begin a new segment, with these options changed
        (`penstock_common.options.CHANGEABLE`; None is the default).
        """
        return self._request(NO_SAMPLES if samples is None else samples, finalize=True, changes=options)

    def finish(self, samples: np.ndarray | None = None) -> StreamResult:
        """Ends the stream after optional last samples and returns the final result."""
        return self._request(NO_SAMPLES if samples is None else samples, is_end=True)

    def close(self) -> None:
        """Frees the slot; does nothing if the stream has ended."""
        if self._is_started and not self._is_ended:
            with contextlib.suppress(StreamError):  # it has expired meanwhile
                self.finish()

    def _request(
        self,
        samples: np.ndarray,
        is_end: bool = False,
        finalize: bool = False,
        changes: Mapping[str, Any] | None = None,
    ) -> StreamResult:
        if changes and not self._is_started:
            self._request(NO_SAMPLES)
        options = (changes or {}) if self._is_started else self._options
        request = AudioRequest(self.id, as_floats(samples), not self._is_started, is_end, options, finalize)
        (result,) = self._recognizer.process([request])
        self._is_ended |= is_end and self._is_started
        if isinstance(result, StreamError):
            raise result
        self._is_started, self._is_ended = True, is_end
        for entry in result.entries:
            self.words += entry.words
            self.tokens += entry.tokens
        return result

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StreamingRecognizer(Recognizer):
    """Recognizes many live streams at once; single-threaded.

    With an offline model the encoder recomputes the context of each chunk: the stream's option `window`.
    """

    def __init__(
        self,
        model: str | Path = BUNDLED_MODEL,
        context: tuple[int, int] | str | None = None,
        max_streams: int = 16,
        device: str = "cpu",
        idle_limit_s: float = float("inf"),
        decoding: DecodingConfig = DEFAULT_DECODING,
        precision: str = AUTO,
    ):
        """model: a bundle, a .nemo file or a hub id, by default the bundled one; context: one of the checkpoint's as
        (70, 6) or "70,6", by default the one with chunks of 560 ms, else its first. SettingError for any other, for a
        context with an offline model, and for no streams.

        decoding: language model, beam size and other settings; each stream's options choose from them. precision: of
        `PRECISIONS`, for the encoder.
        """
        if max_streams < 1:
            raise SettingError(f"max_streams is {max_streams}; accepted: integers from 1")
        checkpoint = Checkpoint(resolve_model(str(model)))
        encoder, chosen = checkpoint.config.encoder, None
        if context is not None or not encoder.is_offline:
            chosen = encoder.select_context(None if context is None else _parse_context(context))
        super().__init__(checkpoint, chosen, max_streams, device, decoding, precision)
        self.table.idle_limit_s = idle_limit_s
        self._names = itertools.count(1)

    def open_stream(self, stream_id: Hashable | None = None, options: Mapping[str, Any] | None = None) -> Stream:
        """A new stream with the options of `StreamOptions` by name. Its first request takes its slot.

        Raises StreamError if a stream cannot start with these options.
        """
        if options:
            self.check_options(options)
        return Stream(self, f"stream-{next(self._names)}" if stream_id is None else stream_id, options)


def _parse_context(context: tuple[int, int] | str) -> AttentionContext:
    if isinstance(context, str):
        return parse_context(context)
    try:
        left, right = (operator.index(frames) for frames in context)
    except (TypeError, ValueError):
        raise SettingError(f"context {context!r}: expected (LEFT, RIGHT) in encoder frames, as (70, 6)") from None
    return AttentionContext(left, right)
