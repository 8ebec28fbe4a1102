"""`AsyncClient` with the blocking methods of `Client`, so that one set of tests covers both."""

import asyncio
import threading

from penstock_client import AsyncClient


class BlockingClient:
    """Runs an `AsyncClient` in an event loop of its own."""

    def __init__(self, *arguments, **options):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event loop of a test", daemon=True)
        self._thread.start()
        try:
            self._client = AsyncClient(*arguments, **options)
        except ValueError:
            self._end()
            raise
        self._is_closed = False

    def open_stream(self, *arguments, **options):
        return BlockingStream(self, self.call(self._client.open_stream, *arguments, **options))

    def transcribe(self, *arguments, **options):
        return self.wait(self._client.transcribe(*arguments, **options))

    def server_info(self):
        return self.wait(self._client.server_info())

    def close(self):
        if not self._is_closed:
            self._is_closed = True
            self.wait(self._client.close())
            left = self.call(lambda: [task for task in asyncio.all_tasks(self._loop) if "penstock " in task.get_name()])
            self._end()
            assert not left

    def call(self, function, *arguments, **options):
        async def called():
            return function(*arguments, **options)

        return self.wait(called())

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _end(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


class BlockingStream:
    def __init__(self, client, stream):
        self._client = client
        self._stream = stream
        self.stream_id = stream.stream_id
        self.transcript = stream.transcript

    def send(self, samples):
        self._client.wait(self._stream.send(samples))

    def finalize(self, samples=()):
        self._client.wait(self._stream.finalize(samples))

    def finish(self, samples=()):
        self._client.wait(self._stream.finish(samples))

    def poll(self, wait_s=0.0):
        return self._client.wait(self._stream.poll(wait_s))

    def cancel(self):
        self._client.call(self._stream.cancel)

    def close(self):
        self._client.wait(self._stream.close())

    def __iter__(self):
        results = aiter(self._stream)
        while (result := self._client.wait(next_or_none(results))) is not None:
            yield result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


async def next_or_none(results):
    return await anext(results, None)
