"""Ticket: what the features stage passes to the later stages with a request, signed against forgery.

A start's ticket carries the stream's validated options, so that they are parsed and phrases tokenized only once.

A ticket names a slot. Clients can reach the later stages of a server directly, so a forged ticket would reach another
stream's state. The stages of one server share a key in their runtime directory.
"""

import contextlib
import os
import secrets
from dataclasses import astuple
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.endpointing.rules import EndpointRules
from penstock.model.config import IlmPair
from penstock.pipeline.decoding_config import DECODERS
from penstock.pipeline.slots.table import NO_LEASE, Lease
from penstock.pipeline.stream_options import StreamOptions
from penstock.scoring.boosting.tokenization import TokenPhrase

_KEY_BYTES = 32
_NO_ILM = IlmPair(-1.0, -1.0)
"""Stands for None, which weights of streams never are."""
_FIELDS = 6
MIN_NUMBERS = _FIELDS + 1
"""Length of a ticket without options."""


class Ticket(NamedTuple):
    """Travels as int64: six fields, at a start the options, then the signature."""

    lease: Lease
    last_valid_mel_frames: int = 0
    covered_samples: int = 0
    finalize: bool = False
    received_ns: int = 0
    """When the features stage received the request's audio, on the machine's monotonic clock."""
    options: StreamOptions | None = None
    """The stream's options, with its start; None after it."""


class TicketSigner:
    """Writes signed tickets and verifies them."""

    def __init__(self, key: bytes):
        self._keyed = blake2b(key=key, digest_size=8)  # copied for each ticket: setting up the key costs more

    @classmethod
    def shared(cls, directory: Path) -> "TicketSigner":
        """Returns a signer with the key in `directory`; the first process creates the key."""
        path, own = directory / "key", directory / f"key-{secrets.token_hex(8)}"
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(own, path)  # atomic, and never replaces another process's key
        own.unlink()
        return cls(path.read_bytes())

    def sign(self, row: np.ndarray) -> int:
        """Returns the signature of int64 numbers [n]."""
        keyed = self._keyed.copy()
        keyed.update(row.tobytes())  # stages share a machine, so also its byte order
        return int.from_bytes(keyed.digest(), "little", signed=True)

    def pack(self, ticket: Ticket) -> np.ndarray:
        """Returns the signed ticket, [n] int64."""
        *fields, options = ticket[1:]
        row = np.array([*ticket.lease, *fields, *_pack_options(options), 0], np.int64)
        row[-1] = self.sign(row[:-1])
        return row

    def unpack(self, row: np.ndarray, reads_options: bool = False) -> Ticket:
        """Reads a ticket [n] int64. A wrong signature gives a ticket without a lease, which every stage rejects.

        reads_options: False leaves `options` None; 2,000 phrases take milliseconds to read.
        """
        if len(row) < MIN_NUMBERS or int(row[-1]) != self.sign(row[:-1]):
            return Ticket(NO_LEASE)
        slot, generation, last_valid, covered, finalize, received_ns = row[:_FIELDS].tolist()
        options = _unpack_options(row[_FIELDS:-1].tolist()) if reads_options else None
        return Ticket(Lease(slot, generation), last_valid, covered, bool(finalize), received_ns, options)


def _pack_options(options: StreamOptions | None) -> list[int]:
    """Decoder to endpoint rules, then boost, length and tokens of each phrase. Reals travel as their bits."""
    if options is None:
        return []
    weights = map(_to_bits, (options.lm_weight, *(options.ilm or _NO_ILM)))
    numbers = [DECODERS.index(options.decoder), options.beam_size, options.n_best, *weights]
    numbers += [options.prompt, options.keeps_tags, *astuple(options.endpoint)]
    for tokens, boost in options.phrases:
        numbers += (_to_bits(boost), len(tokens), *tokens)
    return numbers


def _unpack_options(numbers: list[int]) -> StreamOptions | None:
    if not numbers:
        return None
    decoder, beam_size, n_best = numbers[:3]
    lm_weight, *weights = map(_from_bits, numbers[3:6])
    pair = IlmPair(*weights)
    prompt, keeps_tags, *endpoint = numbers[6:11]
    phrases, at = [], 11
    while at < len(numbers):
        boost, length = numbers[at : at + 2]
        phrases.append(TokenPhrase(tuple(numbers[at + 2 : at + 2 + length]), _from_bits(boost)))
        at += 2 + length
    ilm = None if pair == _NO_ILM else pair
    return StreamOptions(
        DECODERS[decoder], beam_size, n_best, lm_weight, tuple(phrases), ilm, prompt, bool(keeps_tags),
        EndpointRules(*endpoint),
    )  # fmt: skip


def _to_bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def _from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
