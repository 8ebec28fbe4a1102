"""Baselines with the same weights: NeMo and sherpa-onnx, live, and sherpa-onnx of whole recordings.

Live ones return the text of every utterance in a list of playlists. Where there is a choice, the baseline gets the
easier task. NeMo's pipeline starts and ends all streams of a batch together; it gets batches of utterances of similar
length. sherpa-onnx never flushes a stream's last chunk; it gets no more silence
after an utterance than it needs.

Offline models transcribe whole recordings. `--offline DIR` of `python -m benchmarks.recognizer` is the folder `offline`
in one of `benchmarks.exports large`.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.encoder.precision import AUTO
from penstock.errors import StreamError
from penstock.model.config import AttentionContext
from penstock.pipeline.results.results import StreamResult
from penstock.transcription.offline import OfflineRecognizer

SAMPLE_RATE_HZ, HOP_SAMPLES = 16000, 160
WHOLE, LARGE_MEL_BINS = "whole", 128
_SHORT_S, _LONG_S = 15, 300
CASES = ("short", "long", "equal")


def penstock_name(precision: str) -> str:
    """The name of this project's system."""
    return "Penstock" if precision == AUTO else f"Penstock {precision}"


class NemoPipeline:
    """`conformer_stream_step` over NeMo's cache-aware streaming buffer, for batches of streams."""

    name = "NeMo"

    def __init__(self, nemo_path: Path, context: AttentionContext, streams: int):
        from nemo.collections.asr.models import ASRModel
        from nemo.collections.asr.parts.utils.streaming_utils import CacheAwareStreamingAudioBuffer
        from nemo.utils import logging

        self._streams = streams
        logging.setLevel("ERROR")
        self._model = ASRModel.restore_from(str(nemo_path), map_location="cpu").eval()
        self._model.encoder.set_default_att_context_size(list(context))
        self._model.encoder.setup_streaming_params()
        self._source = CacheAwareStreamingAudioBuffer(self._model)

    @torch.inference_mode()
    def run(self, utterances: list[np.ndarray], playlists: list[list[int]]) -> dict[int, str]:
        """Text of each utterance."""
        queue = sorted((i for playlist in playlists for i in playlist), key=lambda i: len(utterances[i]))
        texts: dict[int, str] = {}
        for begin in range(0, len(queue), self._streams):
            batch = queue[begin : begin + self._streams]
            texts |= zip(batch, self._transcribe([utterances[i] for i in batch]), strict=True)
        return texts

    def _transcribe(self, batch: list[np.ndarray]) -> list[str]:
        model, source = self._model, self._source
        source.reset_buffer()
        for samples in batch:
            source.append_audio(samples)
        caches = model.encoder.get_initial_cache_state(batch_size=len(batch))
        predictions, hypotheses = None, None
        for number, (window, lengths) in enumerate(source):
            predictions, _, *caches, hypotheses = model.conformer_stream_step(
                processed_signal=window, processed_signal_length=lengths, cache_last_channel=caches[0],
                cache_last_time=caches[1], cache_last_channel_len=caches[2],
                keep_all_outputs=source.is_buffer_empty(), previous_hypotheses=hypotheses,
                previous_pred_out=predictions, drop_extra_pre_encoded=0 if number == 0 else None,
            )  # fmt: skip
        return [hypothesis.text for hypothesis in hypotheses]


def _sherpa_model(directory: Path) -> dict[str, Any]:
    files = {part: str(directory / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}
    return files | {
        "tokens": str(directory / "tokens.txt"), "num_threads": torch.get_num_threads(), "sample_rate": SAMPLE_RATE_HZ,
    }  # fmt: skip


class SherpaOnnx:
    """sherpa-onnx's online recognizer with a model from `benchmarks.exports sherpa`."""

    def __init__(self, directory: Path, context: AttentionContext, mel_bins: int = 80):
        import sherpa_onnx

        self.name = f"sherpa-onnx {directory.name}"
        model = directory / f"{context.left}_{context.right}"
        self._recognizer = sherpa_onnx.OnlineRecognizer.from_transducer(**_sherpa_model(model), feature_dim=mel_bins)
        self._shift_mel_frames = 8 * context.chunk_encoder_frames
        self._window_mel_frames = self._shift_mel_frames + 9

    def run(self, utterances: list[np.ndarray], playlists: list[list[int]]) -> dict[int, str]:
        """Text of each utterance."""
        texts: dict[int, str] = {}
        players = [_SherpaPlayer(self._recognizer, [(i, utterances[i]) for i in playlist]) for playlist in playlists]
        chunk_samples = self._shift_mel_frames * HOP_SAMPLES
        while players:
            for player in players:
                player.push(chunk_samples, self._silence_samples)
            while ready := [p.stream for p in players if self._recognizer.is_ready(p.stream)]:
                self._recognizer.decode_streams(ready)
            for player in players:
                text = self._recognizer.get_result(player.stream)
                if player.is_utterance_done:
                    texts[player.utterance] = text.strip()
                    player.next_utterance()
            players = [player for player in players if not player.is_done]
        return texts

    def _silence_samples(self, length_samples: int) -> int:
        """Samples missing to fill the window that holds the last sample."""
        shift, window, frames = self._shift_mel_frames, self._window_mel_frames, length_samples // HOP_SAMPLES
        windows = 1 + max(0, -(-(frames - window) // shift))
        return max(0, ((windows - 1) * shift + window + 2) * HOP_SAMPLES - length_samples)


class _SherpaPlayer:
    """Plays a playlist, one stream per utterance."""

    def __init__(self, recognizer, playlist: list[tuple[int, np.ndarray]]):
        self._recognizer = recognizer
        self._playlist = list(playlist)
        self.is_done = False
        self.next_utterance()

    def next_utterance(self) -> None:
        self.is_utterance_done = False
        if not self._playlist:
            self.is_done = True
            return
        self.utterance, self._samples = self._playlist.pop(0)
        self._position = 0
        self.stream = self._recognizer.create_stream()

    def push(self, chunk_samples: int, silence_samples) -> None:
        begin, self._position = self._position, self._position + chunk_samples
        self.stream.accept_waveform(SAMPLE_RATE_HZ, self._samples[begin : self._position])
        if self._position >= len(self._samples):
            silence = np.zeros(silence_samples(len(self._samples)), np.float32)
            self.stream.accept_waveform(SAMPLE_RATE_HZ, silence)
            self.stream.input_finished()
            self.is_utterance_done = True


class Case(NamedTuple):
    """Recordings [n] float32 that are transcribed in this order."""

    name: str
    recordings: list[np.ndarray]

    @property
    def audio_s(self) -> float:
        """Seconds of all recordings."""
        return sum(map(len, self.recordings)) / SAMPLE_RATE_HZ


def cases(names: Sequence[str], speech: Sequence[np.ndarray], files: int) -> Iterator[Case]:
    """`CASES` by name: one file of 15 s, one of 5 min, and files of 15 s."""
    chance = random.Random(0)
    source = np.concatenate([part for _ in range(30) for part in chance.sample(list(speech), len(speech))])

    def cut(seconds: float) -> np.ndarray:
        count = int(seconds * SAMPLE_RATE_HZ)
        begin = chance.randrange(len(source) - count)
        return source[begin : begin + count]

    if "short" in names:
        yield Case("one file of 15 s", [cut(_SHORT_S)])
    if "long" in names:
        yield Case("one file of 5 min", [cut(_LONG_S)])
    if "equal" in names:
        yield Case(f"{files} files of 15 s", [cut(_SHORT_S) for _ in range(files)])


def texts_of(results: Sequence[StreamResult | StreamError]) -> list[str]:
    """The texts of a recognizer's results; StreamError where there is none."""
    for result in results:
        if isinstance(result, StreamError):
            raise result
    return [result.text for result in results if isinstance(result, StreamResult)]


class PenstockOffline:
    """Penstock's recognizer, with its own batches. `run` is what is timed, as of every system."""

    def __init__(self, directory: Path, precision: str):
        self.name = penstock_name(precision)
        self._recognizer = OfflineRecognizer(directory / "bundle", attention="full", precision=precision)

    def run(self, recordings: list[np.ndarray]) -> list[str]:
        """Text of each recording."""
        return texts_of(self._recognizer.transcribe(recordings))


class SherpaOffline:
    """sherpa-onnx's offline recognizer with a Transducer from `benchmarks.exports sherpa`."""

    def __init__(self, directory: Path):
        import sherpa_onnx

        self.name = f"sherpa-onnx {directory.parent.name}"
        self._recognizer = sherpa_onnx.OfflineRecognizer.from_transducer(
            **_sherpa_model(directory), feature_dim=LARGE_MEL_BINS, model_type="nemo_transducer"
        )

    def run(self, recordings: list[np.ndarray]) -> list[str]:
        """Text of each recording."""
        streams = [self._recognizer.create_stream() for _ in recordings]
        for stream, samples in zip(streams, recordings, strict=True):
            stream.accept_waveform(SAMPLE_RATE_HZ, samples)
        self._recognizer.decode_streams(streams)
        return [stream.result.text for stream in streams]


def systems(directory: Path, precisions: Sequence[str]) -> Iterator[PenstockOffline | SherpaOffline]:
    """Penstock first."""
    for precision in precisions:
        yield PenstockOffline(directory, precision)
    for folder in sorted(directory.glob(f"*/{WHOLE}")):
        yield SherpaOffline(folder)
