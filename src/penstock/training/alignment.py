"""Word boundaries by forced alignment with pocketsphinx's US English acoustic model."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from penstock.training.corpus import Recording, WordSpan


class WordAligner:
    """Finds where the words of a transcript lie; frames of 10 ms."""

    def __init__(self):
        from pocketsphinx import Decoder  # extra `train`

        self._decoder = Decoder(samprate=16_000.0, loglevel="FATAL", bestpath=False, lm=None)

    def align(self, recording: Recording) -> tuple[WordSpan, ...]:
        """The words' spans in order, or nothing where a word is not in the dictionary or the words do not fit."""
        words = recording.words
        if not words or any(self._decoder.lookup_word(word) is None for word in words):
            return ()
        try:
            self._decoder.set_align_text(" ".join(words))
            with self._utterance():
                pcm = (np.clip(recording.samples, -1, 1) * 32767).astype(np.int16)
                self._decoder.process_raw(pcm.tobytes(), full_utt=True)
        except RuntimeError:
            return ()
        spans = tuple(
            WordSpan(segment.word.split("(")[0], segment.start_frame, segment.end_frame + 1)
            for segment in self._decoder.seg() or ()
            if not segment.word.startswith(("<", "["))
        )
        return spans if tuple(span.word for span in spans) == words else ()

    @contextmanager
    def _utterance(self) -> Iterator[None]:
        self._decoder.start_utt()
        try:
            yield
        finally:
            self._decoder.end_utt()
