"""Speakers of streams that move: speakers who are heard in the repeated audio keep their numbers."""

import asyncio

import pytest

from client.tests.helpers.batched_client import WAIT_S, results_of, transcript
from client.tests.helpers.event_loop import until
from client.tests.helpers.fake_fleet import BLOCK, heard, speech
from client.tests.helpers.fakes import RejectionError
from client.tests.helpers.moved_streams import closing, connected
from penstock_client import StreamOptions, limits

PAUSE = (0, 0, 0, 0, 0, 0)
TALK = speech(
    1, 2, 3, *PAUSE, 101, 102, 103, *PAUSE, 4, 5, 6, *PAUSE, 104, 105, 106, *PAUSE, 201, 202, *PAUSE, 7, 8, *PAUSE,
    107, 108, *PAUSE, 203, 9,
)  # fmt: skip
"""Voices 1, 2 and 3: the hundreds of the words. Each turn is a segment, but the last."""
ON = StreamOptions(speakers="on", endpoint_silence_ms=800)
BLOCKS = len(TALK) // BLOCK
NUMBERS = {0: 1, 1: 2, 2: 3}


@pytest.fixture(autouse=True)
def short_context(monkeypatch):
    """Up to three turns are repeated."""
    monkeypatch.setattr(limits, "WARM_UP_S", 0.2)
    monkeypatch.setattr(limits, "SPEAKER_CONTEXT_S", 1.5)


async def play(client, before_block=None, options=ON, stalls=False):
    """The transcript of TALK, of which a block is answered before the next one is pushed."""
    async with await client.open_stream(options) as stream:
        reading = asyncio.create_task(results_of(stream))
        for i in range(BLOCKS):
            if before_block:
                await before_block(stream, i)
            await stream.push(TALK[i * BLOCK : (i + 1) * BLOCK])
            if not stalls:
                await until(lambda: stream.is_answered or reading.done())
        await stream.finish()
        return transcript(await asyncio.wait_for(reading, WAIT_S))


def spoken(found) -> list[tuple[str, int | None]]:
    """The words of a transcript with their speakers."""
    return [(word.text, word.speaker) for word in found.words]


EXPECTED = [
    (f"w{number}", NUMBERS[number // 100])
    for number in (1, 2, 3, 101, 102, 103, 4, 5, 6, 104, 105, 106, 201, 202, 7, 8, 107, 108, 203, 9)
]


async def test_without_a_move(servers):
    async with connected(servers()) as client:
        assert spoken(await play(client)) == EXPECTED


@pytest.mark.parametrize("at", [0, 2, 11, 14, 31, 53, BLOCKS - 1])
async def test_killed(servers, at):
    first, second = servers(), servers()
    async with connected(first, second) as client:
        assert spoken(await play(client, closing(first, at))) == EXPECTED
    assert second.batch.starts and not second.batch.streams and not second.speakers.audio


@pytest.mark.parametrize("at", [1, 11, 14, 31, 53])
async def test_drained(servers, at):
    first, second = servers(), servers()
    async with connected(first, max_replay_s=1000.0) as source, connected(second) as target:

        async def move(stream, i):
            if i == at:
                await target.move_here(stream)
                await until(lambda: not first.batch.streams and not first.speakers.audio)

        assert spoken(await play(source, move)) == EXPECTED
    assert len(second.batch.starts) == 1


@pytest.mark.parametrize("at", [2, 14, 31])
async def test_stalled(servers, at):
    first, second = servers(), servers()

    async def stall(stream, i):
        if i == at:
            first.may_answer.clear()

    async with connected(first, second, timeout_s=2.0) as client:
        assert spoken(await play(client, stall, stalls=True)) == EXPECTED


@pytest.mark.parametrize("at", [2, 31])
async def test_full(servers, at):
    """A server whose speaker model is full takes the stream once that has room."""
    first, second = servers(), servers()
    second.speakers.max_streams = 0

    def free_later(rows):
        tries.append(1)
        second.speakers.max_streams = int(len(tries) >= 3)

    async def kill(stream, i):
        if i == at:
            second.speakers.before = free_later
            await asyncio.to_thread(first.close)

    tries = []
    async with connected(first, second) as client:
        assert spoken(await play(client, kill)) == EXPECTED
    assert len(tries) >= 3


@pytest.mark.parametrize("at", [9, 18, 27, 44])
async def test_parked(servers, at):
    server = servers()
    async with connected(server, servers()) as client:

        async def park(stream, i):
            if i == at:
                stream.park()
                await until(lambda: stream.is_parked and not server.batch.streams)

        found = await play(client, park)
    assert spoken(found) == EXPECTED


@pytest.mark.parametrize("ends", [False, True])
async def test_in_long_silence(servers, ends):
    """Silence that ends segments fills the context: then speakers get numbers that the stream has not used."""
    first, second = servers(), servers()
    options = ON.replace(endpoint_no_speech_ms=1000) if ends else ON
    silence = speech(*[0] * 100)
    async with connected(first, second) as client, await client.open_stream(options) as stream:
        reading = asyncio.create_task(results_of(stream))
        for audio in (speech(1, 2, 101, 102), silence, silence):
            await stream.push(audio)
        await until(lambda: stream.is_answered)
        await asyncio.to_thread(first.close)
        await stream.push(speech(103, *PAUSE, 3))
        await stream.finish()
        found = transcript(await asyncio.wait_for(reading, WAIT_S))
    later = (3, 4) if ends else (2, 1)
    before = [("w1", 1), ("w2", 1), ("w101", 2), ("w102", 2)]
    assert spoken(found) == [*before, *zip(("w103", "w3"), later, strict=True)]


async def test_a_speaker_who_is_silent_in_the_context_gets_a_new_number(servers, monkeypatch):
    """The new server hears 2 first, and then 1."""
    monkeypatch.setattr(limits, "SPEAKER_CONTEXT_S", 0.5)
    first, second = servers(), servers()

    async with connected(first, second) as client:
        found = await play(client, closing(first, 19))  # in the first word of w4, after the turn of 2
    assert [word for word, _ in spoken(found)] == [word for word, _ in EXPECTED]
    renumbered = {1: 3, 2: 2, 3: 4}
    assert spoken(found)[:6] == EXPECTED[:6]
    assert [who for _, who in spoken(found)[6:]] == [renumbered[who] for _, who in EXPECTED[6:]]


@pytest.mark.parametrize("is_away", [False, True])
async def test_without_another_speaker_model_the_words_go_on(servers, caplog, is_away):
    """With the server that is left, or with one whose model has ended."""
    first, second = servers(), servers()
    second.speakers.is_served = False

    async def lose(stream, i):
        if i == 14 and is_away:
            first.speakers.is_away = True
        elif i == 14:
            await asyncio.to_thread(first.close)

    async with connected(first, second) as client:
        found = await play(client, lose)
    assert spoken(found)[:3] == EXPECTED[:3]
    assert spoken(found)[3:] == [(word, None) for word, _ in EXPECTED[3:]]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and "goes on without speakers" in warnings[0]
    last = (first if is_away else second).batch
    assert not {"speakers", "speaker_mode"} & last.starts[-1].keys()


async def test_another_speaker_model_is_tried_before_the_words_go_on_without(servers):
    first, second = servers(), servers()

    async def lose(stream, i):
        first.speakers.is_away = i >= 14

    async with connected(first, second) as client:
        assert spoken(await play(client, lose)) == EXPECTED
    assert second.batch.starts[-1]["speakers"] == "on"


async def test_a_model_that_starts_again_has_its_streams_again(servers):
    """A process that is killed fails the requests on their way, and another one takes its place."""
    server = servers()

    def fail_once(rows):
        server.speakers.before = lambda rows: None
        raise RejectionError("Failed to process the request(s): the stub process has ended")

    async def lose(stream, i):
        if i in (14, 31):
            server.speakers.before = fail_once

    async with connected(server) as client:
        assert spoken(await play(client, lose)) == EXPECTED
    assert len(server.batch.starts) == 3


async def test_a_stream_that_a_model_has_lost_meanwhile_is_replayed(servers):
    """No request failed: the stream was silent while the process was replaced."""
    server = servers()

    async def lose(stream, i):
        if i == 14:
            server.speakers.lose()

    async with connected(server) as client:
        assert spoken(await play(client, lose)) == EXPECTED
    assert ["speakers" in start for start in server.batch.starts] == [True, True]


async def test_a_stream_that_ends_the_speaker_model_each_time_goes_on_without(servers):
    server = servers()

    async with connected(server) as client, await client.open_stream(ON) as stream:
        await stream.push(speech(1, 2, *PAUSE))
        await until(lambda: stream.is_answered)

        def fail_with_audio(rows):
            if rows[:, 1].any():
                raise RejectionError("Failed to process the request(s): the stub process has ended")

        server.speakers.before = fail_with_audio
        await stream.push(speech(3))
        await stream.finish()
        found = transcript(await asyncio.wait_for(results_of(stream), WAIT_S))
    assert spoken(found) == [("w1", 1), ("w2", 1), ("w3", None)]
    assert ["speakers" in start for start in server.batch.starts] == [True, True, False]


@pytest.mark.parametrize("at", [38, 39, 45])
@pytest.mark.parametrize("is_more", [False, True])
async def test_other_ends_in_the_context_change_no_word(servers, monkeypatch, at, is_more):
    """The new server ends a segment after w5, or none after w6: its encoder has other audio before them."""
    first, second = servers(), servers()
    is_endpoint = second.batch._is_endpoint

    def is_other_endpoint(stream):
        last = [word for word, _ in heard(stream, stream.done)][-1:]
        return (is_more and last == ["w5"]) or (is_endpoint(stream) and (is_more or last != ["w6"]))

    monkeypatch.setattr(second.batch, "_is_endpoint", is_other_endpoint)

    async with connected(first, second) as client:
        assert spoken(await play(client, closing(first, at))) == EXPECTED
