import httpx2
import pytest

from gateway.tests.helpers.running import running


@pytest.fixture
async def client(gateway):
    async with running(gateway) as served, httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        yield client
