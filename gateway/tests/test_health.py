import httpx2
import pytest

from gateway.tests.helpers.running import running

pytestmark = pytest.mark.anyio


async def test_live_and_ready(gateway, streams):
    async with running(gateway) as served, httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        assert (await client.get("/health/live")).json() == {"status": "live"}
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["models"]) == (200, ["fake-asr"])
        streams.groups = ()
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.get("/health/live")).status_code == 200
