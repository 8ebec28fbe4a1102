"""Made-up utterances whose frames tell where they come from."""

import numpy as np

from penstock.training.corpus import Utterance, WordSpan

MEL_BINS = 80


def utterance(speaker: int, words: str, aligned: bool = True, frames_a_word: int = 30) -> Utterance:
    """Each word lasts 20 frames after 10 of silence and before as many; a frame's first bin is the speaker's number,
    its second its own place, its third the place of the word in the alphabet of the test."""
    said = tuple(words.split())
    frames = frames_a_word * len(said) + 20
    mel = np.full((frames, MEL_BINS), -12.0, np.float32)
    mel[:, 0], mel[:, 1], mel[:, 2] = speaker, np.arange(frames), 0
    spans = []
    for i, word in enumerate(said):
        begin = 15 + frames_a_word * i
        mel[begin : begin + 20, 2] = word_code(word)
        spans.append(WordSpan(word, begin, begin + 20))
    return Utterance(mel, said, f"speaker {speaker}", tuple(spans) if aligned else ())


def word_code(word: str) -> int:
    """Different for different words of a few letters."""
    return int.from_bytes(word[:3].encode(), "big") + 1
