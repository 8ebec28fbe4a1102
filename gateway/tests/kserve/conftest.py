from gateway.tests.contract.conftest import serve  # noqa: F401
from gateway.tests.stream.conftest import fleet, metrics, open_streams, server, servers, until  # noqa: F401
from penstock_gateway.security.keys import ApiKey

MAX_STREAMS = 4
KEYS = [ApiKey(name, MAX_STREAMS) for name in ("one", "two")]


def headers(key: str = "one") -> dict[str, str]:
    return {"authorization": f"Bearer sk-{key}"}
