"""Progress of long work: a bar where the user asked for one, or the user's own callback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = bool | Callable[[int, int], None]
"""False for silence, True for a bar on standard error, or a function of (done, total)."""


@contextmanager
def show_progress(
    progress: Progress, total: int, label: str, *, unit: str = "ex", done: int = 0
) -> Iterator[Callable[[int], None]]:
    """Yield a function to be called with the number of examples just done.

    ``unit`` is what is counted; ``"B"``, bytes, are shown as kB, MB and so on. ``done`` of them were done before.

    Raises:
        ImportError: when a bar is asked for and tqdm is not installed; the message has the command.
    """
    if progress is False:
        yield lambda _: None
    elif progress is True:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError(
                '`progress=True` needs tqdm: pip install tqdm, or pip install "dasgrad[experiments]".'
            ) from error
        options = {"unit": unit, "initial": done, "dynamic_ncols": True}
        if unit == "B":
            options |= {"unit_scale": True, "delay": 0.2}  # no bar for what ends before it has begun
        with tqdm(total=total, desc=label, **options) as bar:
            yield lambda count: bar.update(count) and None
    elif callable(progress):

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(done, total)

        yield advance
    else:
        raise TypeError(f"`progress` must be a bool or a function of (done, total), got {progress!r}.")
