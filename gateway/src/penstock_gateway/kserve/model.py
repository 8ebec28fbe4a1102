"""The model `asr`: its metadata, the parameters of its server, and results of a request as its outputs. No wire format.

Outputs are named tensors [1, n], in the order of model_repository/asr. One more is the gateway's own, `WORD_SPEAKER`:
in final results of streams with speakers, that of each word of the segment, from 1, or 0 where it is not known.
"""

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock_client import Alternative, Result, Word
from penstock_client.protocol import INPUT_DATATYPE, INPUT_NAME, MODEL_NAME
from penstock_gateway.errors import ErrorCode, GatewayError, shown
from penstock_gateway.stream.events import confidence
from penstock_gateway.stream.options import ModelGroup
from penstock_gateway.version import __version__

_LENGTH = struct.Struct("<I")
_DTYPES = {"INT32": "<i4", "FP32": "<f4", "BOOL": "?"}
_Values = list[Any]
VERSION = "1"
_CONFIG_TYPES = {"BYTES": "TYPE_STRING"}


class Output(NamedTuple):
    """One tensor [1, n]."""

    name: str
    datatype: str
    values: _Values
    """[n]; texts are str."""

    def numbers(self) -> _Values:
        """As numbers and texts of JSON, with the precision of the datatype."""
        is_float = self.datatype == "FP32"
        return np.array(self.values, np.float32).tolist() if is_float else self.values

    def raw(self) -> bytes:
        """As bytes of a tensor; a text follows its length."""
        if self.datatype == "BYTES":
            texts = [text.encode() for text in self.values]
            return b"".join(_LENGTH.pack(len(text)) + text for text in texts)
        return np.array(self.values, _DTYPES[self.datatype]).tobytes()


def _each(value: Callable[[Result], Any]) -> Callable[[Sequence[Result]], _Values]:
    return lambda results: [value(result) for result in results]


def _listed(
    entries: Callable[[Result], Iterable[Any]], value: Callable[[Any], Any]
) -> Callable[[Sequence[Result]], _Values]:
    return lambda results: [value(entry) for result in results for entry in entries(result)]


def _counts(results: Sequence[Result]) -> _Values:
    return [n for each in results for n in (len(each.new_words), len(each.new_tokens), len(each.alternatives))]


def _words(result: Result) -> Sequence[Word]:
    return result.new_words


def _alternatives(result: Result) -> Sequence[Alternative]:
    return result.alternatives


def _word_list(alternative: Alternative) -> str:
    return json.dumps([[word.text, word.start_ms, word.end_ms, word.confidence] for word in alternative.words])


_OUTPUTS: dict[str, tuple[str, Callable[[Sequence[Result]], _Values]]] = {
    "SEGMENT": ("INT32", _each(lambda result: result.segment)),
    "TEXT": ("BYTES", _each(lambda result: result.text)),
    "IS_FINAL": ("BOOL", _each(lambda result: result.is_final)),
    "AUDIO_PROCESSED": ("FP32", _each(lambda result: result.audio_processed_s)),
    "LANGUAGE": ("BYTES", _each(lambda result: result.language)),
    "STABLE_CHARS": ("INT32", _each(lambda result: result.stable_chars)),
    "LIST_COUNTS": ("INT32", _counts),
    "WORDS": ("BYTES", _listed(_words, lambda word: word.text)),
    "WORD_START_MS": ("INT32", _listed(_words, lambda word: word.start_ms)),
    "WORD_END_MS": ("INT32", _listed(_words, lambda word: word.end_ms)),
    "TOKENS": ("INT32", _listed(lambda result: result.new_tokens, int)),
    "TIMESTAMPS": ("INT32", _listed(lambda result: result.new_timestamps, int)),
    "WORD_CONFIDENCE": ("FP32", _listed(_words, confidence)),
    "ALTERNATIVES": ("BYTES", _listed(_alternatives, lambda one: one.text)),
    "ALTERNATIVE_SCORES": ("FP32", _listed(_alternatives, lambda one: one.score)),
    "ALTERNATIVE_WORDS": ("BYTES", _listed(_alternatives, _word_list)),
    "WORD_SPEAKER": ("INT32", _listed(lambda result: result.word_speakers, lambda speaker: speaker or 0)),
}
DATATYPES = {name: datatype for name, (datatype, _) in _OUTPUTS.items()}
"""The datatype of each output, by its name."""


def make_outputs(results: Sequence[Result], names: Iterable[str]) -> list[Output]:
    """The tensors of these names, for the results of one request."""
    return [Output(name, DATATYPES[name], _OUTPUTS[name][1](results)) for name in names]


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
