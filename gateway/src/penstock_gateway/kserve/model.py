"""Metadata of the model `asr`: its tensors and the parameters of its server. Independent of the wire format."""

from typing import Any

from penstock_client.protocol import INPUT_DATATYPE, INPUT_NAME, MODEL_NAME
from penstock_gateway.errors import ErrorCode, GatewayError, shown
from penstock_gateway.kserve.outputs import DATATYPES
from penstock_gateway.stream.live_stream import ModelGroup
from penstock_gateway.version import __version__

VERSION = "1"
_CONFIG_TYPES = {"BYTES": "TYPE_STRING"}


def check_model(name: str, version: str) -> None:
    """GatewayError for another model than `asr`, or another version of it than 1; "" is any."""
    if name != MODEL_NAME or version not in ("", VERSION):
        message = (
            f"there is no model {shown(name)}, version {shown(version)}; accepted: {MODEL_NAME}, version {VERSION}"
        )
        raise GatewayError(ErrorCode.MODEL_NOT_FOUND, message, "model")


def server_metadata() -> dict[str, Any]:
    """The fields of ServerMetadataResponse."""
    extensions = ["sequence", "model_configuration", "binary_tensor_data", "parameters"]
    return {"name": "penstock-gateway", "version": __version__, "extensions": extensions}


def model_metadata() -> dict[str, Any]:
    """The fields of ModelMetadataResponse."""
    return {
        "name": MODEL_NAME,
        "versions": [VERSION],
        "platform": "penstock",
        "inputs": [{"name": INPUT_NAME, "datatype": INPUT_DATATYPE, "shape": [-1, -1]}],
        "outputs": [{"name": name, "datatype": kind, "shape": [-1, -1]} for name, kind in DATATYPES.items()],
    }


def model_config(group: ModelGroup) -> dict[str, Any]:
    """The fields of ModelConfig that a client can use."""

    def tensor(name: str, datatype: str) -> dict[str, Any]:
        return {"name": name, "data_type": _CONFIG_TYPES.get(datatype, f"TYPE_{datatype}"), "dims": [-1]}

    return {
        "name": MODEL_NAME,
        "platform": "penstock",
        "max_batch_size": 1,
        "input": [tensor(INPUT_NAME, INPUT_DATATYPE)],
        "output": [tensor(name, datatype) for name, datatype in DATATYPES.items()],
        "parameters": {name: {"string_value": value} for name, value in group.parameters.items()},
    }
