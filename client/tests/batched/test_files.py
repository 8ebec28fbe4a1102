"""Files of a `BatchedClient` to servers with an offline model: polled until their last result."""

import numpy as np
import pytest

from client.tests.helpers.batched_client import answers_of, connected, noise, results_of, rows_of, transcript
from client.tests.helpers.fake_offline import SEGMENT, STEP, OfflineRecognizer, whole
from client.tests.helpers.fake_servers import GrpcServer
from client.tests.helpers.fakes import RejectionError
from penstock_client import StreamError
from penstock_client.batched.client import BatchedClient

SAMPLES = 3 * SEGMENT + 1000
POLLS = -(-SAMPLES // STEP) - 1
END = 2


@pytest.fixture
def recognizer():
    return OfflineRecognizer(max_streams=64)


@pytest.fixture
def replicas():
    """Two servers of one model."""
    made = []
    for _ in range(2):
        recognizer = OfflineRecognizer()
        recognizer.server_parameters["penstock_fingerprint"] = "same"
        made.append(GrpcServer(recognizer))
    yield made
    for server in made:
        server.close()


def texts(results):
    return [(segment.text, segment.tokens) for segment in transcript(results).segments]


async def sent(client, samples):
    stream = await client.open_stream()
    for part in np.array_split(samples, 3):
        await stream.push(part)
    await stream.finish()
    return stream


async def test_a_file_is_polled_until_its_last_result_and_its_last_row_answered_in_parts(server):
    async with connected(server) as client:
        stream = await sent(client, noise(SAMPLES))
        answers = await answers_of(stream)
        results = [result for answer in answers for result in answer.results]
        assert texts(results) == whole(SAMPLES)
        assert [result.is_last for result in results].index(True) == len(results) - 1
        assert [result.is_endpoint for result in results if result.is_final] == [True] * 3 + [False]
        assert rows_of(server, stream.stream_id)[-POLLS - 1 :] == [(0, END)] + [(0, 0)] * POLLS
        assert stream.is_over and stream.is_answered and stream.rows == 5
        assert [answer.is_whole for answer in answers] == [True] * 4 + [False] * POLLS + [True]
        assert all(answer.end_samples == SAMPLES for answer in answers[4:])


async def test_a_rejected_poll_fails_its_stream_alone(server, recognizer):
    async with connected(server) as client:
        bad, good = await client.open_stream(), await client.open_stream()

        def reject(request):
            if request.stream_id in recognizer.work and request.stream_id[1] == bad.stream_id:
                raise RejectionError("STREAM_LOST: the encoder failed")

        recognizer.before_answer = reject
        for stream in (bad, good):
            await stream.finish(noise(SAMPLES))
        with pytest.raises(StreamError, match="the encoder failed"):
            await results_of(bad)
        assert texts(await results_of(good)) == whole(SAMPLES)


def lose(server, at):
    """The server breaks its call with the poll of this number, and answers nothing after it."""

    def answer(request):
        if request.stream_id in server.batch.recognizer.work:
            polled.append(request)
        if len(polled) >= at:
            raise ConnectionError("this server is dead")

    polled = []
    server.batch.recognizer.before_answer = answer


@pytest.mark.parametrize("at", [1, 2, 3, POLLS])
async def test_a_file_goes_on_at_another_server_where_its_audio_is_kept(replicas, at):
    first, second = replicas
    lose(first, at)
    async with BatchedClient([f"127.0.0.1:{each.port}" for each in replicas], timeout_s=60) as client:
        stream = await sent(client, noise(SAMPLES))
        results = await results_of(stream)
        assert texts(results) == whole(SAMPLES)
        assert transcript(results).audio_processed_s == SAMPLES / 16_000
        assert sum(samples for _, samples, _, _ in np.concatenate(second.batch.batches)) == SAMPLES


async def test_a_longer_file_fails_with_its_server(replicas):
    lose(replicas[0], 2)
    urls = [f"127.0.0.1:{each.port}" for each in replicas]
    async with BatchedClient(urls, timeout_s=60, max_unanswered_s=0.5, max_replay_s=1.0) as client:
        stream = await sent(client, noise(SAMPLES))
        with pytest.raises(StreamError) as caught:
            await results_of(stream)
        assert caught.value.code == "CONNECTION_LOST"
