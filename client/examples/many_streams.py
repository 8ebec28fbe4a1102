"""Transcribes many recordings at once with asyncio, a bounded number at a time; one that fails stops no other.

python many_streams.py localhost:8001 *.wav
"""

import asyncio
import sys

from penstock_client import AsyncClient, ClientError, ServerFullError

STREAMS_AT_ONCE = 16


async def main(url: str, *paths: str) -> None:
    """Prints the texts in the order of the files."""
    async with AsyncClient(url) as client:
        places = asyncio.Semaphore(STREAMS_AT_ONCE)
        texts = await asyncio.gather(*(transcribe(client, places, path) for path in paths))
    for path, text in zip(paths, texts, strict=True):
        print(f"{path}: {text}")


async def transcribe(client: AsyncClient, places: asyncio.Semaphore, path: str) -> str:
    """The file's text, or what went wrong. Waits while the server is full."""
    async with places:
        while True:
            try:
                return (await client.transcribe(path)).text
            except ServerFullError:
                await asyncio.sleep(0.1)
            except ClientError as error:
                return f"failed: {error}"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
