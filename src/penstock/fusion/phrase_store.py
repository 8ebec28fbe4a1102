"""PhraseStore: which phrase lists lie in the arena and how many streams need each. Knows no searches."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch

from penstock.errors import StreamError, StreamErrorKind
from penstock.fusion.automaton import Automaton
from penstock.fusion.dense_arena import DenseArena, DenseBoost
from penstock.fusion.phrase_arena import NO_PHRASES, STATES_PER_PAGE, PageCount, PhraseArena, Placement
from penstock.fusion.phrase_boost import PhraseBoost
from penstock.fusion.phrase_list import PhraseList, refusal
from penstock.fusion.phrase_tokens import continues_word, tokenize_phrases
from penstock.fusion.phrase_trie import PhraseTrie
from penstock.tokenizer import Tokenizer


@dataclass
class Stored:
    """A list in memory."""

    digest: bytes
    place: Placement
    references: int = 0
    """Streams that need it."""


class PhraseStore:
    """Phrase lists in device memory, each once however many streams have it.

    Lists that no stream needs stay until their memory is wanted; the one left longest ago goes first. Call it from the
    thread that runs the searches, with their CUDA stream current: what it writes is ordered before the next search and
    after the last.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        memory_bytes: int,
        device: torch.device | str = "cpu",
        is_dense: bool = False,
    ):
        """memory_bytes: on the device, on a GPU taken at once; never more. ValueError where it is too little.

        is_dense: a row for each state, else the paged form.
        """
        self._tokenizer = tokenizer
        self._continues_word = np.array(continues_word(tokenizer))
        self._arena: PhraseArena | DenseArena
        self.boost: Automaton
        if is_dense:
            self._arena = DenseArena(self._continues_word, memory_bytes, device)
            self.boost = DenseBoost(self._arena)
        else:
            self._arena = PhraseArena(self._continues_word, memory_bytes, device)
            self.boost = PhraseBoost(self._arena, self._continues_word.tolist())
        self._by_digest: dict[bytes, Stored] = {}
        self._by_start: dict[int, Stored] = {}
        self._idle: OrderedDict[bytes, Stored] = OrderedDict()  # without references, left longest ago first

    @property
    def lists(self) -> int:
        """Lists in memory, needed or not."""
        return len(self._by_digest)

    @property
    def states(self) -> int:
        """State numbers are below this."""
        return self._arena.states

    @property
    def free(self) -> PageCount:
        """Memory in which no list lies."""
        return self._arena.free

    def find(self, phrases: PhraseList) -> Stored | None:
        """The list, where it is in memory."""
        return self._by_digest.get(phrases.digest)

    def has_room_for(self, states: int) -> bool:
        """True where a list of so many states finds pages, those of lists that nobody needs included."""
        return -(-states // STATES_PER_PAGE) <= self._room().state_pages

    def trie_of(self, phrases: PhraseList) -> PhraseTrie:
        """What tables are made of. StreamError INVALID_ARGUMENT where the model cannot write a phrase."""
        return PhraseTrie(tokenize_phrases(phrases, self._tokenizer), self._continues_word)

    def acquire(self, phrases: PhraseList, trie: PhraseTrie | None = None) -> int:
        """The state in which a stream with these phrases starts; one `release` of it is owed, but for NO_PHRASES.

        trie: `trie_of` the phrases, where that is known. StreamError INVALID_ARGUMENT where the model cannot write a
        phrase or the list is larger than the whole memory; UNAVAILABLE where other streams' lists fill it. Nothing is
        changed then.
        """
        if not len(phrases):
            return NO_PHRASES
        stored = self.find(phrases) or self._store(phrases, trie or self.trie_of(phrases))
        stored.references += 1
        self._idle.pop(stored.digest, None)
        return stored.place.start

    def release(self, start: int) -> None:
        """Ends one stream's need of what `acquire` gave it. ValueError where nobody holds `start`."""
        if start == NO_PHRASES:
            return
        stored = self._by_start.get(start)
        if stored is None or not stored.references:
            raise ValueError(f"phrase list {start} is not held by any stream")
        stored.references -= 1
        if not stored.references:
            self._idle[stored.digest] = stored

    def _store(self, phrases: PhraseList, trie: PhraseTrie) -> Stored:
        table = self._arena.build(trie)
        self._make_room(len(phrases), self._arena.size_of(table))
        stored = Stored(phrases.digest, self._arena.write(table))
        self._by_digest[stored.digest] = stored
        self._by_start[stored.place.start] = stored
        self._idle[stored.digest] = stored
        return stored

    def _make_room(self, phrases: int, size: PageCount) -> None:
        if not size.fits(self._arena.lendable):
            raise refusal(
                f"{phrases} phrases need memory for {_describe(size)}; accepted: lists that need up to "
                f"{_describe(self._arena.lendable)}"
            )
        room = self._room()
        if not size.fits(room):
            raise StreamError(
                StreamErrorKind.UNAVAILABLE,
                f"boosted phrases: {phrases} phrases need memory for {_describe(size)}; accepted: lists that need up "
                f"to {_describe(room)} while other streams hold theirs; send fewer phrases or try again later",
            )
        while not size.fits(self._arena.free):
            digest, stored = self._idle.popitem(last=False)
            del self._by_digest[digest]
            del self._by_start[stored.place.start]
            self._arena.erase(stored.place)

    def _room(self) -> PageCount:
        """What is free, and what lists take that nobody needs."""
        return sum((stored.place.size for stored in self._idle.values()), start=self._arena.free)


def _describe(size: PageCount) -> str:
    return f"{size.state_pages * STATES_PER_PAGE} states (about one a token) and {size.rows} tables"
