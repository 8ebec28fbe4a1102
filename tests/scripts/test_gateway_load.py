"""`scripts/gateway_load.py` with few streams: both protocols, before the stand-in for a server."""

import asyncio

import pytest

from loadtest.fresh_gateway import fresh_gateway
from scripts.gateway_load import PROTOCOLS, measure, stand_in

pytestmark = pytest.mark.nightly


def test_both_protocols_are_measured():
    with stand_in() as server, fresh_gateway(server, "--endpoint-silence-ms", "0", "--timeout-s", "60") as gateway:
        for name in PROTOCOLS:
            line = asyncio.run(measure(name, gateway, 3, 1.0))
            assert line.startswith(f"{name}: ")
            assert "us of CPU time per 100 ms of audio; final text after" in line and "nan" not in line
