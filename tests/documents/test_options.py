"""Every declared option is named by a test."""

import re
import subprocess
from pathlib import Path

from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.serving.settings import ServeOptions
from penstock_common.options import StreamOptions
from penstock_gateway.config import Config

ROOT = Path(__file__).parents[2]
BY_OTHER_NAMES = {"wfst_lm_weight", "metrics_listen"}
"""Tests of the search and of listeners give these values without the option."""


def test_every_option_is_named_by_a_test():
    command = ["git", "grep", "-hEo", "[A-Za-z_][A-Za-z0-9_-]+", "--", "*/test_*.py", "tests/helpers", "trials"]
    words = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set(re.split(r"\s+", words.replace("-", "_").lower()))
    options = [option for owner in (ServeOptions, DecodingConfig, StreamOptions, Config) for option in owner.options()]
    missing = {o.name for o in options if not {o.name, f"penstock_{o.name}", f"penstock_gateway_{o.name}"} & named}
    assert missing <= BY_OTHER_NAMES, f"{missing - BY_OTHER_NAMES}: a new option needs a test, and CHANGELOG.md a line"
