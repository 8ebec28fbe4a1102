import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_client import ConnectionOptions
from penstock_client.batched.grpc_call import channel_options
from penstock_client.connection import Endpoint, retry_pauses_s


def test_header_names_are_lower_case_and_the_callers_mapping_is_not_kept():
    headers = {"X-Team": "speech"}
    options = ConnectionOptions(headers=headers)
    headers["late"] = "x"
    assert options.headers == {"x-team": "speech"}


@pytest.mark.parametrize(
    "values, message",
    [
        ({"client_key": "k.pem"}, "client_key is given without client_certificate"),
        ({"client_certificate": "c.pem"}, "client_certificate is given without client_key"),
        ({"keepalive_s": -1}, "keepalive_s is -1, expected seconds from 0"),
        ({"connect_retry_s": float("nan")}, "connect_retry_s is nan"),
        ({"headers": {"a b": "x"}}, "header name is 'a b'"),
        ({"headers": {"": "x"}}, "header name is ''"),
        ({"headers": {"Content-Length": "1"}}, "header 'content-length' is reserved by the protocol"),
        ({"headers": {"grpc-timeout": "1"}}, "header 'grpc-timeout'"),
        ({"headers": {"a-bin": "x"}}, "header 'a-bin'"),
        ({"headers": {"a": "x\r\nb: y"}}, "value of header 'a' must be one line"),
        ({"headers": {"a": "é"}}, "value of header 'a'"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(ValueError, match="^" + message):
        ConnectionOptions(**values)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_certificates_need_tls(protocol):
    with pytest.raises(ValueError, match=f"protocol '{protocol}' has no TLS"):
        Endpoint("localhost:1", protocol, options=ConnectionOptions(root_certificates="ca.pem"))


@pytest.mark.parametrize("port", [0, 65_536, 99_999])
def test_a_port_beyond_the_last_one_is_rejected(port):
    with pytest.raises(ValueError, match=f"url is 'localhost:{port}': the port is {port}, expected 1 to 65535"):
        Endpoint(f"localhost:{port}")


@given(st.floats(0, 100) | st.floats(1000, 3000))
def test_pauses_grow_and_add_up_to_the_retry_time(retry_s):
    pauses_s = list(retry_pauses_s(retry_s))
    assert sum(pauses_s) == pytest.approx(retry_s, abs=2e-3)
    assert pauses_s[:-1] == sorted(pauses_s[:-1])
    assert all(0 < pause_s <= 1 for pause_s in pauses_s)


def test_default_probes_are_within_the_limit_of_triton():
    assert dict(channel_options(ConnectionOptions()))["grpc.keepalive_time_ms"] > 300_000


def test_probes_can_be_disabled():
    assert ("grpc.keepalive_time_ms", 20_000) in channel_options(ConnectionOptions(keepalive_s=20))
    assert not [name for name, _ in channel_options(ConnectionOptions(keepalive_s=0)) if "keepalive" in name]
