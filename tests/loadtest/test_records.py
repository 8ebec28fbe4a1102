import dataclasses

import numpy as np
import pytest

from loadtest.records import (
    COMPLETE,
    CUT_SHORT,
    FAILED,
    REJECTED,
    REQUEST,
    SentRequest,
    Utterance,
    request_table,
    requests_between,
)
from tests.helpers.loadtest_records import request_rows, utterance


def test_records_arrive_as_they_were_sent():
    msgpack = pytest.importorskip("msgpack")  # Locust's
    sent = utterance({"is_last": True}, {"answered_s": np.inf}, recording=2, text="ada")
    message = msgpack.unpackb(msgpack.packb(sent.to_message()))
    arrived = Utterance.from_message(message)
    assert dataclasses.replace(arrived, requests=0) == dataclasses.replace(sent, requests=0)
    assert (arrived.requests == sent.requests).all()


def test_a_table_has_each_request_s_values():
    table = request_table(
        [SentRequest(1.0, 1.5, 0.5, 0.1, True, 2.0, 0.4, True), SentRequest(3.0, 3.0, 0.0, 0.1, False)]
    )
    assert table.dtype == REQUEST
    assert table["deadline_s"].tolist() == [1.0, 3.0]
    assert table["answered_s"].tolist() == [2.0, np.inf]
    assert table["completes_chunk"].tolist() == [True, False]


def test_a_window_takes_its_first_moment_and_not_its_last():
    records = [utterance({"deadline_s": 1.0}, {"deadline_s": 2.0}), utterance({"deadline_s": 0.9}, {"deadline_s": 1.9})]
    assert sorted(requests_between(records, 1.0, 2.0)["deadline_s"]) == pytest.approx([1.0, 1.9])


def test_adjacent_windows_take_every_request_once():
    records = [utterance(*({"deadline_s": moment} for moment in np.linspace(0, 9.99, 40)))]
    parts = [requests_between(records, begin, begin + 2.5) for begin in (0.0, 2.5, 5.0, 7.5)]
    assert np.concatenate(parts)["deadline_s"].tolist() == records[0].requests["deadline_s"].tolist()


@pytest.mark.parametrize(("outcome", "counts"), [(COMPLETE, 1), (CUT_SHORT, 1), (REJECTED, 0), (FAILED, 0)])
def test_losses_of_rejected_and_failed_streams_are_not_late_as_well(outcome, counts):
    assert len(requests_between([utterance({"deadline_s": 1.0}, outcome=outcome)], 0.0, 2.0)) == counts


def test_no_records_are_an_empty_table():
    assert requests_between([], 0.0, 1.0).shape == request_rows().shape == (0,)
