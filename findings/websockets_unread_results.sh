#!/usr/bin/env bash
# Expected: a client that sends audio first and reads the results afterwards keeps its connection: pings and pongs are
#   handled in the background.
# Seen: with 17 unread messages the client stops reading from the socket, so it no longer sees the pongs to its own
#   pings. It closes with 1011 "keepalive ping timeout" while server and network are fine.
# Hurts: senders of files to Realtime and other streaming recognizers, after 20 to 40 s with the default times.
# Versions: websockets 17.4 (here with pings every 0.5 s). A task that reads or max_queue=None helps.
# Source: max_queue=16 and pause_reading in websockets/asyncio/connection.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile websockets==17.4
"$work/venv/bin/python" - <<'EOF'
import asyncio
import contextlib
import logging

import websockets

logging.disable(logging.CRITICAL)
MESSAGES = 50


async def recognizer(connection: websockets.ServerConnection) -> None:
    with contextlib.suppress(websockets.ConnectionClosed):
        async for _ in connection:
            await connection.send('{"interim": "text"}')


async def send_file(port: int, **options: object) -> str:
    url = f"ws://127.0.0.1:{port}"
    try:
        async with websockets.connect(url, ping_interval=0.5, ping_timeout=1, close_timeout=1, **options) as connection:
            for _ in range(MESSAGES):
                await connection.send(bytes(3200))
                await asyncio.sleep(0.1)
            return f"{len([await connection.recv() for _ in range(MESSAGES)])} results"
    except websockets.ConnectionClosedError as error:
        return str(error)


async def main() -> list[str]:
    async with websockets.serve(recognizer, "127.0.0.1", 0, ping_interval=None) as server:
        port = server.sockets[0].getsockname()[1]
        return [await send_file(port), await send_file(port, max_queue=None)]


default, unlimited = asyncio.run(main())
print("websockets", websockets.__version__)
print("results read after the audio, default queue:", default)
print("results read after the audio, max_queue=None:", unlimited)
unchanged = "keepalive ping timeout" in default and unlimited == f"{MESSAGES} results"
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
