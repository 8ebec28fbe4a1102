"""A wrong stream option is rejected by name over both protocols, before the stream takes a slot."""

import contextlib
import http.client
import itertools
import json
import math
import time

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from penstock.errors import split_code
from trials.server.raw_stream import RawStream
from trials.server.resources import read_metrics
from trials.server.running import RunningServer

pytestmark = pytest.mark.server

REJECTED = [
    ({"decoder": "viterbi"}, "decoder 'viterbi' is not known; offered: greedy, alsd, aes, ctc"),
    ({"lm_weight": math.nan}, "lm_weight is nan; accepted: numbers from 0 to 10"),
    ({"boosted_phrases": '[["seven", NaN]]'}, "boost nan"),
]
_NUMBERS = itertools.count()
NOTHING = np.zeros(0, np.float32)


@pytest.fixture(scope="module", params=["grpc", "http"])
def reject(request, server):
    """Starts a stream that must be rejected; returns the server's message."""

    def reject(parameters: dict) -> str:
        name = f"rejected-{request.param}-{next(_NUMBERS)}"
        with RawStream(server.url(request.param), name, request.param) as stream:
            with pytest.raises(InferenceServerException) as rejection:
                stream.send(NOTHING, start=True, end=True, parameters=parameters)
            return rejection.value.message()

    return reject


@pytest.mark.parametrize(("parameters", "match"), REJECTED, ids=["decoder", "weight", "boost"])
def test_rejected_by_name_before_a_slot_is_taken(server, reject, parameters, match):
    before = read_metrics(server)
    message = reject(parameters)
    after = read_metrics(server)
    assert match in message, message[:300]
    for name in ("streams_started_total", "streams_refused_total"):
        assert after[name] == before[name]
    # Streams that earlier tests have left open may expire meanwhile.
    assert after["slots_free"] >= before["slots_free"]
    assert after["streams_live"] <= before["streams_live"]


def _post(server: RunningServer, stream_id: str, samples: int = 0, **parameters: bool) -> tuple[int, str]:
    """Status and error of one request over HTTP."""
    audio = {"name": "AUDIO", "shape": [1, samples], "datatype": "FP32", "data": [0.0] * samples}
    body = {"parameters": {"sequence_id": stream_id, **parameters}, "inputs": [audio]}
    with contextlib.closing(http.client.HTTPConnection(server.url("http"), timeout=30)) as connection:
        connection.request("POST", "/v2/models/asr/infer", json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read()).get("error", "")


def test_codes_come_with_the_documented_http_status(small_server: RunningServer):
    names = [f"status-{number}" for number in range(small_server.max_streams)]
    assert {_post(small_server, name, sequence_start=True)[0] for name in names} == {200}
    answers = {
        "STREAM_LIMIT": _post(small_server, "one-more", sequence_start=True),
        "OPTION_INVALID": _post(small_server, names[0], finalize=False, language=True),
        "AUDIO_INVALID": _post(small_server, names[0], 480_001),
    }
    time.sleep(small_server.idle_s + 0.5)
    answers["STREAM_NOT_OPEN"] = _post(small_server, names[0])
    found = {code: (status, split_code(error)[0]) for code, (status, error) in answers.items()}
    assert found == {
        "STREAM_LIMIT": (503, "STREAM_LIMIT"),
        "OPTION_INVALID": (400, "OPTION_INVALID"),
        "AUDIO_INVALID": (400, "AUDIO_INVALID"),
        "STREAM_NOT_OPEN": (404, "STREAM_NOT_OPEN"),
    }
