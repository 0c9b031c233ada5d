"""What several files of tests ask for."""

import pytest

from dasgrad.scoring import shortcut


@pytest.fixture
def small_layers(monkeypatch):
    """Layers go through the core however small, where torch is faster."""
    for name in ("_LEAST", "_LEAST_RAGGED"):
        monkeypatch.setattr(shortcut, name, 0)
