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

from tests.helpers.model_logging import kept_logging

START, END = 1, 2


class Tensor:
    """A tensor of Triton's, on the host."""

    def __init__(self, name: str, values: np.ndarray):
        self.name, self._values = name, values

    def as_numpy(self) -> np.ndarray:
        return self._values

    def is_cpu(self) -> bool:
        return True


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
        return self.tensors[name].as_numpy()


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
            name: found if isinstance(found, Tensor) else Tensor(name, found) for name, found in tensors.items()
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
