"""Keys and limits: who is rejected, with which code, and that others are not harmed."""

import contextlib
import logging

import numpy as np
import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import speech
from client.tests.helpers.fake_offline import SEGMENT, whole
from gateway.tests.contract.drivers import ALL, Realtime, RivaStream
from penstock_gateway.errors import GatewayCode
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.admission import Admission

ONE = ApiKey("one", 4)
KEYS = [ONE, ApiKey("two", 4)]
FILE = np.random.default_rng(0).uniform(-0.1, 0.1, 3 * SEGMENT + 1000).astype(np.float32)


def check(driver, outcome, code):
    """The call failed with this code, in its protocol's form."""
    assert (outcome.code, outcome.status) in driver.errors(code)
    if driver.has_retry(outcome, code):
        is_later = code in (GatewayCode.STREAMS_EXHAUSTED, GatewayCode.NO_REPLICA, GatewayCode.QUOTA_REACHED)
        assert (outcome.retry_after is not None) == is_later


@pytest.mark.parametrize("key", [None, "sk-other", "ek_AAAA"])
@pytest.mark.parametrize("driver", ALL)
async def test_a_missing_or_wrong_key(fleet, serve, metrics, caplog, driver, key):
    caplog.set_level(logging.INFO)
    async with serve(fleet(), keys=[ONE]) as served:
        check(driver, await driver.of(served.ports, speech(1), key=key), GatewayCode.INVALID_API_KEY)
        assert not served.opened
        labels = {"protocol": driver.protocol, "reason": "INVALID_API_KEY"}
        assert metrics.registry.get_sample_value("penstock_gateway_rejected_total", labels) == 1
        lines = [record for record in caplog.records if record.name == "penstock_gateway.access"]
        assert len(lines) == 1
        assert not key or key not in " ".join(str(vars(record)) for record in caplog.records)
        assert (await driver.of(served.ports, speech(1))).text == "w1"


@contextlib.asynccontextmanager
async def held_stream(served):
    """A live stream of the key."""
    call = RivaStream(served.ports)
    call.send(speech(7))
    await until(lambda: served.opened)
    yield
    call.end()
    assert (await call.ended()).text == "w7"
    await until(lambda: not served.streams.live)


@pytest.mark.parametrize("driver", ALL)
async def test_all_streams_of_a_key_are_open(fleet, serve, driver):
    async with serve(fleet(), keys=[ApiKey("one", 1), ApiKey("two", 1)]) as served:
        async with held_stream(served):
            outcome = await driver.of(served.ports, speech(1))
            check(driver, outcome, GatewayCode.STREAMS_EXHAUSTED)
            assert "of the API key 'one' are open" in outcome.message
            assert (await driver.of(served.ports, speech(2), key="sk-two")).text == "w2"
        assert (await driver.of(served.ports, speech(1))).text == "w1"


@pytest.mark.parametrize("driver", ALL)
async def test_all_slots_of_the_servers_are_taken(fleet, serve, driver):
    only = fleet(max_streams=1)
    async with serve(only) as served:
        async with held_stream(served):
            check(driver, await driver.of(served.ports, speech(1)), GatewayCode.STREAMS_EXHAUSTED)
        await until(lambda: not only.batch.streams)
        assert (await driver.of(served.ports, speech(1))).text == "w1"


@pytest.mark.parametrize(
    ("most", "is_away", "code"), [(0, False, GatewayCode.STREAMS_EXHAUSTED), (8, True, GatewayCode.NO_REPLICA)]
)
@pytest.mark.parametrize("driver", ALL)
async def test_a_speaker_model_without_room_harms_only_those_that_ask(fleet, serve, driver, most, is_away, code):
    server = fleet()
    async with serve(server) as served:
        server.speakers.max_streams, server.speakers.is_away = most, is_away
        outcome = await driver.of(served.ports, speech(1), **driver.speakers)
        check(driver, outcome, code)
        assert "speaker model" in outcome.message
        assert (await driver.of(served.ports, speech(2))).text == "w2"
        server.speakers.max_streams, server.speakers.is_away = 64, False
        assert (await driver.of(served.ports, speech(3), **driver.speakers)).text == "w3"
        (replica,) = served.streams._groups[0].replicas
        await until(lambda: replica.live == served.streams.live == 0)


@pytest.mark.parametrize("driver", ALL)
async def test_all_connections_of_a_key_are_open(fleet, serve, driver):
    async with serve(fleet(), keys=KEYS) as served:
        with contextlib.ExitStack() as connections:
            for _ in range(4 * 4 + 8):
                connections.enter_context(served.gateway.connections.taken(ONE))
            check(driver, await driver.of(served.ports, speech(1)), GatewayCode.STREAMS_EXHAUSTED)
            assert (await driver.of(served.ports, speech(2), key="sk-two")).text == "w2"
        assert (await driver.of(served.ports, speech(1))).text == "w1"
        await until(lambda: not served.gateway.connections.open[ONE.name])


@pytest.mark.parametrize("driver", [driver for driver in ALL if driver is not Realtime])
async def test_files_of_a_key_hold_half_of_the_audio(serve, offline, driver):
    """A file of 1.6 s without an end leaves 0.4 s of the share of 2 s. Another key has its own."""
    recognizer, text = offline.batch.recognizer, " ".join(text for text, _ in whole(len(FILE)))
    recognizer.server_parameters["max_audio_s"] = "4"
    async with serve(offline, keys=KEYS) as served:
        held = RivaStream(served.ports)
        held.send(FILE)
        await until(lambda: recognizer.received)
        outcome = await driver.of(served.ports, FILE)
        assert (outcome.code, outcome.status) in driver.errors(GatewayCode.STREAMS_EXHAUSTED)
        assert "of the API key 'one'" in outcome.message
        assert (await driver.of(served.ports, FILE, key="sk-two")).text == text
        held.end()
        assert (await held.ended()).text == text
        await until(lambda: not recognizer.received)
        assert (await driver.of(served.ports, FILE)).text == text
    recognizer.server_parameters["max_audio_s"] = "3"
    async with serve(offline, keys=KEYS) as served:
        outcome = await driver.of(served.ports, FILE)
        assert (outcome.code, outcome.status) in driver.errors(GatewayCode.TOO_LARGE)
        assert "half of what the servers hold" in outcome.message
        await until(lambda: not recognizer.received)


@pytest.mark.parametrize("quota", [{"requests_per_minute": 1}, {"audio_minutes_per_day": 1}])
@pytest.mark.parametrize("driver", ALL)
async def test_a_key_has_reached_its_quota(fleet, serve, driver, quota):
    now_s = 1e9
    key, admission = ApiKey("one", 4, **quota), Admission(now_s=lambda: now_s)
    async with serve(fleet(), keys=[key], admission=admission) as served:
        assert (await driver.of(served.ports, speech(1))).text == "w1"
        served.opened[0]._admitted.add_audio(60)
        check(driver, await driver.of(served.ports, speech(1)), GatewayCode.QUOTA_REACHED)
        now_s += 86_400
        assert (await driver.of(served.ports, speech(1))).text == "w1"


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("driver", ALL)
async def test_a_gateway_with_one_model_takes_any_name(fleet, serve, driver, strict):
    """Names of OpenAI are known everywhere."""
    async with serve(fleet(), strict=strict) as served:
        outcome = await driver.of(served.ports, speech(1), model="gpt-realtime-2.1-mini-2026-05-01")
        assert (outcome.text, outcome.ignored) == ("w1", "")
        outcome = await driver.of(served.ports, speech(1), model="whisper-large-v3")
        if strict:
            check(driver, outcome, GatewayCode.MODEL_NOT_FOUND)
        else:
            assert (outcome.text, outcome.ignored) == ("w1", "model 'whisper-large-v3'")


@pytest.mark.parametrize("reason", ["stopping", "none has answered"])
@pytest.mark.parametrize("driver", ALL)
async def test_no_replica_takes_a_stream(fleet, serve, driver, reason):
    server = fleet()
    if reason == "none has answered":
        server.close()
    async with serve(server) as served:
        if reason == "stopping":
            served.streams.drain()
        check(driver, await driver.of(served.ports, speech(1)), GatewayCode.NO_REPLICA)


@pytest.mark.parametrize("driver", [driver for driver in ALL if driver.large_samples])
async def test_a_message_that_is_too_large(fleet, serve, driver):
    """Audio that was sent before has its text, where the error ends the stream."""
    server = fleet()
    async with serve(server, max_upload_mb=10) as served:
        call = driver(served.ports)
        if driver.is_live:
            call.send(speech(1, 2))
            await until(lambda: served.opened)
        call.send(np.zeros(driver.large_samples, np.float32))
        if not driver.is_live:  # a commit could take the text before the error for its answer
            call.end()
        outcome = await call.ended()
        check(driver, outcome, GatewayCode.TOO_LARGE)
        assert outcome.text == "w1 w2" * driver.tells_rest
        assert (await driver.of(served.ports, speech(3))).text == "w3"
