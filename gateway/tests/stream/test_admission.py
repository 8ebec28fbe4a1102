import pytest

from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS, ApiKey
from penstock_gateway.stream.admission import Admission, AudioHold

SHOP, LAB = ApiKey("shop", 2), ApiKey("lab", 1)


def rejected(call, *arguments):
    with pytest.raises(GatewayError) as caught:
        call(*arguments)
    return caught.value


def test_streams_are_counted_by_key():
    admission = Admission()
    ends = [admission.admit(LAB), admission.admit(SHOP), admission.admit(SHOP)]
    assert rejected(admission.admit, SHOP).code is ErrorCode.STREAMS_EXHAUSTED
    assert rejected(admission.admit, LAB).code is ErrorCode.STREAMS_EXHAUSTED
    for _ in range(2):
        ends[1]()
    assert (admission.live(SHOP), admission.live(LAB)) == (1, 1)
    admission.admit(SHOP)


def test_a_key_holds_half_of_the_audio_of_each_group():
    admission = Admission()

    def hold(key, group=0, memory_s=20.0):
        return AudioHold(admission, key, group, 1, lambda: memory_s)

    holds = [hold(SHOP), hold(SHOP)]
    holds[0].add(6)
    holds[1].add(4)
    error = rejected(holds[1].add, 1)
    assert error.code is ErrorCode.STREAMS_EXHAUSTED
    hold(SHOP, group=1).add(10)
    hold(LAB).add(10)
    holds[0].give_back()
    holds[1].add(6)
    error = rejected(holds[1].add, 1)
    assert (error.code, error.retry_after_s) == (ErrorCode.TOO_LARGE, None)
    assert (admission.held(SHOP, 0), admission.held(SHOP, 1), admission.held(LAB, 0)) == (10, 10, 10)
    hold(SHOP, memory_s=0.0).add(10)  # servers of an earlier version do not say
    hold(ANONYMOUS).add(30)


def test_requests_per_minute_and_audio_per_day():
    now_s = [1_000_000_020.0]
    admission = Admission(lambda: now_s[0])
    key = ApiKey("shop", 100, requests_per_minute=3, audio_minutes_per_day=2)
    for _ in range(3):
        admission.admit(key)
    error = rejected(admission.admit, key)
    assert (error.code, error.retry_after_s) == (ErrorCode.QUOTA_REACHED, 60)
    assert "3 requests per minute" in error.message
    now_s[0] += 60
    admission.admit(key)
    admission.add_audio(key, 119)
    admission.check(key)
    admission.add_audio(key, 1)
    error = rejected(admission.admit, key)
    assert "2 minutes of audio per day" in error.message
    now_s[0] += error.retry_after_s
    admission.admit(key)
