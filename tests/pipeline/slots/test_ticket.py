"""Only tickets of the features stage are accepted."""

import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import ErrorCode, StreamError
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.slots.ticket import NO_ROW, Ticket, TicketSigner
from penstock.scoring.boosting.phrases import TokenPhrase

ROWS = np.array([[3, 1_700_000_000_000_000_000, 5, 2, 1, 56, 16000, 7], NO_ROW, [4, 9, 0, 1, 0, 0, 0, 0]], np.int64)
TICKET = Ticket(ROWS, 12345, True, errors={1: StreamError(ErrorCode.STREAM_NOT_OPEN, "stream 5 ist nicht geöffnet")})


def same(one: Ticket, other: Ticket) -> bool:
    errors = [{row: (error.code, error.message) for row, error in ticket.errors.items()} for ticket in (one, other)]
    return (
        (one.rows == other.rows).all()
        and (one.received_ns, one.is_batched, one.options) == (other.received_ns, other.is_batched, other.options)
        and errors[0] == errors[1]
    )


def test_stages_that_start_together_share_one_key(tmp_path):
    directory = tmp_path / "runtime"
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda _: TicketSigner.shared(directory).pack(TICKET).tobytes(), range(16)))
    assert len(set(rows)) == 1
    assert [path.name for path in directory.iterdir()] == ["key"]
    assert stat.S_IMODE((directory / "key").stat().st_mode) == 0o600
    assert TicketSigner.shared(tmp_path / "another").pack(TICKET).tobytes() != rows[0]


def test_a_packed_ticket_is_read_back(tmp_path):
    signer = TicketSigner.shared(tmp_path)
    packed = signer.pack(TICKET)
    assert (packed.ndim, packed.dtype) == (1, np.int64)
    assert same(signer.unpack(packed, reads_rest=True), TICKET)
    assert same(signer.unpack(packed), replace(TICKET, errors={}))
    one = Ticket(ROWS[:1], 7)
    assert same(signer.unpack(signer.pack(one), reads_rest=True), one)


@pytest.mark.parametrize(
    "options",
    [
        ResolvedOptions(),
        ResolvedOptions(decoder="aes", beam_size=32, n_best=3, lm_weight=0.1 + 0.2),
        ResolvedOptions(ilm_alpha=0.0, ilm_beta=1 / 3),
        ResolvedOptions(phrases=(TokenPhrase((5,), 2.0),), prompt=16_383, language="de-DE", language_tags="keep"),
        ResolvedOptions(endpoint_silence_ms=10_000, endpoint_no_speech_ms=200, endpoint_longest_s=120),
        ResolvedOptions(phrases=(TokenPhrase((5,), -0.1), TokenPhrase((7, 0, 13_086), 1 / 3))),
    ],
)
def test_options_travel_with_a_start(tmp_path, options):
    signer = TicketSigner.shared(tmp_path)
    ticket = replace(TICKET, options={2: options, 0: ResolvedOptions(decoder="alsd", beam_size=3)})
    packed = signer.pack(ticket)
    assert same(signer.unpack(packed, reads_rest=True), ticket)
    assert signer.unpack(packed).options == {}


def rejection(signer: TicketSigner, packed: np.ndarray) -> StreamError:
    with pytest.raises(StreamError) as error:
        signer.unpack(packed)
    return error.value


def test_a_changed_ticket_is_rejected(tmp_path):
    signer = TicketSigner.shared(tmp_path)
    packed = signer.pack(replace(TICKET, options={2: ResolvedOptions(decoder="alsd", beam_size=3)}))
    for place in range(len(packed)):
        changed = packed.copy()
        changed[place] += 1
        assert rejection(signer, changed).code is ErrorCode.REQUEST_INVALID
