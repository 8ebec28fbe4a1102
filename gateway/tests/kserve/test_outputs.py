"""The gateway's table of outputs is that of the server, and speakers."""

import re
from pathlib import Path

from penstock_gateway.kserve.outputs import DATATYPES

CONFIG = Path(__file__).parents[3] / "model_repository" / "asr" / "config.pbtxt"


def test_the_outputs_are_those_of_asr():
    _, _, outputs = CONFIG.read_text(encoding="utf-8").partition("output [")
    found = re.findall(r'name: "(\w+)", data_type: TYPE_(\w+)', outputs)
    of_server = [(name, kind.replace("STRING", "BYTES")) for name, kind in found]
    assert list(DATATYPES.items()) == [*of_server, ("WORD_SPEAKER", "INT32")]
