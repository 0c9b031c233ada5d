"""Downloads that can be interrupted at any moment.

What has come so far stays in the file, so that the next attempt, in this process or another, asks for the rest. The
checksum decides when all is there: whatever went wrong on the way, a wrong file is removed and never used.
"""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import dasgrad
from dasgrad.experiments.datasets.model import ChecksumError, DataError, File, format_size
from dasgrad.progress import Progress, show_progress

CHUNK = 1 << 18
MAX_ATTEMPTS = 5
TIMEOUT_SECONDS = 30.0

pause = time.sleep


class DownloadError(DataError):
    """The place cannot be reached or does not answer well; what came so far is kept."""


class _BrokenError(Exception):
    """The connection ended before the content did; worth another attempt."""


class _BeyondError(Exception):
    """The part asked for begins where the content has ended."""


def download(url: str, path: Path, file: File, progress: Progress = False) -> None:
    """Bring ``file`` from ``url`` to ``path``, going on from what is there already.

    Raises:
        DownloadError: when the place cannot be reached; what came so far is kept.
        ChecksumError: when what came is not ``file``; it is removed.
        OSError: when it cannot be written; what came so far is kept.
    """
    resumed = _size(path) > 0
    try:
        _complete(url, path, file, progress)
    except ChecksumError:
        if not resumed:
            raise
        # What was left here may have been the wrong beginning: once more, from the start.
        _complete(url, path, file, progress)


def _complete(url: str, path: Path, file: File, progress: Progress) -> None:
    with show_progress(progress, file.size, file.name, unit="B", done=_size(path)) as advance:
        _persist(lambda: _transfer(url, path, file, advance), url, path, file)
    try:
        file.check_on_disk(path, url)
    except ChecksumError:
        path.unlink()
        raise


def _persist(transfer: Callable[[], None], url: str, path: Path, file: File) -> None:
    """Repeat a transfer that breaks off, for as long as more comes."""
    most, attempts = _size(path), 0
    while True:
        try:
            return transfer()
        except _BrokenError as error:
            most, attempts = max(most, _size(path)), 1 if _size(path) > most else attempts + 1
            if attempts == MAX_ATTEMPTS:
                came = f"{format_size(_size(path))} of {format_size(file.size)}"
                raise DownloadError(f"{url}: {error}, with {came} here; the rest comes next time") from error
            pause(0.5 * attempts)


def _transfer(url: str, path: Path, file: File, advance: Callable[[int], None]) -> None:
    """One request, for all that is missing."""
    start = _size(path)
    if start >= file.size > 0:
        return  # whether it is right, the checksum tells
    headers = {"User-Agent": f"dasgrad/{dasgrad.__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        opened = _open(urllib.request.Request(url, headers=headers))
    except _BeyondError as error:
        advance(-start)
        path.unlink()
        raise _BrokenError("less is offered than was here already") from error
    with opened as response:
        continues = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if not continues:
            advance(-start)  # the place sends all from the start
            start = 0
        length = response.headers.get("Content-Length")
        expected = start + int(length) if length is not None and length.isdigit() else None
        came = start
        with path.open("r+b" if path.exists() else "wb") as target:
            target.truncate(start)
            target.seek(start)
            while chunk := _read(response):
                target.write(chunk)
                advance(len(chunk))
                came += len(chunk)
                if came > file.size:
                    break  # another file; the checksum will say so
    if expected is not None and came < min(expected, file.size):
        raise _BrokenError("the connection ended early")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:
                raise _BeyondError from error
            raise DownloadError(f"{request.full_url}: answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise DownloadError(f"{request.full_url}: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"{request.full_url}: {error or type(error).__name__}") from error
    return response


def _read(response: http.client.HTTPResponse) -> bytes:
    """What has come by now, or the next that comes: waiting for a full chunk would lose it to a time-out or a kill.

    Errors of the network are told from those of the disk by being raised here.
    """
    try:
        return response.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(str(error) or type(error).__name__) from error
