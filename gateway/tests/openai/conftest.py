import pytest

from gateway.tests.helpers.running import http_client


@pytest.fixture
async def client(gateway):
    async with http_client(gateway) as client:
        yield client
