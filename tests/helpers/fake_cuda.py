"""Replaces cuda-bindings where there is none: every call succeeds unless a test makes it fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from penstock.graphs import cuda_calls

SUCCESS = SimpleNamespace(value=0, name="SUCCESS")
_ACTIVE = SimpleNamespace(name="ACTIVE")


class FakeCuda:
    """Answers as cuda-bindings does, with a tuple that begins with a code; `calls` lists the calls."""

    def __init__(self):
        self.calls: list[str] = []
        self.fails: str | None = None
        self.is_capturing = True
        self.answers = {
            "cuDriverGetVersion": (13000,),
            "nvrtcVersion": (13, 0),
            "nvrtcCreateProgram": ("program",),
            "nvrtcGetPTXSize": (16,),
            "cuModuleLoadData": ("module",),
            "cuModuleGetFunction": ("kernel",),
            "cuStreamEndCapture": ("graph",),
            "cuGraphAddNode": ("node",),
            "cuCtxGetCurrent": ("context",),
            "cuGraphConditionalHandleCreate": (7,),
            "cuGraphInstantiate": ("executable",),
        }

    @contextmanager
    def installed(self) -> Iterator["FakeCuda"]:
        """Puts it in the place of cuda-bindings."""
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(cuda_calls, "IMPORT_ERROR", None)
            monkeypatch.setattr(cuda_calls, "driver", _Module(self, "cu"), raising=False)
            monkeypatch.setattr(cuda_calls, "nvrtc", _Module(self, "nvrtc"), raising=False)
            yield self

    def call(self, name: str) -> tuple:
        self.calls.append(name)
        if name == self.fails:
            return (SimpleNamespace(value=1, name=f"ERROR_OF_{name}"), *self.answers.get(name, ()))
        if name == "cuStreamGetCaptureInfo":
            status = _ACTIVE if self.is_capturing else SimpleNamespace(name="INVALIDATED")
            return SUCCESS, status, 1, "graph", ["last"], None, 1
        return (SUCCESS, *self.answers.get(name, ()))


class _Module:
    def __init__(self, cuda: FakeCuda, prefix: str):
        self._cuda, self._prefix = cuda, prefix

    def __getattr__(self, name: str):
        if name == "CUstreamCaptureStatus":
            return SimpleNamespace(CU_STREAM_CAPTURE_STATUS_ACTIVE=_ACTIVE)
        if name == "CUstreamUpdateCaptureDependencies_flags":
            return SimpleNamespace(CU_STREAM_SET_CAPTURE_DEPENDENCIES=1)
        if name == "CUgraphNodeParams":
            return lambda: SimpleNamespace(conditional=SimpleNamespace(phGraph_out=["body"]))
        if name.startswith("CU"):
            return SimpleNamespace(
                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1, CU_GRAPH_NODE_TYPE_CONDITIONAL=13, CU_GRAPH_COND_TYPE_WHILE=1
            )
        if not name.startswith(self._prefix) or name.endswith("_v2"):
            raise AttributeError(name)
        return lambda *arguments: self._cuda.call(name)
