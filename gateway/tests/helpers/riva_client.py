"""A client of Riva's service that sends bytes, and the messages that it sends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import numpy as np

from gateway.tests.helpers.running import running
from penstock_gateway.gateway import Gateway
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.service import SERVICE

VERBATIM = {"verbatim_transcripts": True}


class Client:
    """Riva's methods as bytes or messages.

    `send_all` is of a client with threads: where a call ends while its messages are sent, the asyncio client may report
    an error of its own instead of the status.
    """

    def __init__(self, channel: grpc.aio.Channel, threaded_channel: grpc.Channel):
        def method(kind, name, response):
            return kind(f"/{SERVICE}/{name}", response_deserializer=response.FromString)

        self.stream = method(channel.stream_stream, "StreamingRecognize", riva.StreamingRecognizeResponse)
        self.channel, self.threaded_channel = channel, threaded_channel
        self._threaded = method(threaded_channel.stream_stream, "StreamingRecognize", riva.StreamingRecognizeResponse)
        self._recognize = method(channel.unary_unary, "Recognize", riva.RecognizeResponse)
        self._config = method(
            channel.unary_unary, "GetRivaSpeechRecognitionConfig", riva.RivaSpeechRecognitionConfigResponse
        )

    async def send_all(self, messages, metadata=()):
        return await asyncio.to_thread(lambda: list(self._threaded(iter(messages), metadata=metadata)))

    def recognize(self, audio, metadata=(), **fields):
        config = riva.RecognitionConfig(**VERBATIM, **fields)
        request = riva.RecognizeRequest(config=config, audio=audio, id={"value": "call 7"})
        return self._recognize(request.SerializeToString(), metadata=metadata)

    def config(self, model_name="", metadata=()):
        request = riva.RivaSpeechRecognitionConfigRequest(model_name=model_name)
        return self._config(request.SerializeToString(), metadata=metadata)


@asynccontextmanager
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    """A client of a gateway on real sockets."""
    async with running(gateway) as server, grpc.aio.insecure_channel(server.grpc_address) as channel:
        with grpc.insecure_channel(server.grpc_address) as threaded_channel:
            yield Client(channel, threaded_channel)


def configuration(interim: bool = False, **fields) -> bytes:
    """The first message of a stream."""
    config = {"config": {**VERBATIM, **fields}, "interim_results": interim}
    return riva.StreamingRecognizeRequest(streaming_config=config).SerializeToString()


def audio(samples, **fields) -> bytes:
    """A message with samples [n], or with bytes."""
    data = (samples * 32767).astype("<i2").tobytes() if isinstance(samples, np.ndarray) else samples
    return riva.StreamingRecognizeRequest(audio_content=data, **fields).SerializeToString()


def pieces(samples, size: int = 1600) -> list[bytes]:
    """Messages with samples [n]."""
    return [audio(samples[start : start + size]) for start in range(0, len(samples), size)]


async def finals(received) -> list[str]:
    """The final transcripts of the responses."""
    results = [result for response in await received for result in response.results]
    return [result.alternatives[0].transcript for result in results if result.is_final]
