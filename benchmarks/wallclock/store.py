"""Finished runs on disk, one JSON object a line, so that a killed measurement goes on where it was."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Key = Mapping[str, Any]


class Store:
    """What was measured, by the configuration it was measured with.

    A line that was cut short when the process was killed is dropped from the file.

    Args:
        path: made with the first record.

    Raises:
        ValueError: for a file that holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[str, Any] = {}
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                record = json.loads(line)
                self._found[_name(record["key"])] = record["value"]
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}, line {number}: not a run of this benchmark.") from error
        if whole < len(content):
            os.truncate(path, whole)

    def find(self, key: Key) -> Any:
        """The value of that configuration, or None."""
        return self._found.get(_name(key))

    def add(self, key: Key, value: Any) -> None:
        """Write a value to disk before anything else is done."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf8") as file:
            file.write(json.dumps({"key": dict(key), "value": value}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._found[_name(key)] = value

    def __len__(self) -> int:
        return len(self._found)


def _name(key: Key) -> str:
    return json.dumps(dict(key), sort_keys=True)
