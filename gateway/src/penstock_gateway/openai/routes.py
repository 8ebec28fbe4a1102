"""The routes of OpenAI's HTTP API."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock_gateway.errors import GatewayError
from penstock_gateway.gateway import Gateway
from penstock_gateway.http_errors import error_response
from penstock_gateway.openai.job import PROTOCOL
from penstock_gateway.openai.models import Models
from penstock_gateway.openai.transcriptions import Transcriptions

Endpoint = Callable[[Request], Awaitable[Response]]


def openai_routes(gateway: Gateway) -> Sequence[BaseRoute]:
    """`/v1/audio/transcriptions` and `/v1/models`."""
    models, transcriptions = Models(gateway), Transcriptions(gateway)

    def rejecting(endpoint: Endpoint) -> Endpoint:
        async def respond(request: Request) -> Response:
            try:
                return await endpoint(request)
            except GatewayError as error:
                gateway.note_rejection(PROTOCOL, error)
                return error_response(error)

        return respond

    create = rejecting(transcriptions.create)
    return [
        Route("/v1/audio/transcriptions", create, methods=["POST"]),
        Route("/v1/models", rejecting(models.list)),
        Route("/v1/models/{model:path}", rejecting(models.retrieve)),
    ]
