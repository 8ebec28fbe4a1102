"""Transcribes many recordings with asyncio, a bounded number at a time. A failed one does not stop the others.

python many_streams.py localhost:8001 *.wav
"""

import asyncio
import sys

from penstock_client import AsyncClient, ClientError, ServerFullError

MAX_STREAMS = 16


async def main(url: str, *paths: str) -> None:
    """Prints the texts in the order of the files."""
    async with AsyncClient(url) as client:
        slots = asyncio.Semaphore(MAX_STREAMS)
        texts = await asyncio.gather(*(transcribe(client, slots, path) for path in paths))
    for path, text in zip(paths, texts, strict=True):
        print(f"{path}: {text}")


async def transcribe(client: AsyncClient, slots: asyncio.Semaphore, path: str) -> str:
    """The text of the file, or its error. Waits while the server is full."""
    async with slots:
        while True:
            try:
                return (await client.transcribe(path)).text
            except ServerFullError:
                await asyncio.sleep(0.1)
            except ClientError as error:
                return f"failed: {error}"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
