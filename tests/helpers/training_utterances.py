"""Synthetic utterances whose frames encode speaker, place and word."""

import numpy as np

from recipes.training.batches import Utterance, WordSpan

MEL_BINS = 80


def utterance(speaker: int, words: str, aligned: bool = True, frames_per_word: int = 30) -> Utterance:
    """Each word lasts 20 frames. Bin 0 is the speaker, bin 1 the frame's index, bin 2 the word's code or 0."""
    spoken = tuple(words.split())
    frames = frames_per_word * len(spoken) + 20
    mel = np.full((frames, MEL_BINS), -12.0, np.float32)
    mel[:, 0], mel[:, 1], mel[:, 2] = speaker, np.arange(frames), 0
    spans = []
    for i, word in enumerate(spoken):
        begin = 15 + frames_per_word * i
        mel[begin : begin + 20, 2] = word_code(word)
        spans.append(WordSpan(word, begin, begin + 20))
    return Utterance(mel, spoken, f"speaker {speaker}", tuple(spans) if aligned else ())


def word_code(word: str) -> int:
    """A code of a word's first three letters, above 0."""
    return int.from_bytes(word[:3].encode(), "big") + 1
