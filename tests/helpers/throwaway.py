"""A model repository with one small model `asr` that loads quickly."""

from pathlib import Path

CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "AUDIO", data_type: TYPE_FP32, dims: [ -1 ], allow_ragged_batch: true } ]
output [
  { name: "TEXT", data_type: TYPE_STRING, dims: [ 1 ] },
  { name: "IS_FINAL", data_type: TYPE_BOOL, dims: [ 1 ] }
]
sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 8 } }
instance_group [ { count: 1, kind: KIND_MODEL } ]
"""

MODEL = """
import json, os, sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        if os.environ.get("PENSTOCK_MAX_STREAMS") == "13":
            raise ValueError('13 is "unlucky"')
        import penstock
        from penstock.serving import triton_io
        self._output = triton_io.array_output
        names = ("PENSTOCK_RUNTIME_DIR", "PENSTOCK_MODEL", "OMP_NUM_THREADS")
        about = {name: os.environ.get(name) for name in names}
        about |= {"penstock": penstock.__file__, "prefix": sys.prefix, "directory": os.getcwd()}
        self._about = json.dumps(about).encode()

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([
                self._output("TEXT", np.array([[self._about]], dtype=np.object_)),
                self._output("IS_FINAL", np.array([[bool(request.flags() & 2)]])),
            ])
            for request in requests
        ]
"""


def write_repository(directory: Path) -> Path:
    """Writes the repository into `directory` and returns it."""
    (directory / "asr" / "1").mkdir(parents=True)
    (directory / "asr" / "config.pbtxt").write_text(CONFIG)
    (directory / "asr" / "1" / "model.py").write_text(MODEL)
    return directory
