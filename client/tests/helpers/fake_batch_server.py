"""`asr_batch` on a real socket: `FakeRecognizer` behind rows of many streams."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

from client.tests.helpers.fake_servers import THREADS_NAME, grpc_request, grpc_response
from client.tests.helpers.fake_speakers import FakeSpeakers
from client.tests.helpers.fakes import FakeRecognizer, ReceivedRequest, RejectionError, outputs, texts

_START, _END, _FINALIZE = 1, 2, 4
_LISTS = ("WORDS", "TOKENS", "ALTERNATIVES")


class FakeBatch:
    """Answers the tensors of a request with those of its reply. Streams are (client, number)."""

    def __init__(self, recognizer: FakeRecognizer):
        self.recognizer = recognizer
        self.batches: list[np.ndarray] = []
        """ROWS of each request, without those of probes."""
        self.probes = 0
        self._texts: dict[tuple[str, int], bytes] = {}
        """The text of each stream's last entry."""

    def answer(self, client: str, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """RejectionError where the request is rejected whole."""
        (rows,) = tensors["ROWS"]
        if rows[:, 1:3].tolist() == [[0, _START | _END]]:
            return self._answer_probe()
        self.batches.append(rows)
        audio = tensors["AUDIO"][0] if "AUDIO" in tensors else tensors["PCM"][0].astype(np.float32) / 32768
        if rows[:, 1].sum() != len(audio):
            raise RejectionError("REQUEST_INVALID: the samples of ROWS do not add up")
        entries, numbers, errors = [], [], {}
        for i, (number, samples, flags, options) in enumerate(rows.tolist()):
            part, audio = audio[:samples], audio[samples:]
            chosen = json.loads(tensors["OPTIONS"][0][options]) if options >= 0 else {}
            if flags & _FINALIZE:
                chosen["finalize"] = True
            stream = (client, number)
            try:
                found = self.recognizer.answer(
                    ReceivedRequest(stream, part, bool(flags & _START), bool(flags & _END), chosen)
                )
            except RejectionError as error:
                errors[i] = str(error).removeprefix("in ensemble 'asr', ")
                continue
            text = found["TEXT"].item()
            if found["IS_FINAL"].item() or self._texts.get(stream, b"") != text or found["TOKENS"].size:
                entries.append(found)
                numbers.append(i)
            self._texts[stream] = b"" if found["IS_FINAL"].item() else text
        return joined(entries, numbers, errors)

    def _answer_probe(self) -> dict[str, np.ndarray]:
        self.probes += 1
        if len(self.recognizer.received) >= self.recognizer.max_streams:
            return joined([], [], {0: "STREAM_LIMIT: all slots are taken"})
        return joined([outputs(0, 0, True)], [0], {})


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
        "STABLE_CHARS": np.array([[0] * len(entries)], np.int32).reshape(1, -1),
        "LIST_COUNTS": np.array([counts], np.int32).reshape(1, -1),
        "ROW": np.array([numbers], np.int32).reshape(1, -1),
        "ERROR_ROWS": np.array([list(errors)], np.int32).reshape(1, -1),
        "ERRORS": texts(list(errors.values())),
    }


def read_request(request: service_pb2.ModelInferRequest) -> tuple[str, dict[str, np.ndarray]]:
    """The client and the tensors of a request."""
    dtypes = {"FP32": "<f4", "INT16": "<i2", "INT64": "<i8"}
    tensors = {}
    for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True):
        values = (
            deserialize_bytes_tensor(content)
            if tensor.datatype == "BYTES"
            else np.frombuffer(content, dtypes[tensor.datatype])
        )
        tensors[tensor.name] = values.reshape(list(tensor.shape))
    return request.parameters["client"].string_param, tensors


class BatchServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Serves a `FakeBatch` over gRPC. `on_request` sees each request before it is answered, in its call's thread."""

    def __init__(self, recognizer: FakeRecognizer):
        self.batch = FakeBatch(recognizer)
        self.speakers = FakeSpeakers()
        self.on_request: Callable[[], object] = lambda: None
        self._server = grpc.server(ThreadPoolExecutor(8, THREADS_NAME))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def ModelStreamInfer(self, request_iterator, context):  # noqa: N802
        for request in request_iterator:
            is_speakers = request.model_name == "speakers"
            assert is_speakers or request.model_name == "asr_batch"
            if not is_speakers:
                self.on_request()
            try:
                if is_speakers:
                    outputs = self.speakers.answer(grpc_request(request))
                else:
                    outputs = self.batch.answer(*read_request(request))
            except RejectionError as error:
                yield service_pb2.ModelStreamInferResponse(error_message=str(error))
            else:
                yield service_pb2.ModelStreamInferResponse(infer_response=grpc_response(outputs))

    def ModelConfig(self, request, context):  # noqa: N802
        if request.name != "asr_batch":
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: {request.name!r} is not found")
        response = service_pb2.ModelConfigResponse()
        for name, value in self.batch.recognizer.server_parameters.items():
            response.config.parameters[name].string_value = value
        return response

    def close(self) -> None:
        self._server.stop(None).wait()
