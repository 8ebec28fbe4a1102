"""PhraseCache: the phrase lists in the arena, with the number of streams that use each."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.model.tokenizer import Tokenizer
from penstock.scoring.boosting.arena import NO_PHRASES, PAGE_STATES, PhraseArena
from penstock.scoring.boosting.phrases import TokenPhrases, continues_word, phrases_error
from penstock.scoring.boosting.table import PhraseTrie, build_table


@dataclass
class _Entry:
    """A list in memory."""

    phrases: TokenPhrases
    pages: list[int]
    start: int
    """State of the arena."""
    references: int = 0
    """Streams that use it."""


class PhraseCache:
    """Phrase lists in device memory; streams with equal lists share one.

    Lists that no stream uses stay until their memory is needed; the least recently used one is evicted first. Call it
    from the thread that runs the searches, with their CUDA stream current: what it writes is ordered before the next
    search and after the last.
    """

    def __init__(self, tokenizer: Tokenizer, memory_bytes: int, device: torch.device | str = "cpu"):
        """memory_bytes: upper bound, on a GPU taken at once. ValueError where it is too little or too much."""
        self._continues_word, self._separator = np.array(continues_word(tokenizer)), tokenizer.separator
        self.automaton = PhraseArena(self._continues_word, memory_bytes, device)
        self._by_phrases: dict[TokenPhrases, _Entry] = {}
        self._by_start: dict[int, _Entry] = {}
        self._unused: OrderedDict[TokenPhrases, _Entry] = OrderedDict()  # without references, least recently used first

    def __len__(self) -> int:
        """Lists in memory, used or not."""
        return len(self._by_phrases)

    def acquire(self, phrases: TokenPhrases) -> int:
        """Returns the state in which a stream with these phrases starts; call `release` with it once.

        StreamError PHRASES_INVALID if the list is larger than the whole memory; PHRASE_MEMORY_FULL if the lists of
        other streams fill it. Nothing is changed then.
        """
        if not len(phrases):
            return NO_PHRASES
        entry = self._by_phrases.get(phrases) or self._store(phrases)
        entry.references += 1
        self._unused.pop(entry.phrases, None)
        return entry.start

    def release(self, start: int) -> None:
        """Ends one stream's use of what `acquire` returned. ValueError where no stream uses `start`."""
        if start == NO_PHRASES:
            return
        entry = self._by_start.get(start)
        if entry is None or not entry.references:
            raise ValueError(f"phrase list {start} is not held by any stream")
        entry.references -= 1
        if not entry.references:
            self._unused[entry.phrases] = entry

    def _store(self, phrases: TokenPhrases) -> _Entry:
        trie = PhraseTrie(phrases, self._continues_word, self._separator)
        table = build_table(trie, self._continues_word)
        self._make_room(len(phrases), self.automaton.pages_for(table))
        pages = self.automaton.write(table)
        entry = _Entry(phrases, pages, pages[0] * PAGE_STATES + trie.start)
        self._by_phrases[entry.phrases] = self._by_start[entry.start] = entry
        return entry

    def _make_room(self, phrases: int, pages: int) -> None:
        """Drops unused lists until `pages` pages are free."""
        arena = self.automaton
        if pages > arena.max_pages:
            raise phrases_error(
                f"{phrases} phrases need memory for {_states(pages)}; accepted: lists that need up to "
                f"{_states(arena.max_pages)}"
            )
        available = arena.free_pages + sum(len(entry.pages) for entry in self._unused.values())
        if pages > available:
            raise StreamError(
                ErrorCode.PHRASE_MEMORY_FULL,
                f"boosted phrases: {phrases} phrases need memory for {_states(pages)}; accepted: lists that need up "
                f"to {_states(available)} while other streams hold theirs; send fewer phrases or try again later",
            )
        while pages > arena.free_pages:
            phrase_list, entry = self._unused.popitem(last=False)
            del self._by_phrases[phrase_list]
            del self._by_start[entry.start]
            arena.erase(entry.pages)


def _states(pages: int) -> str:
    return f"{pages * PAGE_STATES} states (about one per token)"
