"""Requests of KServe over gRPC that are not of the model's form: each has a status and a code."""

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.tests.kserve.conftest import KEYS, headers

pytestmark = pytest.mark.anyio
Code = grpc.StatusCode


def message(**changes):
    """A valid start, with changes."""
    made = pb.ModelInferRequest(model_name="asr")
    made.inputs.add(name="AUDIO", datatype="FP32", shape=[1, 2])
    made.parameters["sequence_id"].string_param = "s"
    made.parameters["sequence_start"].bool_param = True
    made.raw_input_contents.append(bytes(8))
    for name, change in changes.items():
        change(made, name)
    return made


def shape(*lengths, content=bytes(8)):
    def change(made, _):
        made.inputs[0].shape[:] = lengths
        made.raw_input_contents[:] = [content]

    return change


def parameter(name, field, value):
    return lambda made, _: setattr(made.parameters[name], field, value)


def on_input(**fields):
    def change(made, _):
        for name, value in fields.items():
            setattr(made.inputs[0], name, value)

    return change


REJECTED = {
    "overflow": (shape(1, 2**62), "AUDIO_INVALID"),
    "negative": (shape(1, -2), "REQUEST_INVALID"),
    "two rows": (shape(2, 1), "REQUEST_INVALID"),
    "rank 1": (shape(2), "REQUEST_INVALID"),
    "product": (shape(1, 3), "REQUEST_INVALID"),
    "too long": (shape(1, 480_001, content=bytes(1_920_004)), "AUDIO_INVALID"),
    "not finite": (shape(1, 1, content=np.float32("nan").tobytes()), "AUDIO_INVALID"),
    "too loud": (shape(1, 1, content=np.float32(-2.1).tobytes()), "AUDIO_INVALID"),
    "datatype": (on_input(datatype="INT32"), "REQUEST_INVALID"),
    "name": (on_input(name="MEL"), "REQUEST_INVALID"),
    "no input": (lambda made, _: made.ClearField("inputs"), "REQUEST_INVALID"),
    "two inputs": (lambda made, _: made.inputs.add(name="AUDIO"), "REQUEST_INVALID"),
    "shared memory": (
        lambda made, _: made.inputs[0].parameters["shared_memory_region"].CopyFrom(pb.InferParameter(string_param="x")),
        "REQUEST_INVALID",
    ),
    "two contents": (lambda made, _: made.raw_input_contents.append(b""), "REQUEST_INVALID"),
    "typed contents": (lambda made, _: made.inputs[0].contents.fp32_contents.append(1), "REQUEST_INVALID"),
    "no contents": (lambda made, _: made.raw_input_contents.clear(), "REQUEST_INVALID"),
    "output": (lambda made, _: made.outputs.add(name="NOPE"), "REQUEST_INVALID"),
    "classes": (
        lambda made, _: made.outputs.add(name="TEXT", parameters={"classification": pb.InferParameter(int64_param=1)}),
        "REQUEST_INVALID",
    ),
    "no id": (lambda made, _: made.parameters.pop("sequence_id"), "OPTION_INVALID"),
    "long id": (parameter("sequence_id", "string_param", "x" * 129), "OPTION_INVALID"),
    "negative id": (parameter("sequence_id", "int64_param", -1), "OPTION_INVALID"),
    "start": (parameter("sequence_start", "int64_param", 1), "OPTION_INVALID"),
    "finalize": (parameter("finalize", "string_param", "true"), "OPTION_INVALID"),
    "unknown": (parameter("priority", "int64_param", 1), "OPTION_INVALID"),
    "without value": (lambda made, _: made.parameters["decoder"].SetInParent(), "OPTION_INVALID"),
    "phrases": (parameter("boosted_phrases", "string_param", "[[[["), "OPTION_INVALID"),
    "model": (lambda made, _: setattr(made, "model_name", "asr_batch"), "MODEL_NOT_FOUND"),
    "version": (lambda made, _: setattr(made, "model_version", "2"), "MODEL_NOT_FOUND"),
}


async def raw_call(served, data):
    """The status and the code of ModelInfer with these bytes."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(served.sockets.grpc_address, options=options) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(data, metadata=[*headers().items()])
        return await call.code(), (await call.details()).partition(":")[0]


async def test_what_is_not_of_the_models_form_is_rejected(serve, server):
    async with serve(server, keys=KEYS) as served:
        assert await raw_call(served, message().SerializeToString()) == (Code.OK, "")
        for name, (change, code) in REJECTED.items():
            status = Code.NOT_FOUND if code == "MODEL_NOT_FOUND" else Code.INVALID_ARGUMENT
            data = message(changed=change).SerializeToString()
            assert await raw_call(served, data) == (status, code), name
        for data in (b"\xff" * 40, b"\x2a", b"\x2a\x05a", b"\x08\x01", b"\x0a\x02\xff\xff", b"\x2a\x00" * 257):
            assert await raw_call(served, data) == (Code.INVALID_ARGUMENT, "REQUEST_INVALID"), data
        phrases = message(long=parameter("boosted_phrases", "string_param", "x" * (1 << 20))).SerializeToString()
        for data in (phrases, bytes(3_000_000)):
            assert await raw_call(served, data) == (Code.RESOURCE_EXHAUSTED, "TOO_LARGE")
    assert all(len(batch) == 1 for batch in server.batch.batches)
