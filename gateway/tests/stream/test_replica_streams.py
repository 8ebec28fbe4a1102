import asyncio
import contextlib
import re

import numpy as np
import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.fakes import word
from gateway.tests.helpers.stream_calls import audio, events_of, named, opened, rejection
from penstock_common.audio.pcm import Remark
from penstock_common.results import Word
from penstock_gateway.config import ReplicaGroup
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS, ApiKey
from penstock_gateway.stream import replicas
from penstock_gateway.stream.admission import Admission
from penstock_gateway.stream.events import Final, Partial
from penstock_gateway.stream.options import LiveStreamOptions


async def test_events_have_the_words_of_their_segment(server, open_streams):
    async with open_streams(server) as streams:
        stream = await opened(streams)
        await stream.push(audio(3))
        await stream.push(audio(1))
        await stream.end_segment()
        await stream.push(audio(2))
        await stream.finish()
        events = await events_of(stream)
    finals = [event for event in events if isinstance(event, Final)]
    assert [(final.segment, final.text, final.forced, final.is_last) for final in finals] == [
        (0, " ".join(map(word, range(4))), True, False),
        (1, " ".join(map(word, range(2))), False, True),
    ]
    assert finals[1].words == (Word(word(0), 200, 250, 1.0), Word(word(1), 250, 300, 0.875))
    assert finals[0].end_s == pytest.approx(0.2)
    partials = [event for event in events if isinstance(event, Partial)]
    assert partials[0].text == " ".join(map(word, range(3)))
    assert partials[0].words == (Word(word(0), 0, 50, 1.0), Word(word(1), 50, 100, 0.875))
    assert events[-1] is finals[1]


async def test_a_loop_of_words_is_counted_once_and_logged(server, open_streams, metrics, monkeypatch, caplog):
    monkeypatch.setattr("client.tests.helpers.fakes.word", lambda index: "no")
    async with open_streams(server) as streams:
        stream = await opened(streams)
        stream.start_s = 5.0
        stream.note([Remark("cut", 1.0, 2.0)])
        stream.note([Remark("cut", 1.0, 3.0)])
        for _ in range(40):
            await stream.push(audio(1))
        await stream.finish()
        await events_of(stream)
    assert stream.remarks == [Remark("cut", 1.0, 3.0), Remark("repeated", 5.0, 0.0)]
    value = metrics.registry.get_sample_value
    assert [value("penstock_gateway_remarks_total", {"code": code}) for code in ("cut", "repeated")] == [1, 1]
    assert "repeats itself at 5.00 s" in caplog.text


async def test_options_reach_the_server(server, open_streams):
    async with open_streams(server) as streams:
        stream = await opened(
            streams, decoder="alsd", n_best=2, phrases=[("wörd", 1.5)], extra={"beam_size": 3, "lm_weight": 0.0}
        )
        await stream.push(audio(1))
        await stream.finish()
        (final,) = (event for event in await events_of(stream) if isinstance(event, Final))
    parameters = server.batch.recognizer.requests[0].parameters
    assert {name: parameters[name] for name in ("decoder", "n_best", "beam_size")} == {
        "decoder": "alsd",
        "n_best": 2,
        "beam_size": 3,
    }
    assert "boosted_phrases" in parameters and "unknown_phrases" not in parameters
    assert [alternative.score for alternative in final.alternatives] == [-0.5, -1.5]


@pytest.mark.parametrize("strict", [False, True])
async def test_a_server_that_tells_its_alphabet_fits_phrases_to_it(servers, open_streams, strict):
    server = servers(alphabet="abc")
    async with open_streams(server, strict=strict) as streams:
        assert streams.groups[0].unwritable(["Cäb", "24", "..."]) == ["24", "..."]
        with pytest.raises(GatewayError, match="cannot write '24'") if strict else contextlib.nullcontext():
            streams.check(LiveStreamOptions(phrases=[("24", 1.5)]))
        for phrases in ([("Cäb", 1.5)], []):
            stream = await opened(streams, phrases=phrases)
            await stream.finish()
            await events_of(stream)
    starts = [request.parameters for request in server.batch.recognizer.requests if request.is_start]
    assert [parameters.get("unknown_phrases") for parameters in starts] == [None if strict else "ignore", None]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"extra": {"lm_weight": 2.5}}, "no model"),  # by the server
        ({"n_best": 3}, "n_best"),  # by the client
        ({"extra": {"beam": 3}}, "'beam' is not known; accepted: decoder, "),
        ({"phrases": [("", 1.0)]}, "phrase 1 ('') is empty"),
    ],
)
async def test_a_wrong_option_is_named_and_takes_no_stream(server, open_streams, options, named):
    async with open_streams(server) as streams:
        error = await rejection(opened(streams, **options))
        assert error.code is GatewayCode.FIELD_INVALID
        assert named in error.message
        assert streams.live == 0


async def test_models_are_found_by_name(servers, open_streams):
    low, high = servers(context="70,1", model="m"), servers(context="70,6", model="m")
    async with open_streams(groups=named(low=low, high=high)) as streams:
        assert [group.name for group in streams.groups] == ["low", "high"]
        assert streams.group("high").context == (70, 6)
        assert {streams.group(name).name for name in ("", "whisper-1", "gpt-realtime")} == {"low"}
        await opened(streams, model="high")
        assert len(high.batch.recognizer.received) == 1
        with pytest.raises(GatewayError, match=r"MODEL_NOT_FOUND.*accepted: low, high"):
            streams.group("medium")


async def test_a_group_that_never_answered_is_not_replaced_by_another(servers, open_streams):
    big, small = servers(), servers()
    big.close()
    async with open_streams(groups=named(big=big, small=small)) as streams:
        for name in ("", "whisper-1", "big"):
            assert (await rejection(opened(streams, model=name))).code is GatewayCode.NO_REPLICA
        with pytest.raises(GatewayError, match=r"MODEL_NOT_FOUND.*accepted: big, small"):
            streams.group("medium")
        assert [group.name for group in streams.groups] == ["small"]
        streams.check_room(ANONYMOUS)
        await opened(streams, model="small")


async def test_streams_go_where_there_is_most_room(servers, open_streams):
    small, large = servers(2), servers(8)
    async with open_streams(small, large) as streams:
        for _ in range(10):
            await opened(streams)
        assert [len(server.batch.recognizer.received) for server in (small, large)] == [2, 8]
        error = await rejection(opened(streams))
        assert (error.code, error.retry_after_s) == (GatewayCode.STREAMS_EXHAUSTED, 2.0)


async def test_a_replica_that_others_filled_is_passed_over(servers, open_streams):
    full, other = servers(4), servers(2)
    full.batch.recognizer.max_streams = 0
    async with open_streams(full, other) as streams:
        await opened(streams)
        await opened(streams)
        assert len(other.batch.recognizer.received) == 2
        assert (await rejection(opened(streams))).code is GatewayCode.STREAMS_EXHAUSTED


async def test_a_cancelled_stream_has_no_more_events(server, open_streams):
    async with open_streams(server) as streams:
        stream = await opened(streams)
        reading = asyncio.create_task(events_of(stream))
        await stream.push(audio(1))
        await asyncio.sleep(0)
        await stream.cancel()
        await stream.cancel()
        assert all(isinstance(event, Partial) for event in await reading)


async def test_a_stream_whose_connection_is_closed_is_lost(server, open_streams):
    async with open_streams(server) as streams:
        stream = await opened(streams)
        reading = asyncio.create_task(events_of(stream))
        await stream._replica.client.close()
        error = await rejection(reading)
        assert error.code is GatewayCode.STREAM_LOST
        assert "127.0.0.1" not in error.message
        assert streams.live == 0


async def test_audio_and_requests_of_a_key_are_counted(server, open_streams, metrics):
    admission, key = Admission(), ApiKey("shop", 4, requests_per_minute=2, audio_minutes_per_day=1)
    async with open_streams(server, admission=admission) as streams:
        stream = await opened(streams, key)
        await stream.push(audio(1190))
        await asyncio.sleep(0)
        await stream.finish()
        await events_of(stream)
        admission.check(key)
        stream = await opened(streams, key)
        await stream.push(audio(20))
        await stream.finish()
        await events_of(stream)
        assert (await rejection(opened(streams, key))).code is GatewayCode.QUOTA_REACHED
    for name, value in (("requests", 2), ("audio_seconds", 60.5)):
        assert metrics.registry.get_sample_value(f"penstock_gateway_key_{name}_total", {"key": "shop"}) == value


async def test_live_streams_of_a_key_hold_their_windows(servers, open_streams):
    shop = ApiKey("shop", 8)
    offline, other = servers(windows="file,long,live", max_audio_s="60"), servers(max_audio_s="0")
    async with open_streams(offline, other) as streams:  # the other one has another model, so it does not count
        first, *_ = [await opened(streams, shop, extra={"window": window}) for window in ("live", "10,2,2")]
        error = await rejection(opened(streams, shop, extra={"window": "live"}))
        assert error.code is GatewayCode.STREAMS_EXHAUSTED
        await first.push(audio(100))  # 5 s of its 14 s
        await first.cancel()
        await opened(streams, shop, extra={"window": "8,4,3"})
        assert streams.live == 2


async def test_a_replica_that_starts_later_is_found(server, open_streams, monkeypatch):
    parameters, server.batch.recognizer.server_parameters = server.batch.recognizer.server_parameters, {}
    monkeypatch.setattr("penstock_gateway.limits.PROBE_S", 0.01)
    async with open_streams(server) as streams:
        assert not streams.groups
        assert (await rejection(opened(streams))).code is GatewayCode.NO_REPLICA
        with pytest.raises(GatewayError, match="NO_REPLICA"):
            streams.group("")
        server.batch.recognizer.server_parameters = parameters
        await until(lambda: streams.groups)
        assert streams.group("fake").chunk_ms == 560, "a group without a name has that of its model"
        await opened(streams)


async def test_a_replica_with_another_model_waits_for_the_probe_of_its_sibling(servers, caplog):
    caplog.set_level("INFO", "penstock_gateway.stream.replicas")
    addresses = [f"127.0.0.1:{servers(context=context).port}" for context in ("70,6", "70,1")]
    group = replicas.Group(ReplicaGroup("", tuple(addresses)), 60.0)
    first, other = group.replicas
    try:
        await group.probe()
        answers = [await replica.probe() for replica in group.replicas]
        release = asyncio.Event()

        async def slow():
            await release.wait()
            return answers[0]

        first.probe = slow
        probing = asyncio.create_task(group.probe())
        await asyncio.wait((probing,), timeout=0.2)
        assert group.candidates() == [first]
        release.set()
        await probing
        assert group.candidates() == [first]
    finally:
        await group.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"replica {first.address} is up: fake",
        f"replica {other.address} gets no streams: serves fake (70, 1), not fake (70, 6)",
    ]


async def test_bad_samples_fail_their_stream_alone(server, open_streams):
    async with open_streams(server) as streams:
        bad, good = await opened(streams), await opened(streams)
        await bad.push(np.array([np.nan] * 800, np.float32))
        error = await rejection(events_of(bad))
        assert (error.code, error.retry_after_s) == (GatewayCode.AUDIO_INVALID, None)
        await good.push(audio(1))
        await good.finish()
        assert (await events_of(good))[-1].text == word(0)


async def test_more_than_two_unanswered_seconds_wait(server, open_streams):
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stall():
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(60)

    async with open_streams(server) as streams:
        stream = await opened(streams)
        server.on_request = stall
        await stream.push(audio(40))  # 2 s
        await stream.push(audio(1))
        pushing = asyncio.create_task(stream.push(audio(1)))
        await asyncio.sleep(0.1)
        assert not pushing.done()
        release.set()
        await pushing
        await stream.finish()
        assert len((await events_of(stream))[-1].words) == 42


async def test_metrics_and_the_access_log(server, open_streams, metrics, caplog):
    caplog.set_level("INFO", "penstock_gateway.access")

    def value(name, **labels):
        return metrics.registry.get_sample_value(f"penstock_gateway_{name}", labels)

    async with open_streams(server) as streams:
        stream = await opened(streams)
        assert value("streams_live", protocol="test") == 1
        await stream.push(audio(2))
        await stream.end_segment()
        await stream.finish()
        await events_of(stream)
    assert value("streams_live", protocol="test") == 0
    assert value("streams_started_total", protocol="test") == 1
    assert value("audio_seconds_total", protocol="test") == pytest.approx(0.1)
    assert value("final_latency_seconds_count", protocol="test") == 2
    assert value("partial_latency_seconds_count", protocol="test") == 1
    assert value("replicas_up", group="fake") == 1
    (line,) = (record.fields for record in caplog.records if record.name == "penstock_gateway.access")
    assert re.fullmatch(r"\d+ of client '[0-9a-f]{32}'", line["stream"])  # as in the server's log
    assert {name: line[name] for name in ("protocol", "key", "model", "audio_s", "segments", "words", "end")} == {
        "protocol": "test", "key": "anonymous", "model": "fake", "audio_s": 0.1, "segments": 2, "words": 2,
        "end": "finished",
    }  # fmt: skip
