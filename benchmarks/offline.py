"""Offline models in the recognizer benchmark: Penstock beside NeMo, Transformers and ONNX Runtime, same weights (CTC).

Systems transcribe whole recordings. `--offline DIR` of `python -m benchmarks.recognizer` is a folder of
`benchmarks.exports offline`. Where a system pads rows of a batch, it is run with batches and with one recording at a
time. ONNX Runtime gets NeMo's log-mel, and its best labels are collapsed as in NeMo. On a GPU all encoders
compute in float16, and Transformers' head; NeMo computes log-mel there, Transformers and Penstock on the CPU.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from penstock.encoder.precision import AUTO, number_type
from penstock.errors import StreamError
from penstock.transcription.offline import OfflineRecognizer

SAMPLE_RATE_HZ = 16000
PENSTOCK, LOCAL = "Penstock", "Penstock, local=128,128"
_SHORT_S, _LONG_S, _FILES_S = 15, 300, (2.0, 30.0)


class Case(NamedTuple):
    """Recordings [n] float32 that are transcribed in this order."""

    name: str
    recordings: list[np.ndarray]

    @property
    def audio_s(self) -> float:
        """Seconds of all recordings."""
        return sum(map(len, self.recordings)) / SAMPLE_RATE_HZ


CASES = ("short", "long", "many", "equal")


def cases(names: Sequence[str], speech: Sequence[np.ndarray], files: int) -> Iterator[Case]:
    """Of `CASES`: one file of 15 s, one of 5 min, files of 2 to 30 s in any order, and files of 15 s."""
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


class System(ABC):
    """A system under test."""

    def __init__(self, name: str):
        self.name = name

    @abstractmethod
    def run(self, recordings: list[np.ndarray]) -> list[str]:
        """Text of each recording. This is what is timed."""


class PenstockOffline(System):
    """This project's recognizer, with its own batches."""

    def __init__(
        self,
        directory: Path,
        device: str,
        name: str = PENSTOCK,
        attention: str | None = None,
        precision: str = AUTO,
    ):
        super().__init__(name)
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


class SherpaOffline(System):
    """sherpa-onnx's offline recognizer with a Transducer from `benchmarks.exports sherpa`."""

    def __init__(self, directory: Path, name: str, mel_bins: int):
        import sherpa_onnx

        super().__init__(name)
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


class _Batched(System):
    """A system that pads the rows of a batch to the longest."""

    def __init__(self, name: str, batch: int, transcribe: Callable[[list[np.ndarray]], list[str]]):
        super().__init__(name if batch == 1 else f"{name}, batches of {batch}")
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


class _OnnxRuntime:
    def __init__(self, path: Path, nemo: _Nemo):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._nemo = nemo

    def transcribe(self, batch: list[np.ndarray]) -> list[str]:
        mel, lengths = self._nemo.mel(batch)
        inputs = zip(self._session.get_inputs(), (mel.numpy(), lengths.numpy()), strict=True)
        log_probs = torch.from_numpy(self._session.run(None, {put.name: value for put, value in inputs})[0])
        frames = lengths
        while frames.max() > log_probs.shape[1]:  # strided layers, each ceil(n / 2)
            frames = (frames + 1) // 2
        return self._nemo.texts(log_probs, frames)


def systems(directory: Path, batches: Sequence[int], device: str) -> Iterator[tuple[System, bool]]:
    """Penstock first; True for those that only differ where there are several recordings."""
    nemo, transformers = _Nemo(directory / "model.nemo", device), _Transformers(directory / "transformers", device)
    others = [("NeMo", nemo), ("Transformers", transformers)]
    if device == "cpu" and (onnx := directory / "onnx" / "model.onnx").exists():
        others.append(("ONNX Runtime", _OnnxRuntime(onnx, nemo)))
    yield PenstockOffline(directory, device, attention="full"), False
    yield PenstockOffline(directory, device, LOCAL, "local=128,128"), False
    for batch in sorted({1, *batches}):
        for name, system in others:
            yield _Batched(name, batch, system.transcribe), batch > 1


def _padded(batch: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Signals [B, L], zeros after each, and their lengths [B]."""
    lengths = torch.tensor([len(samples) for samples in batch])
    return torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, batch)), batch_first=True), lengths
