"""Fixtures of the tests of int8."""

import pytest

from penstock import linear
from penstock.encoder.int8 import activation_bits


@pytest.fixture
def converts_all(monkeypatch):
    """The products of small models, too."""
    monkeypatch.setattr(linear, "MIN_PACKED_NUMBERS", 0)


@pytest.fixture
def other_operators(monkeypatch):
    activation_bits.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    activation_bits.cache_clear()
