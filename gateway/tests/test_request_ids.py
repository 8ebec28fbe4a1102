"""A client finds its requests in the log by an id of its own, by its trace, or by the id that the reply names."""

import logging

import grpc
import pytest
from websockets.asyncio.client import connect

from gateway.tests.helpers.riva_client import client as riva
from gateway.tests.helpers.running import http_client, running
from penstock_gateway.tracing import choose_id, current_request_id

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def requests(caplog):
    """The ids in the lines of the log."""
    caplog.set_level(logging.INFO, "penstock_gateway.access")
    return lambda: [record.fields["request"] for record in caplog.records if record.name == "penstock_gateway.access"]


def test_the_id_is_the_clients_else_that_of_its_trace_else_a_new_one():
    assert choose_id("call-7", f"00-{TRACE}-00f067aa0ba902b7-01") == "call-7"
    for bad in (None, "", "x" * 200, "a b", "\u00fc"):
        assert choose_id(bad, f"00-{TRACE}-00f067aa0ba902b7-01") == TRACE
        assert len(choose_id(bad, "not a trace")) == 32
    assert current_request_id() is None


async def test_a_reply_names_the_id_that_the_log_has(gateway, requests):
    async with http_client(gateway) as http:
        for sent in ({"x-request-id": "call-7"}, {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, {}):
            response = await http.get("/v1/models/none", headers=sent)
            assert response.status_code == 404
            assert response.headers["x-request-id"] == requests()[-1]
    assert requests()[:2] == ["call-7", TRACE] and len(requests()) == 3


async def test_a_websocket_and_a_grpc_call_have_an_id(gateway, requests):
    async with running(gateway) as served:
        url = served.url.replace("http", "ws") + "/v1/realtime"
        async with connect(url, additional_headers={"x-request-id": "socket-1"}) as socket:
            assert socket.response.headers["x-request-id"] == "socket-1"
    async with riva(gateway) as riva_client:
        with pytest.raises(grpc.RpcError):
            await riva_client.recognize(b"", metadata=(("x-request-id", "call-8"),))
    assert requests() == ["call-8"]
