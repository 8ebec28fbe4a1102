"""Baselines with the same weights: NeMo, Transformers, sherpa-onnx and ONNX Runtime, live and of whole recordings.

Live ones return the text of every utterance in a list of playlists. Where there is a choice, the baseline gets the
easier task. NeMo's pipeline starts and ends all streams of a batch together; it gets batches of utterances of similar
length. sherpa-onnx never flushes a stream's last chunk; it gets no more silence
after an utterance than it needs.

Offline models transcribe whole recordings. `--offline DIR` of `python -m benchmarks.recognizer` is a folder of
`benchmarks.exports offline`, or the folder `offline` in one of `benchmarks.exports large`. Where a system pads rows of
a batch, it is run with batches and with one recording at a time. ONNX Runtime gets NeMo's log-mel, and its best labels
are collapsed as in NeMo. On a GPU all encoders compute in float16, and Transformers' head; NeMo computes log-mel there,
Transformers and Penstock on the CPU.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from penstock.encoder.precision import AUTO, number_type
from penstock.errors import StreamError
from penstock.model.config import AttentionContext
from penstock.transcription.offline import OfflineRecognizer

if TYPE_CHECKING:
    import onnxruntime

SAMPLE_RATE_HZ, HOP_SAMPLES = 16000, 160
LOCAL, WHOLE, LARGE_MEL_BINS = "Penstock, local=128,128", "whole", 128
_SHORT_S, _LONG_S, _FILES_S = 15, 300, (2.0, 30.0)
CASES = ("short", "long", "many", "equal")


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


class SherpaOnnx:
    """sherpa-onnx's online recognizer with a model from `benchmarks.exports sherpa`."""

    def __init__(self, directory: Path, context: AttentionContext, mel_bins: int = 80):
        import sherpa_onnx

        self.name = f"sherpa-onnx {directory.name}"
        model = directory / f"{context.left}_{context.right}"
        self._recognizer = sherpa_onnx.OnlineRecognizer.from_transducer(
            encoder=str(model / "encoder.onnx"), decoder=str(model / "decoder.onnx"),
            joiner=str(model / "joiner.onnx"), tokens=str(model / "tokens.txt"),
            num_threads=torch.get_num_threads(), feature_dim=mel_bins, sample_rate=SAMPLE_RATE_HZ,
        )  # fmt: skip
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
    """`CASES` by name: one file of 15 s, one of 5 min, files of 2 to 30 s in any order, and files of 15 s."""
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
    if "many" in names:
        yield Case(f"{files} files of 2 to 30 s", [cut(chance.uniform(*_FILES_S)) for _ in range(files)])
    if "equal" in names:
        yield Case(f"{files} files of 15 s", [cut(_SHORT_S) for _ in range(files)])


class PenstockOffline:
    """Penstock's recognizer, with its own batches. `run` is what is timed, as of every system."""

    def __init__(self, directory: Path, device: str, name: str, attention: str, precision: str = AUTO):
        self.name = name
        self._recognizer = OfflineRecognizer(
            directory / "bundle", device=device, attention=attention, precision=precision
        )
        if (found := self._recognizer._encoder._encoder.dtype) != number_type(AUTO, device):
            raise SystemExit(f"the encoder computes in {found}: float16 is not exact enough")

    def run(self, recordings: list[np.ndarray]) -> list[str]:
        """Text of each recording."""
        texts = []
        for result in self._recognizer.transcribe(recordings):
            if isinstance(result, StreamError):
                raise result
            texts.append(result.text)
        return texts


class SherpaOffline:
    """sherpa-onnx's offline recognizer with a Transducer from `benchmarks.exports sherpa`."""

    def __init__(self, directory: Path, name: str, mel_bins: int):
        import sherpa_onnx

        self.name = name
        self._recognizer = sherpa_onnx.OfflineRecognizer.from_transducer(
            encoder=str(directory / "encoder.onnx"), decoder=str(directory / "decoder.onnx"),
            joiner=str(directory / "joiner.onnx"), tokens=str(directory / "tokens.txt"), model_type="nemo_transducer",
            num_threads=torch.get_num_threads(), feature_dim=mel_bins, sample_rate=SAMPLE_RATE_HZ,
        )  # fmt: skip

    def run(self, recordings: list[np.ndarray]) -> list[str]:
        """Text of each recording."""
        streams = [self._recognizer.create_stream() for _ in recordings]
        for stream, samples in zip(streams, recordings, strict=True):
            stream.accept_waveform(SAMPLE_RATE_HZ, samples)
        self._recognizer.decode_streams(streams)
        return [stream.result.text for stream in streams]


class _Batched:
    """A system that pads the rows of a batch to the longest."""

    def __init__(self, name: str, batch: int, transcribe: Callable[[list[np.ndarray]], list[str]]):
        self.name = name if batch == 1 else f"{name}, batches of {batch}"
        self._batch, self._transcribe = batch, transcribe

    @torch.inference_mode()
    def run(self, recordings: list[np.ndarray]) -> list[str]:
        """Text of each recording."""
        parts = range(0, len(recordings), self._batch)
        return [text for begin in parts for text in self._transcribe(recordings[begin : begin + self._batch])]


class _Nemo:
    """NeMo's model, and its parts."""

    def __init__(self, path: Path, device: str):
        from nemo.collections.asr.models import ASRModel
        from nemo.utils import logging

        logging.setLevel("ERROR")
        self._model, self._device = ASRModel.restore_from(str(path), map_location=device).eval(), device
        self._model.encoder.to(number_type(AUTO, device))
        self._model.preprocessor.featurizer.dither = 0.0

    def transcribe(self, batch: list[np.ndarray]) -> list[str]:
        mel, lengths = self.mel(batch)
        encoded, frames = self._model.encoder(audio_signal=mel.to(number_type(AUTO, self._device)), length=lengths)
        return self.texts(self._model.decoder(encoder_output=encoded.float()), frames)

    def mel(self, batch: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-mel [B, F, N] and the valid frames of each."""
        signals, lengths = (tensor.to(self._device) for tensor in _padded(batch))
        return self._model.preprocessor(input_signal=signals, length=lengths)

    def texts(self, log_probs: torch.Tensor, frames: torch.Tensor) -> list[str]:
        """Greedy texts of [B, T, V + 1]."""
        found = self._model.decoding.ctc_decoder_predictions_tensor(log_probs, decoder_lengths=frames)
        return [hypothesis.text for hypothesis in found]


class _Transformers:
    def __init__(self, directory: Path, device: str):
        from transformers import AutoProcessor, ParakeetForCTC
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._model = ParakeetForCTC.from_pretrained(directory, dtype=number_type(AUTO, device)).to(device).eval()
        self._processor = AutoProcessor.from_pretrained(directory)

    def transcribe(self, batch: list[np.ndarray]) -> list[str]:
        features = self._processor.feature_extractor(batch, sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt")
        features = features.to(self._model.device, self._model.dtype)
        return self._processor.batch_decode(self._model.generate(**features), skip_special_tokens=True)


def onnx_session(path: Path) -> "onnxruntime.InferenceSession":
    """A model on the CPU with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class _OnnxRuntime:
    def __init__(self, path: Path, nemo: _Nemo):
        self._session, self._nemo = onnx_session(path), nemo

    def transcribe(self, batch: list[np.ndarray]) -> list[str]:
        mel, lengths = self._nemo.mel(batch)
        inputs = zip(self._session.get_inputs(), (mel.numpy(), lengths.numpy()), strict=True)
        log_probs = torch.from_numpy(self._session.run(None, {put.name: value for put, value in inputs})[0])
        frames = lengths
        while frames.max() > log_probs.shape[1]:  # strided layers, each ceil(n / 2)
            frames = (frames + 1) // 2
        return self._nemo.texts(log_probs, frames)


def systems(
    directory: Path, batches: Sequence[int], device: str, precisions: Sequence[str]
) -> Iterator[tuple[Any, bool]]:
    """Penstock first; True for those that only differ where there are several recordings."""
    for precision in precisions:
        yield PenstockOffline(directory, device, penstock_name(precision), "full", precision), False
    for folder in sorted(directory.glob(f"*/{WHOLE}")):
        yield SherpaOffline(folder, f"sherpa-onnx {folder.parent.name}", LARGE_MEL_BINS), False
    if not (directory / "model.nemo").exists():
        return
    nemo, transformers = _Nemo(directory / "model.nemo", device), _Transformers(directory / "transformers", device)
    others = [("NeMo", nemo), ("Transformers", transformers)]
    if device == "cpu" and (onnx := directory / "onnx" / "model.onnx").exists():
        others.append(("ONNX Runtime", _OnnxRuntime(onnx, nemo)))
    yield PenstockOffline(directory, device, LOCAL, "local=128,128"), False
    for batch in sorted({1, *batches}):
        for name, system in others:
            yield _Batched(name, batch, system.transcribe), batch > 1


def _padded(batch: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Signals [B, L], zeros after each, and their lengths [B]."""
    lengths = torch.tensor([len(samples) for samples in batch])
    return torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, batch)), batch_first=True), lengths
