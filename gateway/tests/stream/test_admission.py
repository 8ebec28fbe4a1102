import multiprocessing

import pytest

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS, ApiKey
from penstock_gateway.stream.admission import Admission, AudioHold, Counts

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
    for admission in (first, second):
        admission.hold(SHOP, 0, 800)
    assert Admission(counts, 1).live(SHOP) == first.live(SHOP) == 1
    assert first.held(SHOP, 0) == 800


def test_a_key_holds_half_of_the_audio_of_each_group_over_all_processes():
    counts = Counts.shared(multiprocessing.get_context("spawn"), 2, groups=2)
    first, second = Admission(counts, 0), Admission(counts, 1)

    def hold(admission, key, group=0, memory_s=20.0):
        return AudioHold(admission, key, group, 1, lambda: memory_s)

    holds = [hold(first, SHOP), hold(second, SHOP)]
    holds[0].take(6)
    holds[1].take(4)
    error = rejected(holds[1].take, 1)
    assert (error.code, error.server_code) == (ErrorCode.STREAMS_EXHAUSTED, "AUDIO_MEMORY_FULL")
    hold(first, SHOP, group=1).take(10)
    hold(first, LAB).take(10)
    holds[0].give_back()
    holds[1].take(6)
    error = rejected(holds[1].take, 1)
    assert (error.code, error.server_code, error.retry_after_s) == (ErrorCode.TOO_LARGE, "AUDIO_TOO_LONG", None)
    assert (first.held(SHOP, 0), second.held(SHOP, 1), first.held(LAB, 0)) == (10, 10, 10)
    hold(second, SHOP, memory_s=0.0).take(10)  # servers of an earlier version do not say
    hold(first, ANONYMOUS).take(30)


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
