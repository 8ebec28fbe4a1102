"""Streams recordings to a server in real time, many at once, from one process, and times every answer.

Each stream plays its recordings one after another, each as an utterance with a call of its own, and sends a piece at
the moment at which its last sample would have been spoken. These deadlines are absolute: a late piece does not delay
the next one. How late this process itself was is part of the result.
"""

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import numpy as np
from tritonclient.grpc import InferResult, service_pb2_grpc

from penstock_client.grpc_wire import model_request
from penstock_client.protocol import MODEL_NAME, Piece

SAMPLE_RATE_HZ = 16000
_CHANNEL_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
_LONGEST_WAIT_S = 15.0  # for answers, once the last piece is sent


@dataclass
class SentPiece:
    """Times on the event loop's clock."""

    deadline_s: float
    sent_s: float
    is_last: bool
    answered_s: float = float("inf")
    completes_chunk: bool = False
    """True where the answer takes in more audio than the one before it."""


@dataclass
class LoadResult:
    """What happened in the time of measurement."""

    pieces: list[SentPiece] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    texts: dict[int, set[str]] = field(default_factory=dict)
    """All final texts of each recording."""
    probes: list = field(default_factory=list)
    """What the probe returned before and after."""


class LoadGenerator:
    """`recordings`: samples, float32 at 16 kHz."""

    def __init__(self, url: str, recordings: list[np.ndarray], piece_ms: float):
        self._url = url
        self._pieces = [_cut(samples, round(piece_ms * SAMPLE_RATE_HZ / 1000)) for samples in recordings]
        self._result = LoadResult()
        self._runs = 0

    def run(self, streams: int, ramp_s: float, measured_s: float, probe: Callable[[], object]) -> LoadResult:
        """Starts `streams` streams at random moments of the first `ramp_s` seconds, then measures."""
        self._result = LoadResult()
        self._runs += 1  # part of each stream's id: the server may still hold streams of an earlier run
        asyncio.run(self._run(streams, ramp_s, measured_s, probe))
        return self._result

    async def _run(self, streams: int, ramp_s: float, measured_s: float, probe: Callable[[], object]) -> None:
        clock = asyncio.get_running_loop().time
        self._begin_s = clock() + 0.2 + ramp_s
        self._end_s = self._begin_s + measured_s
        generator = random.Random(streams)
        starts = sorted(self._begin_s - ramp_s * generator.random() for _ in range(streams))
        tasks = [asyncio.create_task(self._stream(number, start_s)) for number, start_s in enumerate(starts)]
        for moment_s in (self._begin_s, self._end_s):
            await _sleep_until(moment_s)
            self._result.probes.append(await asyncio.to_thread(probe))
        _, unfinished = await asyncio.wait(tasks, timeout=_LONGEST_WAIT_S)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    async def _stream(self, number: int, start_s: float) -> None:
        async with grpc.aio.insecure_channel(self._url, options=_CHANNEL_OPTIONS) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            calls = []
            for turn in itertools.count():
                recording = (number + turn) % len(self._pieces)
                calls.append(
                    asyncio.create_task(self._utterance(stub, f"{self._runs}-{number}-{turn}", recording, start_s))
                )
                start_s += sum(piece.samples for piece in self._pieces[recording]) / SAMPLE_RATE_HZ
                if start_s >= self._end_s:
                    break
                await _sleep_until(start_s)  # whether or not the last one's answers are there
            await asyncio.gather(*calls)

    async def _utterance(self, stub, stream_id: str, recording: int, start_s: float) -> None:
        call = stub.ModelStreamInfer()
        sent: list[SentPiece] = []
        reader = asyncio.create_task(self._read(call, recording, sent))
        try:
            await self._send(call, stream_id, recording, start_s, sent)
            await reader
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            self._result.errors.append(f"{stream_id}: {error}")
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _send(self, call, stream_id: str, recording: int, start_s: float, sent: list[SentPiece]) -> None:
        samples = 0
        for piece in self._pieces[recording]:
            samples += piece.samples
            deadline_s = start_s + samples / SAMPLE_RATE_HZ
            await _sleep_until(deadline_s)
            sent.append(SentPiece(deadline_s, asyncio.get_running_loop().time(), piece.is_last))
            if self._begin_s <= deadline_s < self._end_s:
                self._result.pieces.append(sent[-1])
            await call.write(model_request(MODEL_NAME, stream_id, piece))
        await call.done_writing()

    async def _read(self, call, recording: int, sent: list[SentPiece]) -> None:
        covered_s, answers = 0.0, iter(sent)  # one answer to each piece, in their order
        while (reply := await call.read()) is not grpc.aio.EOF:
            piece = next(answers)
            if reply.error_message:
                self._result.errors.append(reply.error_message)
                return
            piece.answered_s = asyncio.get_running_loop().time()
            result = InferResult(reply.infer_response)
            before_s, covered_s = covered_s, float(result.as_numpy("AUDIO_PROCESSED")[0, 0])
            piece.completes_chunk = covered_s > before_s
            if piece.is_last:
                self._result.texts.setdefault(recording, set()).add(result.as_numpy("TEXT")[0, 0].decode())


def _cut(samples: np.ndarray, piece_samples: int) -> list[Piece]:
    begins = range(0, len(samples), piece_samples)
    parts = [samples[begin : begin + piece_samples].astype("<f4").tobytes() for begin in begins]
    return [Piece(part, is_first=i == 0, is_last=i == len(parts) - 1) for i, part in enumerate(parts)]


async def _sleep_until(moment_s: float) -> None:
    await asyncio.sleep(max(0.0, moment_s - asyncio.get_running_loop().time()))
