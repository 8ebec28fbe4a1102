import asyncio
import math
import time

import pytest

from penstock_client.transport.async_channel import AsyncSignal


def test_signal_wakes_current_waiters_only():
    async def scenario():
        signal = AsyncSignal()
        signal.give()
        waiting = [asyncio.create_task(signal.wait(math.inf)) for _ in range(2)]
        await asyncio.sleep(0)
        signal.give()
        late = asyncio.create_task(signal.wait(math.inf))
        await asyncio.wait_for(asyncio.gather(*waiting), 1)
        await asyncio.sleep(0.02)
        assert not late.done()
        late.cancel()

    asyncio.run(scenario())


def test_wait_returns_after_its_limit():
    began_s = time.monotonic()
    asyncio.run(AsyncSignal().wait(0.03))
    assert time.monotonic() - began_s >= 0.03


@pytest.mark.parametrize("limit_s", [0.01, math.inf])
def test_a_finished_wait_leaves_nothing(limit_s):
    async def scenario():
        signal = AsyncSignal()
        task = asyncio.create_task(signal.wait(limit_s))
        await asyncio.sleep(0)
        if limit_s == math.inf:
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() == (limit_s == math.inf)
        assert signal._waiting == []
        signal.give()

    asyncio.run(scenario())
