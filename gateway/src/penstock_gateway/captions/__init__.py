"""The live captions page `/captions` (`--captions`): static files that speak the Realtime protocol only."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_FOLDER = Path(__file__).parent
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FILES = ("index.html", "captions.css", "captions.js", "realtime.js", "worklet.js", "icon.svg")
_HEADERS = {
    # WebSockets are named by scheme: not every browser counts them as 'self'.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def routes() -> Sequence[BaseRoute]:
    """The page and its files."""
    return [Route("/captions" if name == "index.html" else f"/captions/{name}", _serve(name)) for name in _FILES]


def _serve(name: str) -> Callable[[Request], Awaitable[Response]]:
    content = (_FOLDER / name).read_bytes()
    media_type = _TYPES[Path(name).suffix]

    async def serve(request: Request) -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    return serve
