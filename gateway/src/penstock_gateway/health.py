"""`/health/live` and `/health/ready` of the HTTP port."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from penstock_gateway.gateway import Gateway


def health_routes(gateway: Gateway) -> Sequence[BaseRoute]:
    """Live: the process answers. Ready: a replica answers, so that a stream can start."""

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(request: Request) -> Response:
        models = [group.name for group in gateway.streams.groups]
        return JSONResponse({"status": "ready" if models else "no replica", "models": models}, 200 if models else 503)

    return [Route("/health/live", live), Route("/health/ready", ready)]
