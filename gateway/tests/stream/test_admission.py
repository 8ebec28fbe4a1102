from dataclasses import dataclass

import pytest

from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ANONYMOUS, ApiKey
from penstock_gateway.stream.admission import Admission

SHOP, LAB = ApiKey("shop", 2), ApiKey("lab", 1)


@dataclass(eq=False)
class Servers:
    memory_s: float = 20.0
    sample_rate_hz: int = 1


def rejected(call, *arguments):
    with pytest.raises(GatewayError) as caught:
        call(*arguments)
    return caught.value


def test_streams_are_counted_by_key():
    admission = Admission()
    _, one, _ = [admission.admit(key, Servers()) for key in (LAB, SHOP, SHOP)]
    assert rejected(admission.admit, SHOP, Servers()).code is GatewayCode.STREAMS_EXHAUSTED
    assert rejected(admission.admit, LAB, Servers()).code is GatewayCode.STREAMS_EXHAUSTED
    for _ in range(2):
        one.end()
    assert (admission._keys[SHOP.name].streams, admission._keys[LAB.name].streams) == (1, 1)
    admission.admit(SHOP, Servers())


def test_a_key_holds_half_of_the_audio_of_each_group():
    admission, servers, many = Admission(), Servers(), ApiKey("many", 8)

    def file(key, group=servers):
        return admission.admit(key, group, held_s=None)

    files = [file(many), file(many)]
    files[0].hold(6)
    files[1].hold(4)
    assert rejected(files[1].hold, 1).code is GatewayCode.STREAMS_EXHAUSTED
    assert rejected(admission.admit, many, servers, 1.0).code is GatewayCode.STREAMS_EXHAUSTED
    file(many, Servers()).hold(10)
    file(LAB).hold(10)
    files[0].end()
    files[1].hold(6)
    error = rejected(files[1].hold, 1)
    assert (error.code, error.retry_after_s) == (GatewayCode.TOO_LARGE, None)
    file(many, Servers(memory_s=0.0)).hold(10)  # servers of an earlier version do not say
    file(ANONYMOUS).hold(30)
    assert admission._keys[many.name].streams == 3


def test_requests_per_minute_and_audio_per_day():
    now_s = [1_000_000_020.0]
    admission = Admission(lambda: now_s[0])
    key = ApiKey("shop", 100, requests_per_minute=3, audio_minutes_per_day=2)
    for _ in range(3):
        admitted = admission.admit(key, Servers())
    error = rejected(admission.check, key)
    assert (error.code, error.retry_after_s) == (GatewayCode.QUOTA_REACHED, 60)
    assert "3 requests per minute" in error.message
    now_s[0] += 60
    admitted.add_audio(119)
    admission.check(key)
    admitted.add_audio(1)
    error = rejected(admission.check, key)
    assert "2 minutes of audio per day" in error.message
    now_s[0] += error.retry_after_s
    admission.check(key)
