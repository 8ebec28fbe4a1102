"""The credential that each route and gRPC method needs; health, and the OpenAPI document, without other hosts."""

import hashlib
import re

import grpc
import httpx2
import pytest
import websockets
from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from gateway.tests.helpers.running import http_client, running
from penstock_gateway.app import build_app, build_grpc_server
from penstock_gateway.errors import KSERVE_NOT_SERVED
from penstock_gateway.openai.request import TranscriptionForm
from penstock_gateway.security.keys import ApiKey, KeyRing

RIVA, HEALTH = "/nvidia.riva.asr.RivaSpeechRecognition", "/grpc.health.v1.Health"
OPEN = set(
    f"""GET/ GET/docs GET/docs/oauth2-redirect GET/openapi.json GET/static-offline-docs/swagger-ui.css GET/health
    GET/health/live GET/health/ready {HEALTH}/Check GET/captions GET/captions/captions.css
    GET/captions/captions.js GET/captions/realtime.js GET/captions/worklet.js GET/captions/icon.svg""".split()
)
TRANSCRIBING = set(
    f"""POST/v1/audio/transcriptions GET/v1/realtime WEBSOCKET/v1/realtime GET/v1/models GET/v1/models/fake-asr
    {RIVA}/Recognize {RIVA}/StreamingRecognize {RIVA}/GetRivaSpeechRecognitionConfig""".split()
)
"""Routes that a client secret may use, too."""
ONLY_KEYS = {"POST/v1/realtime/client_secrets", "POST/v1/realtime/transcription_sessions"}
ALLOWED, REJECTED = (200, 101, 400, "OK", "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED")


@pytest.fixture
async def client(make_gateway):
    """The gateway has a key, which the document does not need."""
    ring = KeyRing([(ApiKey("team", 4), bytes(32))])
    async with http_client(make_gateway(ring)) as client:
        yield client


def every_call(gateway, monkeypatch):
    """Names of all routes, METHOD/path with a value for a parameter and GET for HEAD, and of all gRPC methods."""
    calls = set()
    for route in iter_route_contexts(build_app(gateway).routes):
        path = route.path.replace("{model:path}", "fake-asr")
        path += "/swagger-ui.css" * isinstance(route.original_route, Mount)
        methods = {"GET"} if isinstance(route.original_route, Mount) else route.methods or {"WEBSOCKET"}
        calls |= {method.replace("HEAD", "GET") + path for method in methods}
    handler = grpc.method_handlers_generic_handler

    def note(service, handlers):
        calls.update(f"/{service}/{method}" for method in handlers)
        return handler(service, handlers)

    monkeypatch.setattr(grpc, "method_handlers_generic_handler", note)
    build_grpc_server(gateway)
    return calls


async def status_of(call, served, http, channel, headers):
    """The status of a call without a body or message."""
    if call.startswith("/"):
        metadata = [(name.lower(), value) for name, value in headers.items()]
        calling = channel.stream_stream(call)(iter(()), metadata=metadata)
        try:
            return "OK" if await calling.read() is not grpc.aio.EOF else (await calling.code()).name
        except grpc.aio.AioRpcError as error:
            return error.code().name
        finally:
            calling.cancel()
    method, slash, path = call.partition("/")
    if method != "WEBSOCKET":
        return (await http.request(method, slash + path, headers=headers)).status_code
    try:
        async with websockets.connect(served.ws_url + slash + path, additional_headers=headers):
            return 101
    except websockets.InvalidStatus as rejected:
        return rejected.response.status_code


async def test_what_a_client_secret_may_do_is_decided_for_every_route_and_method(make_gateway, monkeypatch):
    key = ApiKey("team", 4)
    gateway = make_gateway(KeyRing([(key, hashlib.sha256(b"right").digest())]), captions=True)
    calls = every_call(gateway, monkeypatch)
    assert calls == OPEN | TRANSCRIBING | ONLY_KEYS
    secret, _ = gateway.access.secrets.create(key)
    async with (
        running(gateway) as served,
        httpx2.AsyncClient(base_url=served.url, timeout=60) as http,
        grpc.aio.insecure_channel(served.grpc_address) as channel,
    ):
        for call in calls:
            for token, allowed in ((None, OPEN), (secret, OPEN | TRANSCRIBING), ("right", {call})):
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                status = await status_of(call, served, http, channel, headers)
                assert status in (ALLOWED if call in allowed else REJECTED), (call, token)


async def test_the_document_has_all_routes_and_the_fields_of_their_bodies(client):
    document = (await client.get("/openapi.json")).json()
    assert set(document["paths"]) == {
        "/health/live", "/health/ready", "/v1/audio/transcriptions", "/v1/models", "/v1/models/{model}",
        "/v1/realtime", "/v1/realtime/client_secrets", "/v1/realtime/transcription_sessions",
    }  # fmt: skip
    create = document["paths"]["/v1/audio/transcriptions"]["post"]
    form = create["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert set(form) == {each.alias or name for name, each in TranscriptionForm.model_fields.items()}
    assert create["security"] == [{"HTTPBearer": []}]
    assert create["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorReply")
    used = re.findall(r"'\$ref': '#/components/schemas/(\w+)'", str(document))
    assert set(used) == set(document["components"]["schemas"])


async def test_the_page_loads_nothing_from_other_hosts(client):
    page = await client.get("/docs")
    assert page.status_code == 200
    resources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(resources) >= 2
    for resource in resources:
        assert resource.startswith("/")
        assert (await client.get(resource)).status_code == 200


async def test_a_wrong_parameter_has_the_form_of_other_errors(client):
    response = await client.get("/v1/realtime", params={"intent": "conversation"})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "field_invalid", "intent")
    assert error["message"] == "intent is 'conversation'; accepted: 'transcription'"


async def test_the_start_page_links_what_answers(make_gateway):
    for captions in (False, True):
        async with http_client(make_gateway(captions=captions)) as client:
            page = await client.get("/", timeout=60)
            links = re.findall(r'href="([^"]+)"', page.text)
            assert page.status_code == 200 and ("/captions" in links) == captions
            for link in links:
                assert (await client.get(link, timeout=60)).status_code == 200


async def test_a_path_without_a_route_says_where_the_routes_are(client):
    response = await client.post("/v1/audio/translations")
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "http_404")
    assert error["message"] == "nothing is at '/v1/audio/translations'; accepted: the routes that /docs lists"
    response = await client.post("/v2/models/asr/infer", json={})
    assert (response.status_code, response.json()["error"]["message"]) == (404, KSERVE_NOT_SERVED)


async def test_live_and_ready(gateway, streams):
    async with http_client(gateway) as client:
        assert (await client.get("/health/live")).json() == {"status": "live"}
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["models"]) == (200, ["fake-asr"])
        streams.groups = ()
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.head("/health/live")).status_code == 200
