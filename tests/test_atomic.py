"""Files that appear whole or not at all; faults and kills are tested with checkpoints, which use them."""

import os

import pytest

from dasgrad import atomic


def test_a_crash_before_the_move_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    atomic.write(path, b"old")

    def crash(source: object, target: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        atomic.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_content_is_synced_before_it_is_moved(tmp_path, monkeypatch):
    calls: list[str] = []
    sync, move = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("sync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("move"), move(a, b)))
    atomic.write(tmp_path / "file", b"content")
    assert calls == ["sync", "move", "sync"]  # the file, then the folder that names it
    assert (tmp_path / "file").read_bytes() == b"content"
