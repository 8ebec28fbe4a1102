import asyncio

import pytest

from penstock_gateway import limits
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.budget import Budget, KeyLimit
from penstock_gateway.security.keys import ANONYMOUS, ApiKey


async def test_a_key_has_half_and_waits_for_more():
    budget = Budget("memory", 400, 60)
    first, second, other = (budget.taken(key, 100) for key in ("a", "a", "b"))
    reduce = await first.__aenter__()
    await second.__aenter__()
    waiting = asyncio.create_task(budget.taken("a", 100).__aenter__())
    await asyncio.wait_for(other.__aenter__(), 60)
    assert not waiting.done()
    reduce(10)
    await asyncio.sleep(0.01)
    assert not waiting.done(), "110 of 200 are taken"
    await second.__aexit__(None, None, None)
    await asyncio.wait_for(waiting, 60)


async def test_a_request_that_waits_too_long_is_rejected():
    budget = Budget("decoder", 2, 0.01)
    async with budget.taken("a", 1):
        with pytest.raises(GatewayError, match="no decoder within") as caught:
            await budget.taken("a", 1).__aenter__()
        assert caught.value.code is GatewayCode.STREAMS_EXHAUSTED
        assert caught.value.retry_after_s
    async with budget.taken("a", 1), budget.taken(ANONYMOUS.name, 1):
        pass


async def test_a_key_without_any_gets_the_room_of_what_arrives_late(monkeypatch):
    monkeypatch.setattr(limits, "TICK_S", -2.0)
    budget = Budget("memory", 400, 60)

    async def hold(key, amount):
        async with budget.taken(key, amount):
            await budget.arrival(key, asyncio.Event().wait(), 60)

    async with budget.taken("c", 100):
        less, most = (asyncio.create_task(hold(key, amount)) for key, amount in (("b", 100), ("a", 200)))
        await asyncio.sleep(0.01)
        with budget.growing("b") as resize, pytest.raises(GatewayError, match="there is no memory left"):
            resize(10)
        await asyncio.sleep(0.01)
        assert not most.done(), "the key has some"
        async with budget.taken("d", 100):
            with pytest.raises(GatewayError, match="another key needs the memory"):
                await asyncio.wait_for(most, 60)
            assert not less.done(), "it has less"
        less.cancel()


@pytest.mark.parametrize(("keys", "size"), [("aa", 150), ("abc", 160)], ids=["share", "all"])
async def test_what_grows_until_all_wait_for_each_other_ends_only_one(keys, size):
    budget, ended = Budget("room", 400, 0.2), []

    async def grow(key):
        with budget.growing(key) as resize:
            for taken in range(0, size, 10):
                await budget.grow(resize, key, taken, taken + 10)
                await asyncio.sleep(0)

    for one in asyncio.as_completed([grow(key) for key in keys]):
        try:
            ended.append(await one)
        except GatewayError as error:
            ended.append(error.code)
    assert sorted(map(str, ended)) == sorted([str(GatewayCode.STREAMS_EXHAUSTED), *["None"] * (len(keys) - 1)])


def test_uploads_follow_from_the_streams_of_a_key():
    uploads, key = KeyLimit("uploads", lambda streams: 2 * streams), ApiKey("shop", 1)
    with uploads.taken(key), uploads.taken(key):
        with pytest.raises(GatewayError, match="all 2 uploads of the API key 'shop'") as caught, uploads.taken(key):
            pass
        assert caught.value.code is GatewayCode.STREAMS_EXHAUSTED
        for _ in range(100):
            uploads.taken(ANONYMOUS).__enter__()
    with uploads.taken(key):
        pass
