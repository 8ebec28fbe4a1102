"""OfflineRecognizer: whole recordings through an offline model, several at once; samples in, words out.

`open_recognizer` has it for files, or one of live streams.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.encoder.precision import AUTO
from penstock.encoder.window.attention import parse_attention
from penstock.errors import ErrorCode, SettingError, StreamError
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.resolve import resolve_model
from penstock.pipeline.offline.jobs import WholeFiles
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.options.windows import batch_audio_s as batch_audio_s_of
from penstock.pipeline.options.windows import check_length
from penstock.pipeline.results.results import StreamResult, joined
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import Recognizer, StreamingRecognizer, as_floats
from penstock_common.options import is_live_window

MAX_BATCH = 32
BLOCK_SAMPLES = 1 << 18
"""Samples of one request, 16 s at 16 kHz: no copy is as long as a recording."""

Options = Mapping[str, Any]


class OfflineRecognizer(Recognizer):
    """Recognizes whole recordings with an offline model, several in one batch; single-threaded.

    A recording's result does not depend on the others of its batch.
    """

    def __init__(
        self,
        model: str | Path,
        max_batch: int = MAX_BATCH,
        device: str = "cpu",
        decoding: DecodingConfig = DEFAULT_DECODING,
        precision: str = AUTO,
        batch_audio_s: float | None = None,
        attention: str | None = None,
    ):
        """model: a bundle, a checkpoint or a hub id of an offline model; SettingError for a streaming one.

        max_batch, batch_audio_s: recordings and seconds of audio of one batch; a longer recording is one by itself. By
        default 120 s on a CPU, 1,200 s on a GPU.
        decoding, precision: as in `StreamingRecognizer`. attention: what an encoder frame attends to, "full" (all of
        its recording) or "local=128,128"; by default the checkpoint's, of recordings above 10 min local=128,128.
        """
        audio_s = batch_audio_s_of(torch.device(device).type) if batch_audio_s is None else batch_audio_s
        for name, value in (("max_batch", max_batch), ("batch_audio_s", audio_s)):
            if not value > 0:  # NaN, too
                raise SettingError(f"{name} is {value}; accepted: numbers above 0")
        checkpoint = Checkpoint(resolve_model(str(model)))
        if not checkpoint.config.encoder.is_offline:
            raise SettingError(f"{checkpoint.directory.name} is a streaming model; accepted: an offline model")
        self.batch_audio_s = audio_s
        whole_files = WholeFiles(audio_s, None if attention is None else (parse_attention(attention),))
        super().__init__(checkpoint, None, max_batch, device, decoding, precision, whole_files)

    def transcribe(
        self, recordings: Sequence[np.ndarray], options: Options | Sequence[Options] | None = None
    ) -> list[StreamResult | StreamError]:
        """Returns the result of each recording, or why it has none; the others continue.

        recordings: mono samples [n] at the recognizer's rate, floats in -1 .. 1 or int16, at least 10 ms. options: of
        all, or of each, by the names of `StreamOptions`.
        """
        each = [options or {}] * len(recordings) if options is None or isinstance(options, Mapping) else options
        answers: list[StreamResult | StreamError] = []
        for batch in self._batches([np.size(samples) for samples in recordings]):
            with self._closing_on_error(range(len(recordings[batch]))):
                answers += self._recognize(recordings[batch], each[batch])
        return answers

    def _batches(self, lengths: Sequence[int]) -> Iterator[slice]:
        begin, limit = 0, self.batch_audio_s * self.sample_rate_hz
        while begin < len(lengths):
            end, total = begin + 1, lengths[begin]
            while end < min(len(lengths), begin + self.table.max_streams) and total + lengths[end] <= limit:
                total, end = total + lengths[end], end + 1
            yield slice(begin, end)
            begin = end

    def _recognize(
        self, recordings: Sequence[np.ndarray], options: Sequence[Options]
    ) -> list[StreamResult | StreamError]:
        """The results of one batch, whose last requests go together."""
        answers: list[StreamResult | StreamError | None] = [self._problem(samples) for samples in recordings]
        parts: list[list[StreamResult]] = [[] for _ in recordings]
        block_samples = min(BLOCK_SAMPLES, self._features.max_request_samples)
        blocks = [-(-np.size(samples) // block_samples) for samples in recordings]
        for left in range(max(blocks), 0, -1):
            numbers = [number for number, answer in enumerate(answers) if answer is None and blocks[number] >= left]
            requests = []
            for number in numbers:
                begin = (blocks[number] - left) * block_samples
                samples = as_floats(recordings[number][begin : begin + block_samples])
                own = {} if begin else dict(options[number])
                requests.append(AudioRequest(number, samples, begin == 0, left == 1, own))
            for number, answer in zip(numbers, self.process(requests), strict=True):
                if isinstance(answer, StreamError):
                    self.cancel(number)
                    message = answer.message.removeprefix(f"stream {number!r}: ")
                    answers[number] = StreamError(answer.code, message)
                    continue
                parts[number].append(answer)
                if left == 1:
                    answers[number] = joined(parts[number])
        return [answer for answer in answers if answer is not None]

    def _problem(self, samples: np.ndarray) -> StreamError | None:
        samples = np.asarray(samples)
        if samples.ndim != 1 or (samples.dtype.kind != "f" and samples.dtype != np.int16):
            message = f"samples are {samples.dtype} {list(samples.shape)}; accepted: floats or int16 [n]"
            return StreamError(ErrorCode.AUDIO_INVALID, message)
        try:
            check_length(len(samples), self.config.features)
        except StreamError as error:
            return error
        return None


def open_recognizer(
    checkpoint: Checkpoint,
    context: AttentionContext | None,
    streams: int,
    device: str,
    decoding: DecodingConfig,
    attention: str | None,
    window: str | None,
    precision: str,
) -> Recognizer:
    """The recognizer of files. streams: files at the same time; attention, window: of an offline model."""
    if checkpoint.config.encoder.is_offline and not is_live_window(window):
        return OfflineRecognizer(checkpoint.directory, streams, device, decoding, precision, attention=attention)
    return StreamingRecognizer(checkpoint.directory, context, streams, device, decoding=decoding, precision=precision)
