import dataclasses

import numpy as np
import pytest

from loadtest.records import Utterance, requests_between
from tests.helpers.loadtest_records import utterance


def test_records_arrive_as_they_were_sent():
    msgpack = pytest.importorskip("msgpack")  # Locust's
    sent = utterance({"is_last": True}, {"answered_s": np.inf}, recording=2, text="ada")
    message = msgpack.unpackb(msgpack.packb(sent.to_message()))
    arrived = Utterance.from_message(message)
    assert dataclasses.replace(arrived, requests=0) == dataclasses.replace(sent, requests=0)
    assert (arrived.requests == sent.requests).all()


def test_adjacent_windows_take_every_request_once():
    records = [utterance(*({"deadline_s": moment} for moment in np.linspace(0, 9.99, 40)))]
    parts = [requests_between(records, begin, begin + 2.5) for begin in (0.0, 2.5, 5.0, 7.5)]
    assert np.concatenate(parts)["deadline_s"].tolist() == records[0].requests["deadline_s"].tolist()
