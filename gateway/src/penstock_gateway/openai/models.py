"""`/v1/models`: the replica groups."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock_gateway.gateway import Gateway
from penstock_gateway.stream.live_stream import ModelGroup


class Models:
    """The endpoints."""

    def __init__(self, gateway: Gateway):
        self._gateway = gateway

    async def list(self, request: Request) -> Response:
        """All groups with a replica that answers."""
        self._gateway.access.authenticate_header(request.headers.get("authorization"))
        return JSONResponse({"object": "list", "data": [_model(group) for group in self._gateway.streams.groups]})

    async def retrieve(self, request: Request) -> Response:
        """One group; by a name of OpenAI's, too."""
        self._gateway.access.authenticate_header(request.headers.get("authorization"))
        return JSONResponse(_model(self._gateway.streams.group(request.path_params["model"])))


def _model(group: ModelGroup) -> dict[str, Any]:
    return {"id": group.name, "object": "model", "created": 0, "owned_by": "penstock"}
