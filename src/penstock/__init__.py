"""Penstock: streaming speech recognition with NeMo FastConformer Transducers.

The public names are imported when first used, so that `import penstock` is cheap.
"""

import importlib
from typing import TYPE_CHECKING

from penstock.version import __version__ as __version__

if TYPE_CHECKING:
    from penstock.errors import AudioError as AudioError
    from penstock.errors import CheckpointError as CheckpointError
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import SettingError as SettingError
    from penstock.errors import StreamError as StreamError
    from penstock.pipeline.options.decoding_config import DecodingConfig as DecodingConfig
    from penstock.pipeline.results.results import StreamResult as StreamResult
    from penstock.pipeline.results.words import Token as Token
    from penstock.pipeline.results.words import Word as Word
    from penstock.pipeline.stages.audio_rows import AudioRequest as AudioRequest
    from penstock.recognizer import Stream as Stream
    from penstock.recognizer import StreamingRecognizer as StreamingRecognizer
    from penstock.transcription.offline import OfflineRecognizer as OfflineRecognizer
else:
    _HOMES = {
        "StreamingRecognizer": "penstock.recognizer",
        "OfflineRecognizer": "penstock.transcription.offline",
        "Stream": "penstock.recognizer",
        "AudioRequest": "penstock.pipeline.stages.audio_rows",
        "DecodingConfig": "penstock.pipeline.options.decoding_config",
        "StreamResult": "penstock.pipeline.results.results",
        "Word": "penstock.pipeline.results.words",
        "Token": "penstock.pipeline.results.words",
        "PenstockError": "penstock.errors",
        "StreamError": "penstock.errors",
        "CheckpointError": "penstock.errors",
        "AudioError": "penstock.errors",
        "SettingError": "penstock.errors",
    }

    __all__ = ["__version__", *_HOMES]

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted(__all__)
