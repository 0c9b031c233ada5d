"""What tests of ``refresh="auto"`` share."""

import pytest

from dasgrad.training import AutoRefresh


@pytest.fixture
def looks(monkeypatch):
    """Step, number of examples and findings of every look from here on."""
    noted, audit = [], AutoRefresh._audit

    def note(self, loader, step, number):
        found = audit(self, loader, step, number)
        noted.append((step, number, found))
        return found

    monkeypatch.setattr(AutoRefresh, "_audit", note)
    return noted
