"""PhraseTiers: phrase lists in the form that is cheapest for a search, as long as that has room. Knows no searches."""

import torch

from penstock.errors import StreamError
from penstock.fusion.automaton import Automaton
from penstock.fusion.dense_arena import LEAST_DENSE_STATES, DenseArena
from penstock.fusion.phrase_arena import NO_PHRASES, STATES_PER_PAGE
from penstock.fusion.phrase_list import PhraseList
from penstock.fusion.phrase_store import PhraseStore
from penstock.fusion.tiered_boost import TieredBoost
from penstock.tokenizer import Tokenizer

LEAST_DENSE_PAGES = 64
"""With fewer the dense tier would hold few lists, and nearly every batch would need both."""
LEAST_DENSE_LISTS = 32
"""A list that takes more than this part of the dense tier is paged while there is room, so that no few large ones fill
the tier."""


class PhraseTiers:
    """As `PhraseStore`, over one of them or two: all lists dense where the memory is large enough for that, else half
    of it for dense lists, which smaller ones get as long as there is room, and half for paged ones.
    """

    def __init__(self, tokenizer: Tokenizer, memory_bytes: int, device: torch.device | str = "cpu"):
        """memory_bytes: on the device, on a GPU taken at once; never more. ValueError where it is too little."""
        half_bytes = memory_bytes // 2
        whole, half = (DenseArena.states_in(size_bytes, tokenizer.size) for size_bytes in (memory_bytes, half_bytes))
        self._dense: PhraseStore | None = None
        if whole >= LEAST_DENSE_STATES:
            self._last = PhraseStore(tokenizer, memory_bytes, device, is_dense=True)
        elif half < LEAST_DENSE_PAGES * STATES_PER_PAGE:
            self._last = PhraseStore(tokenizer, memory_bytes, device)
        else:
            self._dense = PhraseStore(tokenizer, half_bytes, device, is_dense=True)
            self._last = PhraseStore(tokenizer, half_bytes, device)
        self._border = self._dense.states if self._dense else 0
        self._most_dense_states = self._border // LEAST_DENSE_LISTS
        self.boosts: tuple[Automaton, ...] = (self._last.boost,)
        """What a search sees of the lists. The last knows all of them, the first is cheaper; see `least_boost`."""
        if self._dense:
            self.boosts = (self._dense.boost, TieredBoost(self._dense.boost, self._last.boost, self._border))

    @property
    def stores(self) -> tuple[PhraseStore, ...]:
        """The tiers, the cheapest first."""
        return (self._dense, self._last) if self._dense else (self._last,)

    def least_boost(self, start: int) -> int:
        """Index of the cheapest of `boosts` that knows what `acquire` gave."""
        return int(self._dense is not None and start >= self._border)

    def acquire(self, phrases: PhraseList) -> int:
        """As `PhraseStore.acquire`. A list that some stream needs stays where it is."""
        if self._dense is None or not len(phrases) or self._dense.find(phrases):
            return (self._dense or self._last).acquire(phrases)
        paged = self._last.find(phrases)
        if paged and (paged.references or paged.place.most_states - STATES_PER_PAGE >= self._most_dense_states):
            return self._border + self._last.acquire(phrases)
        return self._place(self._dense, phrases)

    def _place(self, dense: PhraseStore, phrases: PhraseList) -> int:
        """Puts a list into the tier for its size, or where that has no room into the other."""
        trie = dense.trie_of(phrases)
        has_room = dense.has_room_for(len(trie))
        if len(trie) <= self._most_dense_states and has_room:
            return dense.acquire(phrases, trie)
        try:
            return self._border + self._last.acquire(phrases, trie)
        except StreamError:
            if not has_room:
                raise
            return dense.acquire(phrases, trie)

    def release(self, start: int) -> None:
        """As `PhraseStore.release`."""
        if start == NO_PHRASES:
            return
        if self.least_boost(start):
            self._last.release(start - self._border)
        else:
            (self._dense or self._last).release(start)
