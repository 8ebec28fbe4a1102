"""The load of a soak through a gateway, with clients that are not there."""

import asyncio
import os

import pytest

from loadtest import gateway_soak
from loadtest.fresh_gateway import RunningGateway
from loadtest.gateway_clients import Text
from loadtest.gateway_soak import PROTOCOLS, GatewaySoak, descriptor_reasons
from loadtest.soak import soak_document

WORDS = (("one", 0, 80),)
GATEWAY = RunningGateway("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", os.getpid())


@pytest.fixture
def soak(monkeypatch):
    """Recordings without duration, whose words a direct client knows."""

    async def texts(*_, **__):
        await asyncio.sleep(0.001)
        yield Text("one", True, 0.1, WORDS)

    for name in ("direct_texts", "riva_texts", "realtime_texts", "upload_texts"):
        monkeypatch.setattr(gateway_soak, name, texts)
    monkeypatch.setattr(gateway_soak, "joined_recordings", lambda seed, seconds: gateway_soak.np.zeros(160, "int16"))
    made = GatewaySoak(GATEWAY, "127.0.0.1:4", os.getpid(), chunk_s=0.001)
    made.descriptors += [10] * 3
    return made


def play(soak: GatewaySoak) -> dict:
    return soak.report({"streams": 6}, {}, 0.3)["windows"][0]


def test_all_protocols_play_and_equal_words_pass(soak):
    window = play(soak)
    assert window["reasons"] == []
    assert set(window["played"]) == set(PROTOCOLS)
    assert window["recordings_with_equal_words"] == window["utterances"] == sum(window["played"].values())


def test_the_result_of_a_soak_reads_the_window(soak):
    window = play(soak)
    found = soak_document([soak.read_usage() for _ in range(3)], window, window["seconds"], 0.0, 1e9)
    assert found["reasons"] == []
    assert found["lines"][-1].endswith("0 of 6 recordings with several texts")


def test_other_words_are_reported(soak, monkeypatch):
    async def texts(*_):
        await asyncio.sleep(0.001)
        yield Text("two", True, 0.1, (("two", 0, 80),))

    monkeypatch.setattr(gateway_soak, "riva_texts", texts)
    window = play(soak)
    (reason,) = window["reasons"]
    assert "have other words than direct, the first: riva, recording" in reason
    assert window["words"]["recordings_with_several_texts"] > 0
    assert window["recordings_with_equal_words"] == window["played"]["realtime"] + window["played"]["uploads"]


def test_streams_that_fail_are_errors_and_a_silent_protocol_is_named(soak, monkeypatch):
    async def texts(*_):
        raise ConnectionError("status 500: oh")
        yield

    monkeypatch.setattr(gateway_soak, "upload_texts", texts)
    window = play(soak)
    assert window["errors"]["count"] == 2
    first, second = window["reasons"]
    assert first == "2 streams failed, the first: uploads: ConnectionError: status 500: oh"
    assert second == "no recording was played over uploads"


def test_an_error_of_the_load_itself_ends_the_soak(soak, monkeypatch):
    async def texts(*_):
        raise KeyError("oh")
        yield

    monkeypatch.setattr(gateway_soak, "riva_texts", texts)
    with pytest.raises(AssertionError, match="a user of the soak ended"):
        asyncio.run(soak._play(3, 0.1))


def test_readings_have_the_memory_of_the_gateway_and_its_descriptors(soak):
    usage = soak.read_usage()
    assert usage.pss_mib[gateway_soak.GATEWAY] > 1
    assert soak.descriptors[-1] > 0


def test_descriptors_may_not_grow():
    assert descriptor_reasons([40, 52, 44, 41, 50, 60]) == []
    assert descriptor_reasons([40, 41, 42, 50, 61, 45]) == ["the gateway has 61 descriptors, 41 before"]
    assert descriptor_reasons([1, 2]) == ["too few readings of the gateway's descriptors"]
