"""The streams of a call whose channels are recognized each by itself: opened, limited and lost as one."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from heapq import merge

from penstock_common.audio.pcm import Remark
from penstock_common.audio.tracks import Samples
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.security.keys import ApiKey
from penstock_gateway.stream.events import Final
from penstock_gateway.stream.options import LiveStreamOptions
from penstock_gateway.stream.replica_stream import ReplicaStream
from penstock_gateway.stream.replica_streams import ReplicaStreams


class CallStreams:
    """One stream of the mix, or one of each channel, with the methods of `ReplicaStream`; all end with the first error.

    Samples are [n] of a mix, else [channels, n].
    """

    def __init__(self, streams: Sequence[ReplicaStream]):
        self.streams = streams

    @classmethod
    async def open(
        cls, streams: ReplicaStreams, options: LiveStreamOptions, key: ApiKey, protocol: str, channels: int = 0
    ) -> "CallStreams":
        """Opens all or none; channels: 0 for a mix. GatewayError as of `ReplicaStreams.open`."""
        opened: list[ReplicaStream] = []
        if channels > 1:
            streams.check_room(key, channels)
        try:
            for channel in range(1, channels + 1) or (0,):
                opened.append(await streams.open(replace(options, channel=channel), key, protocol))
        except BaseException:
            await cls(opened).cancel()
            raise
        return cls(opened)

    async def push(self, samples: Samples) -> None:
        """Waits for the slowest channel. GatewayError AUDIO_INVALID for another number of channels."""
        if samples.ndim == len(self.streams) == 1:
            return await self.streams[0].push(samples)  # without a task for each message
        rows = samples if samples.ndim > 1 else [samples] * len(self.streams)
        if len(rows) != len(self.streams):
            message = f"the audio has {len(rows)} channels; accepted: {len(self.streams)}, as the request declares"
            raise GatewayError(GatewayCode.AUDIO_INVALID, message)
        await asyncio.gather(*(stream.push(row) for stream, row in zip(self.streams, rows, strict=True)))

    async def end_segment(self) -> None:
        """Ends the segments."""
        await asyncio.gather(*(stream.end_segment() for stream in self.streams))

    async def finish(self) -> None:
        """No more audio follows."""
        await asyncio.gather(*(stream.finish() for stream in self.streams))

    async def cancel(self) -> None:
        """Frees the streams, also where the caller is cancelled meanwhile."""
        for stream in self.streams:
            await stream.cancel()

    def waiting(self) -> ExitStack:
        """Counts no silence of the client until it is closed."""
        stack = ExitStack()
        for stream in self.streams:
            stack.enter_context(stream.activity)
        return stack

    def start_at(self, start_s: float) -> None:
        """The time of the first sample in its recording."""
        for stream in self.streams:
            stream.start_s = start_s

    def note(self, remarks: Iterable[Remark]) -> Sequence[Remark]:
        """Takes all remarks on the audio so far; returns them and those on the text."""
        self.streams[0].note(remarks)
        return list(dict.fromkeys(remark for stream in self.streams for remark in stream.remarks))

    async def finals(self) -> list[Final]:
        """All segments, in the order of the starts of their words; those without words in that of their ends."""

        async def of(stream: ReplicaStream) -> list[Final]:
            return [event async for event in stream.events() if isinstance(event, Final)]

        finals = await asyncio.gather(*map(of, self.streams))
        return list(merge(*finals, key=lambda each: each.words[0].start_ms / 1000 if each.words else each.end_s))
