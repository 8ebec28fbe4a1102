"""A stand-in for the module that Triton gives its Python models, and for the requests that it hands them."""

import importlib
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import to_dlpack

from tests.helpers.model_logging import kept_logging

START, END = 1, 2


class Tensor:
    """A tensor of Triton's, on the host: of texts from an array, of numbers by DLPack alone."""

    def __init__(self, name: str, texts: np.ndarray):
        assert texts.dtype == np.object_
        self.name, self.values = name, texts

    @classmethod
    def of(cls, name: str, values: np.ndarray) -> "Tensor":
        """One that a client has sent."""
        made = cls.__new__(cls)
        made.name, made.values = name, values
        return made

    @classmethod
    def from_dlpack(cls, name: str, capsule: object) -> "Tensor":
        numbers = torch.from_dlpack(capsule)
        # The stub does not compare the first dimension's.
        assert numbers.stride()[1:] == torch.empty(numbers.shape).stride()[1:]
        return cls.of(name, numbers.numpy())

    def to_dlpack(self) -> object:
        return to_dlpack(torch.from_numpy(self.values))


class TritonError(Exception):
    """With the codes by their names."""

    INVALID_ARG, NOT_FOUND, UNAVAILABLE, INTERNAL = "INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "INTERNAL"

    def __init__(self, message: str, code: str):
        super().__init__(message)
        self.code = code


class Response:
    """Output tensors by name, or an error."""

    def __init__(self, output_tensors: list[Tensor] = (), error: TritonError | None = None):
        self.tensors = {tensor.name: tensor for tensor in output_tensors}
        self.error = error

    def __getitem__(self, name: str) -> np.ndarray:
        return self.tensors[name].values


class Request:
    """A request of Triton's."""

    def __init__(
        self,
        tensors: dict[str, np.ndarray | Tensor],
        parameters: str = "{}",
        flags: int = 0,
        correlation_id: str | int = "a",
    ):
        self.tensors = {
            name: found if isinstance(found, Tensor) else Tensor.of(name, found) for name, found in tensors.items()
        }
        self.parameters, self.flags = (lambda: parameters), (lambda: flags)
        self.correlation_id = lambda: correlation_id
        self.request_id = lambda: ""


class MetricFamily:
    """Counts nothing."""

    COUNTER, GAUGE = "COUNTER", "GAUGE"

    def __init__(self, name: str, description: str, kind: str):
        pass

    def Metric(self, labels: dict) -> types.SimpleNamespace:  # noqa: N802
        return types.SimpleNamespace(increment=lambda value: None, set=lambda value: None)


@contextmanager
def triton_module(monkeypatch) -> Iterator[types.ModuleType]:
    """`penstock.serving.triton_io` on top of the stand-in."""
    stub = types.SimpleNamespace(
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=Response,
        MetricFamily=MetricFamily,
        get_input_tensor_by_name=lambda request, name: request.tensors.get(name),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub)
    monkeypatch.delitem(sys.modules, "penstock.serving.triton_io", raising=False)
    with kept_logging():
        yield importlib.import_module("penstock.serving.triton_io")
    sys.modules.pop("penstock.serving.triton_io", None)


def load_adapter(repository: Path, name: str) -> Any:
    """The adapter of a model, initialized as Triton does it; within `triton_module`."""
    path = repository / name / "1" / "model.py"
    spec = importlib.util.spec_from_file_location(f"adapter_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    adapter = module.TritonPythonModel()
    config = {"name": name, "max_batch_size": 64, "instance_group": [{"count": 1, "kind": "KIND_MODEL", "gpus": []}]}
    adapter.initialize({"model_config": json.dumps(config)})
    return adapter
