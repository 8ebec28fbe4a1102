"""Only tickets of the features stage are accepted."""

import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.endpointing.rules import EndpointRules
from penstock.model.config import IlmPair
from penstock.pipeline.slots.table import NO_LEASE, Lease
from penstock.pipeline.slots.ticket import Ticket, TicketSigner
from penstock.pipeline.stream_options import StreamOptions
from penstock.scoring.boosting.tokenization import TokenPhrase

TICKET = Ticket(Lease(3, 1_700_000_000_000_000_000), 56, 16000, True, 12345)


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
    row = signer.pack(TICKET)
    assert (row.shape, row.dtype) == ((7,), np.int64)
    assert signer.unpack(row) == TICKET


@pytest.mark.parametrize(
    "options",
    [
        StreamOptions(),
        StreamOptions("aes", 32, 3, 0.1 + 0.2),
        StreamOptions(ilm=IlmPair(0.0, 0.0)),
        StreamOptions("alsd", 2, phrases=(TokenPhrase((5,), -0.1),), ilm=IlmPair(0.6, 1 / 3)),
        StreamOptions(phrases=(TokenPhrase((5,), 2.0),), prompt=16_383, keeps_tags=True),
        StreamOptions(phrases=(TokenPhrase((5,), 2.0),), endpoint=EndpointRules(10_000, 200, 120)),
        StreamOptions("alsd", 2, 0, 1e-300, (TokenPhrase((5,), -0.1), TokenPhrase((7, 0, 13_086), 1 / 3))),
    ],
)
def test_options_travel_with_a_start(tmp_path, options):
    signer = TicketSigner.shared(tmp_path)
    row = signer.pack(TICKET._replace(options=options))
    assert signer.unpack(row, reads_options=True).options == options
    assert signer.unpack(row).options is None
    row[7] += 1
    assert signer.unpack(row).lease == NO_LEASE


@pytest.mark.parametrize("numbers", [0, 1, 6])
def test_a_short_tensor_is_no_ticket(tmp_path, numbers):
    assert TicketSigner.shared(tmp_path).unpack(np.zeros(numbers, np.int64)).lease == NO_LEASE


@pytest.mark.parametrize("column", range(7))
def test_a_changed_ticket_has_no_lease(tmp_path, column):
    signer = TicketSigner.shared(tmp_path)
    row = signer.pack(TICKET)
    row[column] += 1
    assert signer.unpack(row).lease == NO_LEASE


def test_a_signature_is_an_int64(tmp_path):
    signer = TicketSigner.shared(tmp_path)
    for number in range(200):
        ticket = TICKET._replace(covered_samples=number)
        assert signer.unpack(signer.pack(ticket)) == ticket
