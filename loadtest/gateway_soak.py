"""The load of a soak through a gateway: live streams of Riva and Realtime, and uploads, a third of the users each.

Every user plays recordings again and again; the words of each must be those of a direct client.
"""

import asyncio
import io
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import psutil
import soundfile

from loadtest.fresh_gateway import RunningGateway
from loadtest.gateway_clients import (
    CONNECTION_ERRORS,
    Speech,
    Text,
    Texts,
    Word,
    direct_texts,
    realtime_texts,
    riva_texts,
    upload_texts,
    words_of,
)
from loadtest.gateway_recordings import RATE_HZ, joined_recordings
from loadtest.processes import Usage, read_processes, server_processes
from loadtest.report import report_document
from penstock_client import AsyncClient

PROTOCOLS = ("riva", "realtime", "uploads")
SILENCE_MS = 800
GATEWAY, DECODER = "gateway", "gateway's decoder"
SPARE_DESCRIPTORS = 8
_RECORDINGS = 6
_MIN_RECORDING_S = 20.0


class GatewaySoak:
    """Plays the load, and reads the memory and the descriptors of server and gateway."""

    def __init__(self, gateway: RunningGateway, server_url: str, server_id: int, chunk_s: float):
        self._gateway, self._server_url, self._server_id, self._chunk_s = gateway, server_url, server_id, chunk_s
        self.descriptors: list[int] = []
        """Of the gateway's processes, at each reading."""
        self._played: Counter[str] = Counter()
        self._errors: list[str] = []
        self._wrong: list[tuple[int, str]] = []
        """Recordings with other words than direct, and what was heard."""
        self._latencies_s: list[float] = []
        self._recordings = [joined_recordings(number, _MIN_RECORDING_S) for number in range(_RECORDINGS)]
        self._expected: list[tuple[Word, ...]] = []

    def read_usage(self) -> Usage:
        """Memory of the processes of the server and of the gateway, now."""
        groups = server_processes(self._server_id) | _gateway_processes(self._gateway.process_id)
        ids = [process_id for name in (GATEWAY, DECODER) for process_id in groups.get(name, ())]
        self.descriptors.append(sum(map(_count_descriptors, ids)))
        return Usage(time.monotonic(), 0.0, pss_mib={name: read_processes(ids)[1] for name, ids in groups.items()})

    def report(self, options: dict, setup: dict, seconds: float) -> dict:
        """Plays for `seconds`, or until an interrupt, and returns the report with its only window."""
        begin_s = time.monotonic()
        with suppress(KeyboardInterrupt):
            asyncio.run(self._play(options["streams"], seconds))
        return report_document(options, setup, [self._window(time.monotonic() - begin_s)])

    async def _play(self, users: int, seconds: float) -> None:
        async with AsyncClient(self._server_url, timeout_s=60) as client:
            self._expected = [
                await words_of(direct_texts(client, Speech(samples, is_paced=False), SILENCE_MS))
                for samples in self._recordings
            ]
        playing = [asyncio.create_task(self._run_user(number)) for number in range(users)]
        await asyncio.sleep(seconds)
        for task in playing:
            task.cancel()
        for failure in await asyncio.gather(*playing, return_exceptions=True):
            if not isinstance(failure, asyncio.CancelledError):
                raise AssertionError("a user of the soak ended") from failure

    async def _run_user(self, number: int) -> None:
        protocol, turn = PROTOCOLS[number % len(PROTOCOLS)], number
        await asyncio.sleep(number * self._chunk_s / 2)  # not all at once
        while True:
            turn += 1
            recording = turn % len(self._recordings)
            samples = self._recordings[recording]
            begin_s, speech = time.monotonic(), Speech(samples)
            try:
                words = await self._words(self._open(protocol, speech, turn), speech)
            except CONNECTION_ERRORS as error:
                self._errors.append(f"{protocol}: {type(error).__name__}: {error}"[:300])
                await asyncio.sleep(1.0)
            else:
                self._played[protocol] += 1
                if words != self._expected[recording]:
                    found = f"{protocol}, recording {recording}: {words}, not {self._expected[recording]}"
                    self._wrong.append((recording, found))
            if protocol == "uploads":  # as much audio in a time as the others
                await asyncio.sleep(begin_s + len(samples) / RATE_HZ - time.monotonic())

    def _open(self, protocol: str, speech: Speech, turn: int) -> Texts:
        if protocol == "riva":
            return riva_texts(self._gateway, speech)
        if protocol == "realtime":
            return realtime_texts(self._gateway, speech, has_endpoints=True)
        return upload_texts(self._gateway, _file(self._recordings[turn % _RECORDINGS], ("FLAC", "WAV")[turn // 6 % 2]))

    async def _words(self, texts: Texts, speech: Speech) -> tuple[Word, ...]:
        words: list[Word] = []
        async for text in texts:
            self._note_latency(text, speech)
            words += text.words if text.is_final else ()
        return tuple(words)

    def _note_latency(self, text: Text, speech: Speech) -> None:
        if not text.is_final and text.processed_s is not None:
            self._latencies_s.append(time.monotonic() - speech.due_s(text.processed_s))

    def _window(self, seconds: float) -> dict:
        """The fields that the result of a soak reads, and the counts of this load."""
        late = sum(latency_s > self._chunk_s for latency_s in self._latencies_s)
        reasons = [f"{len(self._errors)} streams failed, the first: {self._errors[0]}"] if self._errors else []
        if self._wrong:
            reasons.append(
                f"{len(self._wrong)} recordings have other words than direct, the first: {self._wrong[0][1]}"
            )
        reasons += descriptor_reasons(self.descriptors)
        if missing := [name for name in PROTOCOLS if not self._played[name]]:
            reasons.append(f"no recording was played over {', '.join(missing)}")
        return {
            "seconds": seconds,
            "utterances": sum(self._played.values()) + len(self._errors),
            "recordings_with_equal_words": sum(self._played.values()) - len(self._wrong),
            "played": dict(self._played),
            "words": {
                "recordings": len(self._recordings),
                "recordings_with_several_texts": len({recording for recording, _ in self._wrong}),
            },
            "errors": {"count": len(self._errors)},
            "rejections": {"count": 0},
            "chunks": len(self._latencies_s),
            "late_chunks": late,
            "reasons": reasons,
        }


def descriptor_reasons(descriptors: Sequence[int]) -> list[str]:
    """Why descriptors of the gateway are not flat: the last third of the readings against the first one."""
    third = len(descriptors) // 3
    if not third:
        return ["too few readings of the gateway's descriptors"]
    before, after = max(descriptors[:third]), max(descriptors[-third:])
    return [f"the gateway has {after} descriptors, {before} before"] if after > before + SPARE_DESCRIPTORS else []


def _file(samples: np.ndarray, form: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, format=form, subtype="PCM_16")
    return file.getvalue()


def _gateway_processes(process_id: int) -> dict[str, list[int]]:
    """The gateway, and the process that forks for each upload; its forks end soon."""
    try:
        decoders = psutil.Process(process_id).children()
    except psutil.NoSuchProcess:
        return {}
    return {GATEWAY: [process_id], DECODER: [process.pid for process in decoders]}


def _count_descriptors(process_id: int) -> int:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return psutil.Process(process_id).num_fds()
    return 0
