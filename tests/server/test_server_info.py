"""Information from a real server, over HTTP and gRPC."""

import json
import urllib.request

import pytest
import tritonclient.grpc as triton_grpc

from penstock.pipeline.options.stream_options import MAX_REQUEST_S
from penstock.version import __version__
from penstock_client import Client
from penstock_client.protocol import MAX_REQUEST_SAMPLES
from penstock_common.options import MAX_PHRASES
from penstock_common.samples import SAMPLE_RATE_HZ
from trials.server.running import CONTEXT, RunningServer

pytestmark = pytest.mark.server


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_client_is_told_model_limits_and_decoders(protocol: str, server: RunningServer, bundled_model):
    with Client(server.url(protocol), protocol) as client:
        info = client.server_info()
    assert (info.version, info.model, info.architecture) == (__version__, bundled_model.name, "RNN-T + CTC")
    assert len(info.server_id) == 16
    assert (info.context, info.chunk_ms, info.sample_rate_hz) == (CONTEXT, 560.0, SAMPLE_RATE_HZ)
    assert info.decoders[:3] == ("greedy", "alsd", "aes") and "wfst" not in info.decoders
    assert (info.max_streams, info.idle_s) == (server.max_streams, server.idle_s)
    assert info.max_request_s * SAMPLE_RATE_HZ == MAX_REQUEST_S * SAMPLE_RATE_HZ == MAX_REQUEST_SAMPLES
    assert (info.max_boosted_phrases, info.languages) == (MAX_PHRASES, ())
    assert (info.has_language_model, info.has_internal_language_model) == (False, False)


def test_a_get_request_is_enough(server: RunningServer):
    with urllib.request.urlopen(f"http://{server.url('http')}/v2/models/asr/config", timeout=60) as response:
        parameters = json.load(response)["parameters"]
    found = {name: parameters[name]["string_value"] for name in ("chunk_ms", "chunk_samples", "first_chunk_samples")}
    assert found == {"chunk_ms": "560", "chunk_samples": "8960", "first_chunk_samples": "7880"}


def test_a_server_without_a_speaker_model_has_none(small_server: RunningServer):
    with triton_grpc.InferenceServerClient(small_server.url("grpc")) as client:
        assert client.is_model_ready("asr")
        assert not any(map(client.is_model_ready, ("speakers", "asr_batch_speakers")))
