"""Files that appear whole or not at all.

The content goes to a temporary file in the same folder, is synced to the disk and takes the place of the old file
in one step. The writer holds a lock on its temporary file, and locks end with their process: a temporary file that
nobody has locked was left by a writer that was killed, and the next writer removes it.
"""

import errno
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file, open for writing, that becomes ``path`` when the block ends without an error.

    A kill, a crash or an error at any moment leaves the old file or the new one, never a part. The folder is made
    if it is missing; a link is followed. Without locks and folders that can be synced (Windows) files left by
    killed writers stay.

    Raises:
        OSError: when the disk is full or the folder cannot be written to; the old file stays.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path)
    with ExitStack() as failed:
        temporary, file = _open_temporary(path)
        failed.callback(temporary.unlink, missing_ok=True)
        failed.enter_context(file)
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.replace(temporary, path)
        failed.pop_all()
    with file:  # the lock is held until the file has its name, so that nobody takes it for abandoned
        _sync_folder(path.parent)


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Make ``content`` the whole of the file at ``path``; see `replacing`."""
    with replacing(path) as file:
        file.write(content)


def _open_temporary(path: Path) -> tuple[Path, IO[bytes]]:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        file = os.fdopen(os.open(temporary, flags, 0o666), "wb")
        if _lock(file, without_locks=True) and os.fstat(file.fileno()).st_nlink > 0:
            return temporary, file
        file.close()  # another writer found it in the instant before it was locked, and removes it


def remove_abandoned(path: Path) -> None:
    """Remove what writers of ``path`` that were killed have left beside it."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    for temporary in path.parent.iterdir():
        if pattern.fullmatch(temporary.name):
            with suppress(FileNotFoundError, PermissionError), open(temporary, "rb") as file:
                if _lock(file, without_locks=False):
                    temporary.unlink()


def _lock(file: IO[bytes], *, without_locks: bool) -> bool:
    """Whether nobody else has locked the file, which it is from now on until it is closed.

    ``without_locks`` is the answer where system or file system have none.
    """
    if sys.platform == "win32":
        return without_locks
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
        return without_locks
    return True


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power failure."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
