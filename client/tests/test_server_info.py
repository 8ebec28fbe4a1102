"""Facts that a server publishes: over both protocols, and on the command line."""

import json

import pytest

from client.tests.helpers import fake_servers
from penstock_client import Client, ServerReplyError, ServerUnreachableError
from penstock_client.cli.main import main
from penstock_client.protocol import MAX_REPLY_BYTES
from penstock_common.server_info import parse_server_info


def test_a_server_tells_its_model_and_limits(client, recognizer, server):
    recognizer.server_parameters["color"] = "blue"  # of a later version
    info = client.server_info()
    assert (info.version, info.model, info.architecture) == ("1.2.3", "fake", "RNN-T, CTC")
    assert (info.context, info.chunk_ms, info.sample_rate_hz) == ((70, 6), 560.0, 16_000)
    assert (info.languages, info.decoders) == ((), ("greedy", "alsd"))
    assert (info.max_streams, info.max_request_s, info.idle_s) == (8, 30.0, 30.0)
    assert (info.max_beam_size, info.max_boosted_phrases, info.has_language_model) == (4, 2000, False)
    assert info.has_internal_language_model
    assert info.parameters["color"] == "blue"
    assert [*info.parameters] == sorted(info.parameters)  # protobuf has no order
    assert info.speakers == 8
    server.speakers.is_served = False
    assert client.server_info().speakers == 0


def test_a_server_of_another_kind_is_named(client, recognizer):
    del recognizer.server_parameters["context"]
    with pytest.raises(ServerReplyError, match=r"^REPLY_INVALID: the server at .* does not say what it offers"):
        client.server_info()


def test_no_server_is_unreachable(protocol, closed_url):
    client = Client(closed_url, protocol, timeout_s=60)
    with client, pytest.raises(ServerUnreachableError, match="connection refused"):
        client.server_info()


def test_languages_and_decoders_are_lists(recognizer):
    info = parse_server_info(recognizer.server_parameters | {"languages": "de-DE,en-US", "decoders": "ctc"})
    assert (info.languages, info.decoders) == (("de-DE", "en-US"), ("ctc",))


def test_a_server_of_an_earlier_version_has_no_internal_language_model(recognizer):
    del recognizer.server_parameters["has_internal_language_model"]
    assert not parse_server_info(recognizer.server_parameters).has_internal_language_model
    assert not parse_server_info(recognizer.server_parameters).fingerprint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context", "much"), ("chunk_ms", "much"), ("chunk_ms", "nan"), ("max_streams", "much"), ("max_streams", "0"),
        ("sample_rate_hz", "0"), ("idle_s", "inf"), ("max_beam_size", "-1"), ("max_audio_s", "-1"),
    ],
)  # fmt: skip
def test_an_unreadable_value_is_an_error(name, value, recognizer):
    with pytest.raises(ValueError):
        parse_server_info(recognizer.server_parameters | {name: value})


@pytest.mark.parametrize(
    "body", [b"[]", b'{"parameters": []}', b'{"parameters": {"a": 1}}', b"[" * 10**5, b" " * (MAX_REPLY_BYTES + 1)]
)
def test_a_reply_over_http_that_is_no_configuration(body, recognizer, monkeypatch):
    monkeypatch.setattr(fake_servers._Handler, "do_GET", lambda self: self._reply(200, body, None))
    server = fake_servers.HttpServer(recognizer)
    try:
        with Client(f"127.0.0.1:{server.port}", "http", timeout_s=60) as client, pytest.raises(ServerReplyError):
            client.server_info()
    finally:
        server.close()


def test_the_command_prints_the_information(url, protocol, capsys):
    assert main(["--info", "--url", url, "--protocol", protocol]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "model                fake" in lines and "context              70,6" in lines
    assert not [line for line in lines if line.startswith("languages")]  # empty


def test_the_command_prints_json(url, protocol, capsys, recognizer, server):
    assert main(["--info", "--json", "--url", url, "--protocol", protocol]) == 0
    assert json.loads(capsys.readouterr().out) == recognizer.server_parameters | server.speakers.parameters
