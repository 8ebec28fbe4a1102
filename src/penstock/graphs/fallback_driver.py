"""A driver that may fail where another would not. Knows neither."""

import logging

from penstock.graphs.driver import Driver, Runner
from penstock.graphs.program import Program

CAPTURE_ERRORS = (RuntimeError, OSError, AttributeError, TypeError)
"""What drivers and bindings raise (a `GraphError` is a RuntimeError): a call that fails, a library that is missing, an
interface of another version."""

_log = logging.getLogger(__name__)


class FallbackDriver:
    """Prepares programs with `first`, and from its first failure on with `second`."""

    def __init__(self, first: Driver, second: Driver):
        self._driver = first
        self._second = second

    @property
    def name(self) -> str:
        """Of the one that prepares programs now."""
        return self._driver.name

    def prepare(self, program: Program) -> Runner:
        """See Driver. What the second one raises is raised."""
        try:
            return self._driver.prepare(program)
        except CAPTURE_ERRORS as error:
            if self._driver is self._second:
                raise
            _log.warning(
                "decoder: driver `%s` failed, so `%s` goes on: %s", self.name, self._second.name, error, exc_info=True
            )
            self._driver = self._second
        return self._driver.prepare(program)
