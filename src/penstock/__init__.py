"""Penstock: streaming speech recognition with NeMo FastConformer Transducers.

Public names: `StreamingRecognizer`, `OfflineRecognizer`, `Stream`, `AudioRequest`, `StreamResult`, `Word`, `Token`,
`PenstockError`, `StreamError`, `CheckpointError`, `AudioError`. They are imported when first used, so that `import
penstock` is cheap.
"""

import importlib

from penstock.version import __version__

_HOMES = {
    "StreamingRecognizer": "penstock.recognizer",
    "OfflineRecognizer": "penstock.transcription.offline",
    "Stream": "penstock.recognizer",
    "AudioRequest": "penstock.pipeline.stages.audio_rows",
    "StreamResult": "penstock.pipeline.results.results",
    "Word": "penstock.pipeline.results.words",
    "Token": "penstock.pipeline.results.words",
    "PenstockError": "penstock.errors",
    "StreamError": "penstock.errors",
    "CheckpointError": "penstock.errors",
    "AudioError": "penstock.errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
