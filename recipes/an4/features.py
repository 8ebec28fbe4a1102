"""Log-mel features and word boundaries of a corpus, computed once and cached in files."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from recipes.training.batches import Recording, Utterance, WordSpan


class FeatureCache:
    """A folder with one .npz file per corpus."""

    def __init__(self, directory: Path):
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._log_mel = _NemoLogMel()

    def load(self, name: str, make: Callable[[], list[Recording]], align: bool = False) -> list[Utterance]:
        """Loads the corpus `name`, which is made if it is not cached. align: also find word boundaries."""
        path = self._directory / f"{name}.npz"
        if not path.exists():
            self._write(path, make(), align)
        return _read(path)

    def _write(self, path: Path, recordings: list[Recording], align: bool) -> None:
        aligner = WordAligner() if align else None
        mels, entries = [], []
        for recording in tqdm(recordings, desc=f"features of {path.stem}", unit="utt"):
            mels.append(self._log_mel(recording.samples))
            spans = aligner.align(recording) if aligner else ()
            entries.append(
                {
                    "words": recording.words,
                    "speaker": recording.speaker,
                    "frames": len(mels[-1]),
                    "spans": [(s.word, s.begin, s.end) for s in spans],
                }
            )
        if aligner:
            tqdm.write(f"{sum(bool(e['spans']) for e in entries)} of {len(entries)} utterances aligned")
        frames = np.concatenate(mels) if mels else np.zeros((0, 80), np.float32)
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, frames=frames.astype(np.float32), entries=json.dumps(entries))
        partial.replace(path)


class WordAligner:
    """Forced alignment with pocketsphinx's US English acoustic model; frames of 10 ms."""

    def __init__(self):
        from pocketsphinx import Decoder  # extra `train`

        self._decoder = Decoder(samprate=16_000.0, loglevel="FATAL", bestpath=False, lm=None)

    def align(self, recording: Recording) -> tuple[WordSpan, ...]:
        """The words' spans in order; empty if a word is not in the dictionary or the alignment fails."""
        words = recording.words
        if not words or any(self._decoder.lookup_word(word) is None for word in words):
            return ()
        try:
            self._decoder.set_align_text(" ".join(words))
            self._decoder.start_utt()
            try:
                pcm = (np.clip(recording.samples, -1, 1) * 32767).astype(np.int16)
                self._decoder.process_raw(pcm.tobytes(), full_utt=True)
            finally:
                self._decoder.end_utt()
        except RuntimeError:
            return ()
        spans = tuple(
            WordSpan(segment.word.split("(")[0], segment.start_frame, segment.end_frame + 1)
            for segment in self._decoder.seg() or ()
            if not segment.word.startswith(("<", "["))
        )
        return spans if tuple(span.word for span in spans) == words else ()


class _NemoLogMel:
    """NeMo's front end without dither: [n] samples -> [N, F]."""

    def __init__(self):
        from nemo.collections.asr.modules import AudioToMelSpectrogramPreprocessor

        self._preprocessor = AudioToMelSpectrogramPreprocessor(
            sample_rate=16000, normalize="NA", window_size=0.025, window_stride=0.01, window="hann", features=80,
            n_fft=512, dither=0.0, pad_to=0,
        ).eval()  # fmt: skip

    @torch.no_grad()
    def __call__(self, samples: np.ndarray) -> np.ndarray:
        signal = torch.from_numpy(samples.astype(np.float32))[None]
        mel, count = self._preprocessor(input_signal=signal, length=torch.tensor([signal.shape[1]]))
        return mel[0, :, : int(count[0])].T.contiguous().numpy()


def _read(path: Path) -> list[Utterance]:
    with np.load(path) as file:
        frames, entries = file["frames"], json.loads(str(file["entries"]))
    utterances, begin = [], 0
    for entry in entries:
        mel = frames[begin : begin + entry["frames"]]
        spans = tuple(WordSpan(*span) for span in entry["spans"])
        utterances.append(Utterance(mel, tuple(entry["words"]), entry["speaker"], spans))
        begin += entry["frames"]
    return utterances
