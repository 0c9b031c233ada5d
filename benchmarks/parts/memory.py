"""Peak memory of a method on one chunk, in a process of its own: ``python -m benchmarks.parts.memory KEY METHOD SIZE``.

The process builds the problem, lets the method see two examples so that libraries are loaded, resets its high-water
mark, and lets it see the chunk. What the mark then says above what the process held before is what the method takes.
"""

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

import torch

import benchmarks
from benchmarks.parts import methods, peers, problems

NUM_THREADS = 2
SLACK_BYTES = 2**22


def resident_bytes(field: str) -> int:
    """``VmRSS``, what is held now, or ``VmHWM``, the most there was since the last reset."""
    status = Path("/proc/self/status").read_text(encoding="utf8")
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def reset_peak() -> None:
    """Give freed memory back, so that it does not hide what is taken next, and set the high-water mark to what is held.

    Raises:
        RuntimeError: where the kernel does not, since the mark would then be that of the whole life of the process.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf8")
    if resident_bytes("VmHWM") > resident_bytes("VmRSS") + SLACK_BYTES:
        raise RuntimeError("writing to clear_refs did not reset the high-water mark of this process.")


def build_method(problem: problems.Problem, name: str) -> methods.Method:
    """A method by its name in results."""
    if name == methods.PLAIN:
        return methods.forward_and_backward(problem)
    if name in methods.SCORERS:
        return methods.scores(problem, name)
    return peers.PEERS[name](problem)


def measure_here(key: str, name: str, chunk_size: int) -> int:
    """Bytes above those held before the chunk."""
    torch.set_num_threads(NUM_THREADS)
    problem = problems.build(key, max(chunk_size, problems.BATCH_SIZE))
    method = build_method(problem, name)
    method(problem.inputs[:2], problem.targets[:2])
    reset_peak()
    before = resident_bytes("VmRSS")
    method(problem.inputs[:chunk_size], problem.targets[:chunk_size])
    return resident_bytes("VmHWM") - before


def measure(key: str, name: str, chunk_size: int) -> int:
    """The same in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-m", __name__, key, name, str(chunk_size)]
    root = Path(benchmarks.__path__[0]).parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"peak memory of {name} on {key}: {done.stderr.strip() or 'killed'}")
    num_bytes: int = json.loads(done.stdout.splitlines()[-1])
    return num_bytes


if __name__ == "__main__":
    print(json.dumps(measure_here(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
