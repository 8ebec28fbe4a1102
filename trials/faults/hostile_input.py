"""Fault trials of hostile requests. Each returns its figures and raises AssertionError where it failed.

The few requests that are known to end this server are left out (docs/serving.md, Safety).
"""

import http.client
import json
import math
import random
import socket
from collections import Counter
from collections.abc import Sequence

import tritonclient.grpc as triton_grpc
from grpc import RpcError

from trials.server.recordings import Recording
from trials.server.resources import Figures, beside_others
from trials.server.running import RunningServer

SHAPES = (
    [], [1], [0], [0, 0], [1, -1], [-1, 160], [1, 2**31], [1, 2**62], [2**31, 2**31], [1, 1, 160], [2, 80], [65, 1],
    [160, 1], [1, 160], [1, 159], [1, 161],
)  # fmt: skip
DATATYPES = ("FP32", "FP64", "FP16", "INT16", "INT64", "BYTES", "BOOL", "UINT8", "", "fp32", "X" * 1000)
IDS = ("hostile", "", 0, 1, -1, 2**64 - 1, "x" * 128, "x" * 129, "x" * 100_000, "\0", "'; --", "naïve\n")
INPUTS = {
    "asr": {"AUDIO": "FP32"},
    "features": {"AUDIO": "FP32"},
    "encoder": {"MEL": "FP32", "TICKET": "INT64"},
    "decoder": {"ENCODED": "FP32", "TICKET": "INT64"},
}
_OVERFLOWS = 1 << 61
"""A tensor of as many numbers, 64 bits of bytes, ends a model's process (docs/serving.md, Safety)."""
_TIMEOUT_S, _NO_ROWS_TIMEOUT_S = 10, 1
_NO_ROWS = "no rows, not answered"


@beside_others
def hostile_grpc(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Wrong names, types, shapes, sizes and parameters in protobuf; also on the inner models."""
    return send_hostile_grpc(server.url("grpc"), count, INPUTS, ends_by_overflow=True)


def send_hostile_grpc(address: str, count: int, models: Sequence[str], ends_by_overflow: bool) -> Figures:
    """Sends the requests to these models; returns how often each status came. `ends_by_overflow`: see `_OVERFLOWS`."""
    chance, outcomes = random.Random(count), Counter()
    with triton_grpc.grpc.insecure_channel(address) as channel:
        stub = triton_grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(count):
            request = _message(chance, models, ends_by_overflow)
            shapes = [list(tensor.shape) for tensor in request.inputs]
            may_go_unanswered = _may_go_unanswered(request.model_name, shapes)
            try:
                stub.ModelInfer(request, timeout=_NO_ROWS_TIMEOUT_S if may_go_unanswered else _TIMEOUT_S)
                outcomes["answered"] += 1
            except RpcError as error:
                outcome = error.code().name
                if outcome == "DEADLINE_EXCEEDED" and may_go_unanswered:
                    outcome = _NO_ROWS
                outcomes[outcome] += 1
    assert outcomes["DEADLINE_EXCEEDED"] == outcomes["UNAVAILABLE"] == 0, outcomes
    return dict(outcomes)


def _may_go_unanswered(model: str, shapes: list) -> bool:
    """Triton 2.51 never answers a request of 0 rows to an inner model; to the ensemble it does."""
    return model != "asr" and any(isinstance(shape, list) and shape[:1] == [0] for shape in shapes)


def _message(chance: random.Random, models: Sequence[str], ends_by_overflow: bool):
    """Returns a mostly valid request, so that it passes the first checks."""

    def rarely(usual, others):
        return usual if chance.random() < 0.85 else chance.choice(others)

    model = chance.choice([*models])
    request = triton_grpc.service_pb2.ModelInferRequest(model_name=model)
    for name, datatype in INPUTS[model].items():
        for _ in range(rarely(1, [0, 2])):
            shape = rarely(_usual_shape(chance, name), SHAPES)
            if ends_by_overflow and math.prod(shape) >= _OVERFLOWS:
                shape = _usual_shape(chance, name)
            tensor = request.inputs.add(name=rarely(name, ["NAME", ""]), datatype=rarely(datatype, DATATYPES))
            tensor.shape.extend(shape)
            size = rarely(_size(shape, datatype), [0, 3, 5000])
            request.raw_input_contents.append(_content(chance, name, size))
    if rarely(False, [True]):
        request.raw_input_contents.append(b"more")
    for name in rarely([], [["TEXT"], ["NOPE"], ["TEXT", "TEXT"]]):
        request.outputs.add(name=name)
    _set_parameters(chance, request, rarely(f"hostile-{chance.randrange(3)}", IDS))
    return request


def _usual_shape(chance: random.Random, name: str) -> list[int]:
    if name == "TICKET":
        return [1, 7]
    if name == "MEL":
        return [1, chance.randint(0, 3), chance.choice([56, 56, 0, 57]), chance.choice([80, 80, 0, 81])]
    if name == "ENCODED":
        return [1, chance.choice([0, 1, 7, 1000]), chance.choice([144, 144, 0, 143])]
    return [1, chance.choice([0, 1, 160, 16000, 480_001])]


def _is_too_large(shape: list[int]) -> bool:
    """Triton 2.51 allocates the memory of a JSON request's shape before it reads the data; where the size overflows 64
    bits, it writes beyond the allocation and crashes."""
    return math.prod(shape) > 1 << 24


def _size(shape: list[int], datatype: str) -> int:
    size = 8 if datatype == "INT64" else 4
    for length in shape:
        size *= max(0, length)
    return min(size, 1 << 21)


def _content(chance: random.Random, name: str, size: int) -> bytes:
    if name == "TICKET" and chance.random() < 0.5:  # a forged ticket for any slot
        numbers = [chance.choice([-1, 0, 1, 2, 3, 2**40]), *(chance.choice([0, 1, 2**62, -5]) for _ in range(6))]
        return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)[:size]
    return chance.choice([bytes(size), chance.randbytes(size), b"\xff" * size])


def _set_parameters(chance: random.Random, request, stream_id: str | int) -> None:
    if isinstance(stream_id, str):
        request.parameters["sequence_id"].string_param = stream_id
    elif stream_id >= 0:
        request.parameters["sequence_id"].uint64_param = stream_id
    for name, share in (("sequence_start", 0.7), ("sequence_end", 0.3), ("finalize", 0.3)):
        if chance.random() < share:
            request.parameters[name].bool_param = True
    if chance.random() < 0.15:
        name = chance.choice(["finalize", "decoder", "boosted_phrases", "\0", "x" * 10_000, "sequence_start"])
        value = chance.choice(["", "[[[", "\0", "x" * 100_000, '["a"]'])
        request.parameters[name].string_param = value


@beside_others
def hostile_http(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Wrong requests in JSON, broken JSON, and bodies that do not match their headers."""
    return send_hostile_http(server.url("http"), count, INPUTS, ends_by_overflow=True)


def send_hostile_http(address: str, count: int, models: Sequence[str], ends_by_overflow: bool) -> Figures:
    """As `send_hostile_grpc`, over HTTP. `ends_by_overflow`: see `_is_too_large`."""
    chance, outcomes = random.Random(count), Counter()
    for _ in range(count):
        model = chance.choice([*models])
        headers, body = _post(chance, model, ends_by_overflow)
        may_go_unanswered = _may_go_unanswered(model, _json_shapes(body))
        timeout_s = _NO_ROWS_TIMEOUT_S if may_go_unanswered else _TIMEOUT_S
        connection = http.client.HTTPConnection(address, timeout=timeout_s)
        try:
            connection.request("POST", f"/v2/models/{model}/infer", body, headers)
            outcomes[f"HTTP {connection.getresponse().status}"] += 1
        except (http.client.HTTPException, ConnectionError):
            outcomes["connection closed"] += 1
        except TimeoutError:
            assert may_go_unanswered, (model, headers, body[:1000])
            outcomes[_NO_ROWS] += 1
        finally:
            connection.close()
    return dict(outcomes)


def _json_shapes(body: bytes) -> list:
    """Returns the shapes of the inputs, none where the JSON cannot be read; ignores what follows the JSON."""
    try:
        document, _ = json.JSONDecoder().raw_decode(body.decode("latin-1"))
        return [tensor["shape"] for tensor in document["inputs"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []


def _post(chance: random.Random, model: str, ends_by_overflow: bool) -> tuple[dict[str, str], bytes]:
    def rarely(usual, others):
        return usual if chance.random() < 0.85 else chance.choice(others)

    parameters = {"sequence_id": rarely("hostile", IDS), "sequence_start": rarely(True, [1, "true", None, False])}
    parameters |= rarely({}, [{"finalize": "x"}, {"decoder": "alsd", "beam_size": 10**30}, {"boost": 1e308}])
    document = {
        "inputs": [
            _json_input(chance, rarely, name, datatype, ends_by_overflow) for name, datatype in INPUTS[model].items()
        ],
        "parameters": rarely(parameters, [[], 3, {}]),
        "outputs": rarely([], [[{"name": "TEXT"}], [{"name": 7}], [{"name": "NOPE"}], {}, None]),
    }
    for name in rarely([], [["inputs"], ["parameters"], ["outputs"]]):
        del document[name]
    return _corrupt(chance, json.dumps(document).encode())


def _json_input(chance: random.Random, rarely, name: str, datatype: str, ends_by_overflow: bool) -> dict:
    usable = [shape for shape in SHAPES if not (ends_by_overflow and _is_too_large(shape))]
    shape = rarely(_usual_shape(chance, name), [*usable, "1", None, [1.5], ["a"]])
    is_usable = isinstance(shape, list) and all(isinstance(length, int) for length in shape)
    count = min(_size(shape, datatype), 40_000) // (8 if datatype == "INT64" else 4) if is_usable else 3
    values = [0.5, -1, 1e39, "x", None, True, [1], {"a": 1}]
    mixed = [] if ends_by_overflow else [[*[0] * count, chance.choice([*values, "x" * 500])]]
    return {
        "name": rarely(name, ["AUDIO", 3, None]),
        "shape": shape,
        "datatype": rarely(datatype, DATATYPES),
        "data": rarely(
            [0] * count, [[chance.choice(values)] * count, "data", None, [[0.0] * count], [0] * 159, *mixed]
        ),
    }


def _corrupt(chance: random.Random, body: bytes) -> tuple[dict[str, str], bytes]:
    """Returns headers and body, three times in ten corrupted."""
    headers, kind = {"Content-Type": "application/json"}, chance.randrange(16)
    if kind == 0:
        body = body[: chance.randint(0, len(body))]
    elif kind == 1:
        corrupted = bytearray(body)
        for _ in range(chance.randint(1, 9)):
            corrupted[chance.randrange(len(corrupted))] = chance.randrange(256)
        body = bytes(corrupted)
    elif kind == 2:
        body = b"[" * chance.choice([10, 1000])
    elif kind in (3, 4):
        headers["Inference-Header-Content-Length"] = str(chance.choice([0, 5, len(body), len(body) - 1, len(body) + 1]))
        body += chance.randbytes(chance.choice([0, 640]))
    return headers, body


@beside_others
def random_bytes(server: RunningServer, recordings: list[Recording], count: int) -> Figures:
    """Random bytes on all three ports."""
    chance, beginnings = (
        random.Random(count),
        (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST /v2 HTTP/1.1\r\n", b"\x16\x03\x01"),
    )
    for number in range(count):
        with socket.create_connection(("127.0.0.1", server.ports[number % 3]), 5) as connection:
            connection.settimeout(0.2)
            try:
                connection.sendall(chance.choice(beginnings) + chance.randbytes(chance.choice([1, 100, 5000])))
                connection.recv(1000)
            except OSError:
                continue
    return {"connections": count}
