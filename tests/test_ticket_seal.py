"""Only a ticket that the feature member wrote is one."""

import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.ticket_seal import TicketSeal

ROW = np.array([3, 1_700_000_000_000_000_000, 56, 16000, 0, 12345], np.int64)


def test_members_that_start_at_once_share_one_key(tmp_path):
    directory = tmp_path / "runtime"
    with ThreadPoolExecutor(8) as pool:
        seals = list(pool.map(lambda _: TicketSeal.shared(directory).of(ROW), range(16)))
    assert len(set(seals)) == 1
    assert [path.name for path in directory.iterdir()] == ["key"]
    assert stat.S_IMODE((directory / "key").stat().st_mode) == 0o600
    assert TicketSeal.shared(tmp_path / "another").of(ROW) != seals[0]


@pytest.mark.parametrize("column", range(len(ROW)))
def test_no_number_can_be_changed(tmp_path, column):
    seal = TicketSeal.shared(tmp_path)
    changed = ROW.copy()
    changed[column] += 1
    assert seal.of(changed) != seal.of(ROW)


def test_a_seal_is_an_int64(tmp_path):
    seal = TicketSeal.shared(tmp_path)
    for number in range(200):
        assert np.array([seal.of(ROW + number)], np.int64)[0] == seal.of(ROW + number)
