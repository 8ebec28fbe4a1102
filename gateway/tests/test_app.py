"""Routes beside the protocols: health, and the OpenAPI document with `/docs`, public and without other hosts."""

import re

import httpx2
import pytest

from gateway.tests.helpers.running import running
from penstock_gateway.openai.request import TranscriptionForm
from penstock_gateway.security.keys import ApiKey, KeyRing

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(make_gateway):
    """The gateway has a key, which the document does not need."""
    ring = KeyRing([(ApiKey("team", 4), bytes(32))])
    async with running(make_gateway(ring)) as served, httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        yield client


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
        async with (
            running(make_gateway(captions=captions)) as served,
            httpx2.AsyncClient(base_url=served.url) as client,
        ):
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


async def test_live_and_ready(gateway, streams):
    async with running(gateway) as served, httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        assert (await client.get("/health/live")).json() == {"status": "live"}
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["models"]) == (200, ["fake-asr"])
        streams.groups = ()
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.head("/health/live")).status_code == 200
