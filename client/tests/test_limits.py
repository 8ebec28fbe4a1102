"""Time limits of the client's engine have one home. Attributes of classes: gateway/tests/test_layers.py."""

import re
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "penstock_client"
ENGINE = ("batched/*.py", "client.py", "connection.py", "stream.py")


def test_time_limits_are_in_one_module():
    constant = re.compile(r"^_?[A-Z_]+_M?S = [\d.]", re.MULTILINE)
    paths = [path for pattern in ENGINE for path in SOURCES.glob(pattern)]
    assert len(paths) > 15 and constant.search((SOURCES / "limits.py").read_text(encoding="utf-8"))
    assert not [path.name for path in paths if constant.search(path.read_text(encoding="utf-8"))]
