"""One file from which a run goes on as if it had not been interrupted.

A file is a header of 56 bytes and a payload. The header holds a mark that is not text, the schema version, the
length of the payload and a SHA-256 over all of it; this layout is the same in every schema version. The payload is
what ``torch.save`` makes of tensors and plain values, and is read with ``weights_only=True``: a file can be wrong,
but it cannot run anything.
"""

import hashlib
import io
import os
import pickle
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from dasgrad import atomic
from dasgrad.training import generators
from dasgrad.training.loader import AdaptiveLoader

SCHEMA_VERSION = 1
MAGIC = b"\x93dasgrad\r\n\x1a\n"
HEADER = struct.Struct("<12sIQ32s")  # mark, schema version, length of the payload, digest
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError)


@runtime_checkable
class Stateful(Protocol):
    """Anything with a state: a module, an optimizer, a scheduler, a scaler, a loader, a sampler."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take over a state."""


def save_checkpoint(
    path: str | os.PathLike[str], /, *, extra: Mapping[str, Any] | None = None, **parts: Stateful
) -> None:
    """Save a run: its parts, by names of your choice, and the global generators.

    The generators are those of torch (CPU, and CUDA where it is in use), numpy (the legacy global one) and Python.
    The file takes the place of an older one in one step: a kill at any moment or a full disk leaves the old file or
    the new one, whole. Gradients are no part of any state: save between steps.

    Args:
        path: the file; its folder is made if it is missing.
        extra: what else to keep; tensors and plain values (numbers, strings, None, lists, tuples, dicts, sets).
        **parts: objects with ``state_dict`` and ``load_state_dict``: model, optimizer, schedulers, ``GradScaler``,
            `AdaptiveLoader` (with its sampler, its position and its draws in flight), …

    Raises:
        TypeError: for a part without these methods; for a state or an extra that holds something else than tensors
            and plain values, by name.
        OSError: when the file cannot be written; an older one stays.

    Example:
        >>> import dasgrad, tempfile, torch
        >>> model = torch.nn.Linear(2, 1)
        >>> file = tempfile.mkdtemp() + "/run.pt"
        >>> dasgrad.save_checkpoint(file, model=model, extra={"pass": 3})
        >>> dasgrad.load_checkpoint(file, model=model)
        {'pass': 3}
    """
    _check_parts("save_checkpoint", parts)
    if not isinstance(extra, Mapping | None):
        raise TypeError(f"`save_checkpoint(extra=...)` must be a mapping or None, got {type(extra).__name__}.")
    content = {
        "parts": {name: _as_plain(part.state_dict(), name) for name, part in parts.items()},
        "extra": _as_plain(dict(extra or {}), "extra"),
        "generators": generators.get_states(),
    }
    with atomic.replacing(path) as file:
        file.write(bytes(HEADER.size))
        payload = _Payload(file)
        torch.save(content, cast(IO[bytes], payload))
        if payload.error is not None:
            raise payload.error
        file.seek(0)
        file.write(_make_header(payload))


def load_checkpoint(path: str | os.PathLike[str], /, **parts: Stateful) -> dict[str, Any]:
    """Restore what `save_checkpoint` saved, all or nothing, and return its ``extra``.

    Build the parts as they were built for the run that was saved and give them by the same names. The next
    ``iter(loader)`` goes on in the middle of the pass. When the file or any part refuses, parts and generators are
    as they were before the call. Tensors go to the devices of the parts; memory of the CPU must hold the content of
    the file and a copy of the parts' present state.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: naming file and reason, when it is no checkpoint, is damaged or cut short, has another schema
            version, or holds something else than tensors and plain values; naming the parts, when they are not
            those that were saved.
        TypeError: for a part without ``state_dict`` and ``load_state_dict``.

    Whatever a part's ``load_state_dict`` raises comes with a note that names part and file.
    """
    _check_parts("load_checkpoint", parts)
    content = _read(Path(path))
    states = content["parts"]
    for what, names in (("not given", states.keys() - parts), ("not in the file", parts.keys() - states)):
        if names:
            shown = ", ".join(repr(name) for name in sorted(names))
            raise ValueError(f"`load_checkpoint`: {path} has {_listed(states)}, got {_listed(parts)}: {shown} {what}.")
    # Loaders come last. Each of them takes a state as a whole or not at all, and a pass that is going on would not
    # outlive being restored; everything that may refuse should have done so by then.
    last = [name for name, part in parts.items() if isinstance(part, AdaptiveLoader)]
    with ExitStack() as undo:
        for name in (name for name in parts if name not in last):
            _load_part(path, name, parts[name], states[name], undo)
        undo.callback(generators.set_states, generators.get_states())
        with _naming(path, "generators"):
            generators.set_states(content["generators"])
        for name in last:
            _load_part(path, name, parts[name], states[name], undo if name != last[-1] else None)
        undo.pop_all()
    extra: dict[str, Any] = content["extra"]
    return extra


def _load_part(path: str | os.PathLike[str], name: str, part: Stateful, state: Any, undo: ExitStack | None) -> None:
    if undo is not None:
        undo.callback(_put, part, _as_plain(part.state_dict(), name, copy=True))
    with _naming(path, f"part {name!r}"):
        _put(part, state)


def _put(part: Stateful, state: Any) -> None:
    """Load a state whose tensors are on the CPU."""
    if isinstance(part, Optimizer):  # torch moves an optimizer's state, but no tensor among its options (lr)
        homes = [{k: v.device for k, v in group.items() if isinstance(v, Tensor)} for group in part.param_groups]
        part.load_state_dict(state)
        for group, devices in zip(part.param_groups, homes, strict=True):
            group.update({k: group[k].to(d) for k, d in devices.items() if isinstance(group.get(k), Tensor)})
    else:
        part.load_state_dict(state)


@contextmanager
def _naming(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    with ExitStack() as stack:
        stack.push(lambda _, error, __: error and error.add_note(f"`load_checkpoint`: {what} of {path}"))
        yield


def _check_parts(function: str, parts: Mapping[str, object]) -> None:
    for name, part in parts.items():
        if not isinstance(part, Stateful):
            raise TypeError(
                f"`{function}({name}=...)` must have `state_dict` and `load_state_dict`, got {type(part).__name__}."
            )


def _listed(names: Mapping[str, Any]) -> str:
    return f"the parts {', '.join(map(repr, names))}" if names else "no parts"


# --- content ------------------------------------------------------------------------------------------


def _as_plain(value: Any, where: str, *, copy: bool = False) -> Any:
    """The value as it can be saved: tensors without graph and without the rest of a larger storage.

    ``copy`` makes tensors that stay what they are when the originals change, on the CPU.

    Raises:
        TypeError: naming where, for what is neither tensor nor plain.
    """
    if isinstance(value, Tensor):
        tensor = value.detach()
        if type(tensor) is not Tensor:
            raise TypeError(f"A checkpoint holds plain tensors alone: {where} is a {type(value).__name__}.")
        if copy:
            return tensor.to("cpu", copy=True)
        whole = tensor.layout != torch.strided or tensor.untyped_storage().nbytes() == tensor.nbytes
        return tensor if whole else tensor.clone()
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple, set):
        return type(value)(_as_plain(item, f"{where}[{k}]", copy=copy) for k, item in enumerate(value))
    if isinstance(value, dict):
        kind = next((kind for kind in (OrderedDict, Counter) if isinstance(value, kind)), dict)
        plain: Any = kind()
        for key, item in value.items():
            plain[_as_plain(key, f"{where}: the key {key!r}")] = _as_plain(item, f"{where}[{key!r}]", copy=copy)
        if kind is OrderedDict and hasattr(value, "_metadata"):  # versions of modules, in a module's state dict
            plain._metadata = _as_plain(value._metadata, f"{where}._metadata")
        return plain
    raise TypeError(
        "A checkpoint holds tensors and plain values (numbers, strings, None, lists, tuples, dicts, sets): "
        f"{where} is a {type(value).__qualname__}."
    )


# --- file ---------------------------------------------------------------------------------------------


class _Payload:
    """Passes on what ``torch.save`` writes, counted and hashed.

    After an error it swallows the rest and keeps the error: torch's writer would turn it into one of its own.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.length = 0
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
            self.hash.update(data)
            self.length += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing: the file is flushed once, at the end."""


def _make_header(payload: _Payload, version: int = SCHEMA_VERSION) -> bytes:
    return HEADER.pack(MAGIC, version, payload.length, _digest(payload.hash, version, payload.length))


def _digest(payload_hash: Any, version: int, length: int) -> bytes:
    """SHA-256 over payload, version and length."""
    whole = payload_hash.copy()
    whole.update(HEADER.pack(MAGIC, version, length, bytes(32)))
    digest: bytes = whole.digest()
    return digest


def _read(path: Path) -> dict[str, Any]:
    """The content of a file that is what it should be.

    Raises:
        ValueError: naming file and reason.
    """
    with open(path, "rb") as file:
        _check_header(path, file)
        file.seek(HEADER.size)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except UNREADABLE as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(
                f"{path}: its content is not made of tensors and plain values alone and was not loaded ({reason})."
            ) from error
    names = ("parts", "extra", "generators")
    if not isinstance(content, dict) or not all(isinstance(content.get(name), dict) for name in names):
        raise ValueError(f"{path}: holds no {', '.join(names)}, as a checkpoint of dasgrad does.")
    return content


def _check_header(path: Path, file: io.BufferedReader) -> None:
    header = file.read(HEADER.size)
    if not header.startswith(MAGIC[: max(len(header), 1)]):
        what = "is empty" if not header else "is not a checkpoint of dasgrad (it does not begin like one)"
        raise ValueError(f"{path}: {what}.")
    if len(header) < HEADER.size:
        raise ValueError(f"{path}: is cut short: {len(header)} bytes, less than a header.")
    _, version, length, digest = HEADER.unpack(header)
    found = os.fstat(file.fileno()).st_size - HEADER.size
    if found != length:
        what = "is cut short" if found < length else "has something behind its end"
        raise ValueError(f"{path}: {what}: its header announces {length} bytes, {found} follow.")
    if _digest(hashlib.file_digest(file, "sha256"), version, length) != digest:
        raise ValueError(f"{path}: is damaged: its content does not have the checksum that was saved with it.")
    if version != SCHEMA_VERSION:
        what = "a newer dasgrad wrote it" if version > SCHEMA_VERSION else "it is too old"
        raise ValueError(f"{path}: has schema version {version}, this dasgrad reads version {SCHEMA_VERSION}: {what}.")
