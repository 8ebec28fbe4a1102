"""The model `asr_batch` without a network: `FakeRecognizer` behind rows of many streams."""

import json

import numpy as np
from tritonclient.grpc import service_pb2

from client.tests.helpers.fake_speakers import FakeSpeakers
from client.tests.helpers.fakes import FakeRecognizer, ReceivedRequest, RejectionError, Stream, outputs, texts

_START, _END, _FINALIZE = 1, 2, 4
_LISTS = ("WORDS", "TOKENS", "ALTERNATIVES")


class FakeBatch:
    """Answers the tensors of a request with those of its reply. Streams are (client, number)."""

    def __init__(self, recognizer: FakeRecognizer, speakers: FakeSpeakers | None = None):
        self.recognizer, self.speakers = recognizer, speakers or FakeSpeakers()
        self.batches: list[np.ndarray] = []
        """ROWS of each request, without those of probes."""
        self.probes = 0
        self._texts: dict[tuple[str, int], bytes] = {}
        """The text of each stream's last entry."""

    def answer(self, client: str, tensors: dict[str, np.ndarray], model: str = "asr_batch") -> dict[str, np.ndarray]:
        """RejectionError where the request is rejected whole."""
        (rows,) = tensors["ROWS"]
        has_speakers = self.speakers.check(model, rows)
        if rows[:, 1:3].tolist() == [[0, _START | _END]]:
            return self._answer_probe()
        self.batches.append(rows)
        audio = samples_of(tensors)
        if rows[:, 1].sum() != len(audio):
            raise RejectionError("REQUEST_INVALID: the samples of ROWS do not add up")
        entries, numbers, errors = [], [], {}
        for i, (number, samples, flags, options) in enumerate(rows.tolist()):
            part, audio = audio[:samples], audio[samples:]
            chosen = tensors["OPTIONS"][options] if options >= 0 else {}
            if flags & _FINALIZE:
                chosen["finalize"] = True
            stream = (client, number)
            try:
                self.speakers.take(stream, part, flags, chosen, has_speakers)
                found = [self.speakers.label(stream, entry) for entry in self._row(stream, part, flags, chosen)]
            except RejectionError as error:
                errors[i] = str(error).removeprefix("in ensemble 'asr', ")
                self.speakers.end(stream, _END)
                continue
            self.speakers.end(stream, flags)
            entries += found
            numbers += [i] * len(found)
        return joined(entries, numbers, errors)

    def _row(self, stream: Stream, part: np.ndarray, flags: int, options: dict) -> list[dict[str, np.ndarray]]:
        """The entry of a row, none where nothing is new."""
        found = self.recognizer.answer(ReceivedRequest(stream, part, bool(flags & _START), bool(flags & _END), options))
        text, is_final = found["TEXT"].item(), found["IS_FINAL"].item()
        is_new = is_final or self._texts.get(stream, b"") != text or found["TOKENS"].size
        self._texts[stream] = b"" if is_final else text
        return [found] if is_new else []

    def _answer_probe(self) -> dict[str, np.ndarray]:
        self.probes += 1
        try:
            self._check_room()
        except RejectionError as error:
            return joined([], [], {0: str(error)})
        return joined([outputs(0, 0, True)], [0], {})

    def _check_room(self) -> None:
        if len(self.recognizer.received) >= self.recognizer.max_streams:
            raise RejectionError("STREAM_LIMIT: all slots are taken")


def samples_of(tensors: dict[str, np.ndarray]) -> np.ndarray:
    """The samples [n] float32 of a request."""
    assert {"AUDIO", "PCM", "ROWS"} <= tensors.keys() and not (tensors["AUDIO"].size and tensors["PCM"].size)
    return np.concatenate([tensors["AUDIO"][0], tensors["PCM"][0].astype(np.float32) / 32768])


def joined(entries: list[dict], numbers: list[int], errors: dict[int, str]) -> dict[str, np.ndarray]:
    """One reply with all entries."""
    empty = FakeRecognizer()._answer(ReceivedRequest("", np.zeros(0, np.float32), True, False, {}))
    found = {
        name: np.concatenate([np.empty((1, 0), empty[name].dtype), *(entry[name] for entry in entries)], axis=1)
        for name in empty
    }
    counts = [entry[name].shape[1] for entry in entries for name in _LISTS]
    return {
        **found,
        **speakers_of(entries),
        "STABLE_CHARS": np.array([[0] * len(entries)], np.int32).reshape(1, -1),
        "LIST_COUNTS": np.array([counts], np.int32).reshape(1, -1),
        "ROW": np.array([numbers], np.int32).reshape(1, -1),
        "ERROR_ROWS": np.array([list(errors)], np.int32).reshape(1, -1),
        "ERRORS": texts(list(errors.values())),
    }


def speakers_of(entries: list[dict]) -> dict[str, np.ndarray]:
    """The outputs about speakers, where an entry has some."""
    none = np.zeros((1, 0), np.int32)
    if not any("SPEAKER_COUNTS" in entry for entry in entries):
        return {}
    counts = [entry.get("SPEAKER_COUNTS", np.zeros((1, 1), np.int32)) for entry in entries]
    numbers = [entry.get("WORD_SPEAKERS", none) for entry in entries]
    return {"SPEAKER_COUNTS": np.concatenate(counts, axis=1), "WORD_SPEAKERS": np.concatenate(numbers, axis=1)}


DTYPES = {"FP32": "<f4", "INT16": "<i2", "INT64": "<i8"}


def read_request(request: service_pb2.ModelInferRequest) -> tuple[str, dict[str, np.ndarray]]:
    """The client and the tensors of a request; OPTIONS are its parameter."""
    tensors = {}
    for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True):
        tensors[tensor.name] = np.frombuffer(content, DTYPES[tensor.datatype]).reshape(list(tensor.shape))
    tensors["OPTIONS"] = json.loads(request.parameters["options"].string_param or "[]")
    return request.parameters["client"].string_param, tensors


def read_body(body: bytes, header_length: int) -> tuple[str, dict[str, np.ndarray]]:
    """The client and the tensors of a POST."""
    header, content = json.loads(body[:header_length]), body[header_length:]
    tensors = {}
    for tensor in header["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        tensors[tensor["name"]] = np.frombuffer(content[:size], DTYPES[tensor["datatype"]]).reshape(tensor["shape"])
        content = content[size:]
    assert not content and header["parameters"]["binary_data_output"] is True
    tensors["OPTIONS"] = json.loads(header["parameters"].get("options", "[]"))
    return header["parameters"]["client"], tensors
