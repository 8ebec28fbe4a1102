"""Random client events in all dialects: no exception, each item in order, deltas that add up to the transcripts."""

import base64
import copy
import json
import random
from collections import Counter

from gateway.tests.helpers.fake_streams import FakeStreams
from penstock_common.results import Word
from penstock_gateway.config import Config
from penstock_gateway.realtime.dialect import AppendAudio, Configure, EndSegment, Finish
from penstock_gateway.realtime.protocol import RealtimeProtocol, encode
from penstock_gateway.stream.events import Final, Partial

ITEM = "conversation.item.input_audio_transcription"
AUDIO = base64.b64encode(bytes(480)).decode()
APPEND = {"type": "input_audio_buffer.append", "audio": AUDIO, "event_id": "a"}
COMMIT = {"type": "input_audio_buffer.commit"}
SESSION = {
    "type": "transcription",
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "transcription": {"model": "whisper-1", "language": "en", "keywords": ["rubout"], "delay": "low"},
            "turn_detection": {"type": "server_vad", "silence_duration_ms": 500},
        }
    },
    "include": [f"item.input_audio_transcription.{name}" for name in ("logprobs", "interim", "words")],
}
UPDATE = {"type": "session.update", "session": SESSION}
CLEAR = {"type": "input_audio_buffer.clear"}
RIVA = {
    "type": "transcription_session.update",
    "session": {
        "input_audio_format": "none",
        "input_audio_transcription": {"language": "en-US", "model": "fake-asr"},
        "input_audio_params": {"sample_rate_hz": 8000, "num_channels": 1},
        "recognition_config": {"max_alternatives": 2, "custom_configuration": "lm_weight:0.3"},
        "word_boosting": {"enable_word_boosting": True, "word_boosting_list": [{"phrases": ["a"], "boost": 20}]},
        "endpointing_config": {"stop_history": 600},
    },
}
OTHERS = {
    "openai": [UPDATE, CLEAR],
    "riva": [RIVA, APPEND | {"runtime_config": {"force_eou": "true"}}, {"type": "input_audio_buffer.done"}],
}
JUNK = [
    None, True, -1, 1e308, 2**70, "", "x", "é\0", "\ud800", [], {}, [[]], json.loads("[" * 90 + "]" * 90),
    {"type": "audio/pcmu"}, ["a", 3], "server_vad",
]  # fmt: skip


def mutated(value, rng):
    """The value with one random part replaced, removed or doubled."""
    value = copy.deepcopy(value)
    at = value
    while isinstance(at, dict) and at:
        name = rng.choice(list(at))
        if not (isinstance(at[name], dict) and at[name]) or rng.random() < 0.2:
            action = rng.randrange(3)
            if action == 0:
                at[name] = rng.choice(JUNK)
            elif action == 1:
                del at[name]
            else:
                at[f"{name}_"] = at[name]
            break
        at = at[name]
    return value


class Stream:
    """A stream that answers at random, as far as the contract of `ReplicaStream` lets it."""

    def __init__(self, rng):
        self._rng = rng
        self._segment = self._start_s = self._words = 0
        self._text = ""
        self._seconds = 0.0

    def push(self):
        """Events that may follow from some audio."""
        self._seconds += 0.1
        if self._rng.random() < 0.4:
            self._words += 1
            self._text = f"{self._text} w{self._words}".strip()
            stable = self._rng.choice([0, len(self._text) // 2, len(self._text)])
            yield Partial(self._segment, self._text, stable, (), self._seconds)
        elif self._rng.random() < 0.2:
            yield self.end()

    def end(self, forced=False, is_last=False):
        words = tuple(Word(text, 0, 100, self._rng.random()) for text in self._text.split())
        final = Final(self._segment, self._text, words, (), self._seconds, self._seconds, is_last, forced)
        self._segment, self._text = self._segment + 1, ""
        return final


class Connection:
    """Applies the actions of a protocol to a `Stream`; `events` has what the client receives."""

    def __init__(self, rng):
        self._rng = rng
        self.protocol = RealtimeProtocol(FakeStreams(), Config())
        self.events = list(self.protocol.dialect.opened())
        self._stream = None
        self.is_configured = False

    def send(self, message):
        for action in self.protocol.receive(message):
            if isinstance(action, dict):
                self.events.append(json.loads(encode(action)))
            elif isinstance(action, AppendAudio):
                assert self.is_configured
                self._stream = self._stream or Stream(self._rng)
                self.receive(*self._stream.push())
            elif isinstance(action, EndSegment):
                self.receive((self._stream or Stream(self._rng)).end(forced=True))
            else:
                assert isinstance(action, Configure | Finish)
                self.is_configured = True
                if self._stream is not None or isinstance(action, Finish):
                    self.receive((self._stream or Stream(self._rng)).end(is_last=True))
                self._stream = None

    def receive(self, *stream_events):
        for event in stream_events:
            self.events += [json.loads(encode(found)) for found in self.protocol.dialect.result(event)]


def check_openai(events):
    """Every item is committed, added and completed once, in order; its deltas are its transcript."""
    deltas = Counter()
    texts = {}
    stages = {}
    for event in events:
        kind, item = event["type"], event.get("item_id") or event.get("item", {}).get("id")
        if kind == f"{ITEM}.delta":
            texts[item] = texts.get(item, "") + event["delta"]
            deltas[item] += 1
        elif kind in ("input_audio_buffer.committed", "conversation.item.added", f"{ITEM}.completed"):
            stages.setdefault(item, []).append(kind)
            if kind == f"{ITEM}.completed":
                assert texts.get(item, "") == event["transcript"]
    for found in stages.values():
        assert found == ["input_audio_buffer.committed", "conversation.item.added", f"{ITEM}.completed"]


def test_random_events():
    rng = random.Random(0)
    sent = 0
    while sent < 4_000:
        dialect = rng.choice(list(OTHERS))
        connection = Connection(rng)
        if dialect != "openai":
            connection.send(json.dumps(OTHERS[dialect][0]))
        for _ in range(rng.randrange(60)):
            event = rng.choice([APPEND, APPEND, APPEND, COMMIT, *OTHERS[dialect]])
            message = json.dumps(mutated(event, rng) if rng.random() < 0.4 else event)
            if rng.random() < 0.02:
                message = message[: rng.randrange(len(message))]
            connection.send(message)
            sent += 1
        if dialect == "openai":
            check_openai(connection.events)
