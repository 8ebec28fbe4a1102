"""New utterances from aligned words of one speaker: other orders, other lengths, long runs.

After "aligned data augmentation" (Lam et al., arXiv 2104.01393): a Transducer's prediction network memorizes the
few training sentences; words recombined in the sentence shapes of the corpus prevent that.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from recipes.training.batches import Utterance

_MARGIN_FRAMES = 4
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class _Piece:
    word: str
    mel: np.ndarray


class _Voice:
    """Utterances, words and pauses of one speaker."""

    def __init__(self, utterances: list[Utterance]):
        self.utterances = utterances
        self.words: dict[str, list[_Piece]] = defaultdict(list)
        self.pauses: list[np.ndarray] = []
        for utterance in utterances:
            self._cut(utterance)

    def _cut(self, utterance: Utterance) -> None:
        spans = utterance.spans
        for i, span in enumerate(spans):
            previous_end = spans[i - 1].end if i else 0
            next_begin = spans[i + 1].begin if i + 1 < len(spans) else len(utterance.mel)
            begin = max(span.begin - _MARGIN_FRAMES, (previous_end + span.begin) // 2)
            end = min(span.end + _MARGIN_FRAMES, (span.end + next_begin + 1) // 2)
            self.words[span.word].append(_Piece(span.word, utterance.mel[begin:end]))
        if spans and spans[0].begin > 3 * _MARGIN_FRAMES:
            self.pauses.append(utterance.mel[: spans[0].begin - _MARGIN_FRAMES])


class Recombiner:
    """Draws utterances of one speaker each."""

    def __init__(self, utterances: list[Utterance], random: np.random.Generator):
        """utterances: those without spans are only used whole."""
        self._random = random
        by_speaker = defaultdict(list)
        for utterance in utterances:
            by_speaker[utterance.speaker].append(utterance)
        self._voices = [_Voice(spoken) for spoken in by_speaker.values()]
        self._aligned = [utterance for utterance in utterances if utterance.spans]
        self._shapes = [utterance.words for utterance in utterances if utterance.words]

    def words(self) -> Utterance:
        """A sentence of the corpus in words of one speaker. A word that this speaker never spoke is replaced by one of
        its class (letter or other)."""
        random = self._random
        voice = self._choose([v for v in self._voices if v.words])
        wanted = self._choose(self._shapes)
        pieces = [self._choose(voice.words[self._known_word(voice, word)]) for word in wanted]
        mel = []
        if voice.pauses:
            mel.append(self._pause(voice, 60))
        for piece in pieces:
            mel.append(piece.mel)
            if voice.pauses and random.random() < 0.25:
                mel.append(self._pause(voice, 40))
        if voice.pauses:
            mel.append(self._pause(voice, 60))
        return Utterance(np.concatenate(mel), tuple(p.word for p in pieces), voice.utterances[0].speaker)

    def run(self, max_frames: int) -> Utterance:
        """Whole utterances of one speaker one after the other, up to a length; at least one."""
        voice = self._choose(self._voices)
        chosen = [self._choose(voice.utterances)]
        frames = len(chosen[0].mel)
        while len(chosen) < 12:
            further = self._choose(voice.utterances)
            frames += len(further.mel)
            if frames > max_frames:
                break
            chosen.append(further)
        words = tuple(word for utterance in chosen for word in utterance.words)
        return Utterance(np.concatenate([u.mel for u in chosen]), words, chosen[0].speaker)

    def excerpt(self, max_words: int) -> Utterance:
        """One or a few words of an utterance, in its order, with the frames around them."""
        random = self._random
        utterance = self._choose(self._aligned)
        spans = utterance.spans
        count = int(random.integers(1, min(max_words, len(spans)) + 1))
        first = int(random.integers(len(spans) - count + 1))
        end = first + count
        begin_frame = spans[first - 1].end if first else 0
        end_frame = spans[end].begin if end < len(spans) else len(utterance.mel)
        words = tuple(span.word for span in spans[first:end])
        return Utterance(utterance.mel[begin_frame:end_frame], words, utterance.speaker)

    def _known_word(self, voice: _Voice, word: str) -> str:
        if word in voice.words:
            return word
        same_class = [known for known in voice.words if (len(known) == 1) == (len(word) == 1)]
        return self._choose(same_class or list(voice.words))

    def _pause(self, voice: _Voice, max_frames: int) -> np.ndarray:
        pause = self._choose(voice.pauses)
        frames = self._random.integers(4, max(5, min(max_frames, len(pause)) + 1))
        begin = self._random.integers(max(1, len(pause) - frames + 1))
        return pause[begin : begin + frames]

    def _choose(self, items: Sequence[_Item]) -> _Item:
        return items[self._random.integers(len(items))]
