"""Certificates and headers, over each protocol, against fake servers with TLS."""

import numpy as np
import pytest

from client.tests.helpers.certificates import make_certificates
from client.tests.helpers.fake_servers import GrpcServer, HttpServer
from penstock_client import Client, ConnectionOptions, ServerUnreachableError
from penstock_client.cli.main import main


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["grpcs", "https"])
def protocol(request):
    return request.param


@pytest.fixture
def server(protocol, recognizer, certificates):
    server = {"grpcs": GrpcServer, "https": HttpServer}[protocol](recognizer, certificates)
    yield server
    server.close()


@pytest.fixture
def known(certificates):
    """The options for mutual TLS."""
    return {
        "root_certificates": certificates.server,
        "client_certificate": certificates.client,
        "client_key": str(certificates.client_key),
    }


def test_client_and_server_with_mutual_tls(protocol, server, url, known, samples):
    headers = {"Authorization": "Bearer a+b/c=", "x-team": "speech"}
    options = ConnectionOptions(**known, headers=headers)
    with Client(url, protocol, connection_options=options) as client:
        assert client.transcribe(samples).is_complete
    assert {name: server.headers.get(name) for name in ("authorization", "x-team")} == {
        "authorization": "Bearer a+b/c=",
        "x-team": "speech",
    }


def test_an_untrusted_server_receives_no_audio(protocol, url, known, recognizer):
    options = ConnectionOptions(**{**known, "root_certificates": None}, connect_retry_s=0.1)
    with (
        Client(url, protocol, connection_options=options) as client,
        pytest.raises(ServerUnreachableError, match=f"(?i)cannot reach a server at {url}: .*certificate") as error,
    ):
        client.transcribe(np.zeros(10))
    assert "needs a server's" not in str(error.value)
    assert recognizer.requests == []


def test_an_untrusted_client_is_rejected(protocol, url, certificates, recognizer):
    options = ConnectionOptions(root_certificates=certificates.server, connect_retry_s=0.1)
    with Client(url, protocol, connection_options=options) as client, pytest.raises(ServerUnreachableError):
        client.transcribe(np.zeros(10))
    assert recognizer.requests == []


@pytest.mark.parametrize("name", ["root_certificates", "client_certificate", "client_key"])
@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "no PEM"])
def test_an_unusable_file_is_named(protocol, known, tmp_path, name, content):
    path = tmp_path / "bad.pem"
    if content:
        path.write_text(content)
    reason = "not a PEM file" if content else "no such file"
    with pytest.raises(ValueError, match=f"{path}: {reason}"):
        Client("localhost:1", protocol, connection_options=ConnectionOptions(**{**known, name: path}))


def test_the_command_takes_certificates_and_headers(protocol, server, url, certificates, audio_file, capsys):
    arguments = ["--url", url, "--protocol", protocol, "--header", "Authorization: Bearer x"]
    arguments += ["--root-certificates", str(certificates.server)]
    arguments += ["--client-certificate", str(certificates.client), "--client-key", str(certificates.client_key)]
    assert main([str(audio_file), *arguments]) == 0
    assert capsys.readouterr().out.startswith("wörd0")
    assert server.headers["authorization"] == "Bearer x"
