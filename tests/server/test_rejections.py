"""Each code of an error comes over HTTP with the documented status."""

import contextlib
import http.client
import json
import time

import pytest

from penstock.errors import split_code
from trials.server.running import RunningServer

pytestmark = pytest.mark.server


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
