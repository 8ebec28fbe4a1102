"""A client of each protocol, all with the same methods and outcome, so that a rule of all protocols is one test.

A driver is one call. A new protocol is one more class, and its name in `ALL`.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, ClassVar

import grpc
import httpx2
import websockets

from client.tests.helpers.sound_files import sound_file
from gateway.tests.contract.call import END_SEGMENT, RATE_HZ, WAIT_S, Call, pcm
from penstock_gateway.errors import GatewayCode
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.service import SERVICE

_ITEM = "conversation.item.input_audio_transcription"
_OF_INPUT = ("format", "noise_reduction", "transcription", "turn_detection")
"""Fields of `audio.input`; others are the session's."""


def _number(word: dict[str, Any]) -> int | None:
    """The speaker of a word, by its letter; None where it has none, or `unknown`."""
    return {letter: number for number, letter in enumerate("ABCDEFGH", start=1)}.get(word.get("speaker", ""))


class RivaStream(Call):
    """StreamingRecognize."""

    protocol, large_samples = "riva", 3 << 20
    method, kind = "StreamingRecognize", riva.StreamingRecognizeResponse
    wrong: ClassVar = ({"max_alternatives": -1}, {"encoding": 7}, {"sample_rate_hertz": 7})
    unused: ClassVar = {"enable_automatic_punctuation": True, "custom_configuration": {"neural_vad.onset": "1"}}
    unused_of_files: ClassVar = {"interim_results": True}
    speakers: ClassVar = {"diarization_config": {"enable_speaker_diarization": True}}
    figures: ClassVar = {"verbatim_transcripts": False}
    masks: ClassVar = {"profanity_filter": True}
    french: ClassVar = {"language_code": "fr"}

    async def _run(self) -> None:
        """By threads: gRPC's asyncio client may lose the status of a call that ends while a message is sent."""
        messages: SimpleQueue[bytes | None] = SimpleQueue()
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with ThreadPoolExecutor(1) as thread, grpc.insecure_channel(self.ports.grpc, options) as channel:
            method = channel.stream_stream(f"/{SERVICE}/{self.method}", response_deserializer=self.kind.FromString)
            call = method(iter(messages.get, None), metadata=[*self.headers.items()])
            sending = asyncio.create_task(self._send_all(messages))
            try:
                await asyncio.get_running_loop().run_in_executor(thread, self._read, call)
            finally:
                call.cancel()
                sending.cancel()
                messages.put(None)

    async def _send_all(self, messages: "SimpleQueue[bytes | None]") -> None:
        async for message in self._messages():
            messages.put(message)
        messages.put(None)

    def _read(self, call: Any) -> None:
        try:
            for response in call:
                for result in response.results:
                    if getattr(result, "is_final", True):
                        self._add_result(result)
            self.outcome.ignored = dict(call.initial_metadata()).get("penstock-ignored", "")
        except grpc.RpcError as error:
            retry_after = dict(error.trailing_metadata() or ()).get("retry-after")
            self.outcome.fail(error.code().name, error.details() or "", retry_after)

    def _add_result(self, result: Any) -> None:
        best = result.alternatives[0]
        self.outcome.texts.append(best.transcript.strip())
        self.outcome.alternatives = [each.transcript for each in result.alternatives]
        self.outcome.words += [(word.word, word.start_time, word.end_time) for word in best.words]
        self.outcome.speakers += [word.speaker_tag for word in best.words]
        self.outcome.channels += [result.channel_tag] * len(best.words)

    @property
    def _config(self) -> riva.RecognitionConfig:
        form = {"encoding": "LINEAR_PCM", "sample_rate_hertz": RATE_HZ, "model": self.model}
        wanted = {"verbatim_transcripts": True, "enable_word_time_offsets": True}
        return riva.RecognitionConfig(**(form | wanted | self.options))

    async def _messages(self) -> AsyncIterator[bytes]:
        interim = self.options.pop("interim_results", False)
        config = riva.StreamingRecognitionConfig(config=self._config, interim_results=interim)
        yield riva.StreamingRecognizeRequest(streaming_config=config).SerializeToString()
        async for part in self._audio():
            runtime = {"force_eou": "true"} if part is END_SEGMENT else {}
            yield riva.StreamingRecognizeRequest(audio_content=pcm(part), runtime_config=runtime).SerializeToString()


class RivaFile(RivaStream):
    """Recognize, which is a stream of one message in either direction."""

    is_live, tells_rest, large_samples = False, False, 6 << 20
    method, kind = "Recognize", riva.RecognizeResponse
    unused_of_files: ClassVar = {}

    @classmethod
    def errors(cls, code: GatewayCode) -> set[tuple[str, Any]]:
        """A message that is too large has gRPC's own error."""
        own = {("SERVER", code.status.grpc)} if code is GatewayCode.TOO_LARGE else set()
        return super().errors(code) | own

    async def _messages(self) -> AsyncIterator[bytes]:
        audio = pcm(await self._recording())
        yield riva.RecognizeRequest(config=self._config, audio=audio).SerializeToString()


class OpenAIFile(Call):
    """A transcription in one reply."""

    protocol, is_live, tells_rest, large_samples = "openai", False, False, 6 << 20
    wrong, unused = ({"include[]": "words"},), {"temperature": "0.2", "surprise": "1"}
    form: ClassVar = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    french: ClassVar = {"language": "fr"}

    @classmethod
    def errors(cls, code: GatewayCode) -> set[tuple[str, Any]]:
        return {(code.name, code.status.http)}

    async def _run(self) -> None:
        file = sound_file(await self._recording(), RATE_HZ, "WAV", "PCM_16")
        async with (
            httpx2.AsyncClient(base_url=f"http://{self.ports.http}", timeout=WAIT_S, headers=self.headers) as client,
            client.stream(
                "POST", "/v1/audio/transcriptions", data={"model": self.model} | self.form | self.options,
                files={"file": ("a.wav", file)},
            ) as response,
        ):  # fmt: skip
            self.outcome.ignored = response.headers.get("penstock-ignored", "")
            self.outcome.retry_after = response.headers.get("retry-after")
            if response.status_code != 200:
                self._fail(response.status_code, json.loads(await response.aread()))
            else:
                await self._read(response)

    async def _read(self, response: Any) -> None:
        body = json.loads(await response.aread())
        self.outcome.texts.append(body["text"])
        self.outcome.words += [
            (word["word"], round(1000 * word["start"]), round(1000 * word["end"])) for word in body["words"]
        ]
        self.outcome.speakers += [_number(word) for word in body["words"]]
        self.outcome.channels += [int(word["channel"]) for word in body["words"] if word.get("channel", "").isdecimal()]

    def _fail(self, status: Any, body: dict[str, Any]) -> None:
        text = f"{body['error']['code'].upper()}: {body['error']['message']}"
        self.outcome.fail(status, text, self.outcome.retry_after)


class OpenAIStream(OpenAIFile):
    """A transcription in events. An error that comes behind the first event has no status and no time to try again."""

    form: ClassVar = {"stream": "true"}
    speakers: ClassVar = {"response_format": "diarized_json"}
    has_words = False

    @classmethod
    def errors(cls, code: GatewayCode) -> set[tuple[str, Any]]:
        return {(code.name, code.status.http), (code.name, 200)}

    async def _read(self, response: Any) -> None:
        text = ""
        async for line in response.aiter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data:") else {}
            text += event.get("delta", "")
            if "error" in event:
                self._fail(200, event)
        self.outcome.texts.append(text)


class Realtime(Call):
    """OpenAI's Realtime transcription. Its end is a commit, whose item is the last one."""

    protocol, large_samples = "realtime", 8 << 20
    empty_end = "INPUT_AUDIO_BUFFER_COMMIT_EMPTY"
    wrong: ClassVar = (
        {"format": {"type": "audio/opus"}}, {"format": {"type": "audio/pcm", "rate": 0}},
        {"sample_rate": 8000},
    )  # fmt: skip
    unused: ClassVar = {"noise_reduction": {"type": "near_field"}, "voice": "alloy", "surprise": 1}
    speakers: ClassVar = {"transcription": {"speakers": 2}}
    figures: ClassVar = {"transcription": {"numbers": "figures"}}
    masks: ClassVar = {"transcription": {"mask_words": True}}
    french: ClassVar = {"transcription": {"language": "fr"}}
    endpoints: ClassVar = {"turn_detection": {"type": "server_vad"}}

    @classmethod
    def errors(cls, code: GatewayCode) -> set[tuple[str, Any]]:
        """Statuses of the handshake, of the close, and None: of an event behind which the socket stays open."""
        statuses = code.status.http, code.status.websocket, *[None] * (not code.is_passing)
        return {(code.name, status) for status in statuses}

    async def _run(self) -> None:
        url = f"ws://{self.ports.http}/v1/realtime?intent=transcription"
        try:
            async with websockets.connect(
                url, additional_headers=self.headers, max_size=None, max_queue=None
            ) as socket:
                sending = asyncio.create_task(self._send_all(socket))
                try:
                    await self._read(socket)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except websockets.InvalidStatus as rejected:
            reply = rejected.response
            error = json.loads(reply.body)["error"]
            text = f"{error['code'].upper()}: {error['message']}"
            self.outcome.fail(reply.status_code, text, reply.headers.get("retry-after"))

    async def _send_all(self, socket: Any) -> None:
        options = dict(self.options)
        settings: dict[str, Any] = {"format": {"type": "audio/pcm", "rate": RATE_HZ}, "turn_detection": None}
        if self.model:
            settings["transcription"] = {"model": self.model}
        session = {"include": ["item.input_audio_transcription.words"]}
        for name in [name for name in options if name not in _OF_INPUT]:
            session[name] = options.pop(name)
        session |= {"type": "transcription", "audio": {"input": settings | options}}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        async for part in self._audio():
            if part is END_SEGMENT:
                await self._commit(socket)
                continue
            audio = base64.b64encode(pcm(part)).decode()
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        self._is_committed = True
        await self._commit(socket)

    async def _commit(self, socket: Any) -> None:
        self._unanswered += 1
        await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))

    _is_committed, _unanswered = False, 0
    """All audio was; commits without an answer."""

    async def _read(self, socket: Any) -> None:
        try:
            async for message in socket:
                event = json.loads(message)
                self.outcome.ignored += ",".join(event.get("penstock_ignored", []))
                if event["type"] == f"{_ITEM}.completed":
                    self.outcome.texts.append(event["transcript"])
                    self.outcome.words += [
                        (word["word"], round(1000 * word["start"]), round(1000 * word["end"]))
                        for word in event.get("words", [])
                    ]
                    self.outcome.speakers += [_number(word) for word in event.get("words", [])]
                    self._unanswered = max(0, self._unanswered - 1)
                elif event["type"] == "error":
                    error = event["error"]
                    self.outcome.fail(None, f"{error['code'].upper()}: {error['message']}")
                    self._unanswered -= self.outcome.code == self.empty_end
                    stays_open = error["type"] == "invalid_request_error" and error["code"] != "too_large"
                    if stays_open and self.outcome.code != self.empty_end:
                        return
                if self._is_committed and self._unanswered <= 0:
                    return
            self.outcome.status = socket.close_code
        except websockets.ConnectionClosed as closed:
            self.outcome.status = closed.rcvd.code if closed.rcvd else None
            if self.outcome.status == 1013:
                assert self.outcome.code in ("", self.empty_end), "an error event before the close"
                self.outcome.fail(closed.rcvd.code, closed.rcvd.reason)


ALL = [RivaStream, RivaFile, OpenAIFile, OpenAIStream, Realtime]
