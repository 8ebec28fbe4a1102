import multiprocessing

import pytest

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.admission import Admission, Counts

SHOP, LAB = ApiKey("shop", 2), ApiKey("lab", 1)


def rejected(call, *arguments):
    with pytest.raises(GatewayError) as caught:
        call(*arguments)
    return caught.value


@pytest.fixture(params=[1, 3])
def processes(request):
    """The admissions of one process, or of three."""
    context = multiprocessing.get_context("spawn")
    return [
        Admission(counts, process)
        for counts in [Counts.shared(context, request.param)]
        for process in range(request.param)
    ]


def test_streams_are_counted_over_all_processes(processes):
    first, last = processes[0], processes[-1]
    ends = [last.admit(LAB), first.admit(SHOP), last.admit(SHOP)]
    assert rejected(first.admit, SHOP).code is ErrorCode.STREAMS_EXHAUSTED
    assert rejected(first.admit, LAB).code is ErrorCode.STREAMS_EXHAUSTED
    for _ in range(2):
        ends[1]()
    assert (first.live(SHOP), first.live(LAB)) == (1, 1)
    first.admit(SHOP)


def test_a_process_that_starts_again_has_no_streams():
    counts = Counts.shared(multiprocessing.get_context("spawn"), 2)
    first, second = Admission(counts, 0), Admission(counts, 1)
    first.admit(SHOP)
    second.admit(SHOP)
    assert Admission(counts, 1).live(SHOP) == first.live(SHOP) == 1


def test_requests_per_minute_and_audio_per_day():
    now_s = [1_000_000_020.0]
    counts = Counts.shared(multiprocessing.get_context("spawn"), 2)
    first, second = (Admission(counts, process, lambda: now_s[0]) for process in range(2))
    key = ApiKey("shop", 100, requests_per_minute=3, audio_minutes_per_day=2)
    for admission in (first, second, first):
        admission.admit(key)
    error = rejected(second.admit, key)
    assert (error.code, error.retry_after_s) == (ErrorCode.QUOTA_REACHED, 60)
    assert "3 requests per minute" in error.message
    now_s[0] += 60
    second.admit(key)
    first.add_audio(key, 60)
    second.add_audio(key, 59)
    second.check(key)
    second.add_audio(key, 1)
    error = rejected(first.admit, key)
    assert "2 minutes of audio per day" in error.message
    now_s[0] += error.retry_after_s
    first.admit(key)
