"""What the random tests of protocols share."""

import logging
import os

import pytest

from gateway.tests.helpers.fake_streams import FakeStreams
from penstock_gateway.stream.options import upstream_options

NIGHTLY_MESSAGES = int(os.environ.get("PENSTOCK_RANDOM_MESSAGES", "10000"))
"""Cases of the long random tests of a protocol; 100,000 take up to 25 minutes (CONTRIBUTING.md)."""


class CheckedStreams(FakeStreams):
    """Also rejects the options that the server's client rejects."""

    async def open(self, options, key, protocol):
        """As `FakeStreams.open`."""
        upstream_options(options, None).parameters()
        return await super().open(options, key, protocol)


def check_log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """No error and no traceback has been logged."""
    assert not [record for record in caplog.records if record.levelno > logging.WARNING or record.exc_info]
    assert "Traceback" not in capfd.readouterr().err
