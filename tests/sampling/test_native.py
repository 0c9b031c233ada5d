"""The C++ core: the same bits as torch operations, no access out of bounds, threads, forks, and its absence."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dasgrad
from dasgrad import shared_library
from dasgrad.sampling import SegmentTree, native

SOURCE = Path(__file__).parents[2] / "src/dasgrad/sampling/native/segment_tree.cpp"
DRIVER = Path(__file__).with_name("native_driver.cpp")
needs_native = pytest.mark.skipif(not native.available(), reason="the package was built without its native core")
LARGEST, TINIEST = sys.float_info.max, 5e-324

masses = st.one_of(
    st.sampled_from([0.0, -0.0, TINIEST, 1e-310, 1.0, 1e300, LARGEST / 4, LARGEST]),
    st.floats(0.0, 1.0),
    st.floats(0.0, LARGEST, allow_subnormal=True),
)


def in_torch(make):
    """Call `make` while no native core is to be had."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_library", None)
        return make()


def both(make):
    """The same thing on both cores."""
    return make(), in_torch(make)


def assert_same_bits(first, second):
    assert torch.equal(first.view(torch.int64), second.view(torch.int64))


def assert_same_trees(first, second):
    assert first.compiled is not None
    assert second.compiled is None
    assert_same_bits(torch.cat(first._levels), torch.cat(second._levels))
    assert repr(first) == repr(second)


def attempt(call, *arguments):
    """What a call returns, or the error it raises, in words."""
    try:
        return call(*arguments)
    except ValueError as error:
        return str(error)


@needs_native
@given(st.integers(1, 70), st.data())
def test_any_sequence_of_calls_leaves_the_same_bits_on_both_cores(size, data):
    trees = both(lambda: SegmentTree(torch.zeros(size)))
    for _ in range(data.draw(st.integers(1, 10))):
        if data.draw(st.integers(0, 3)) == 0:
            values = data.draw(st.lists(masses, min_size=size, max_size=size))
            outcomes = [attempt(tree.rebuild, values) for tree in trees]
        else:
            changes = data.draw(st.lists(st.tuples(st.integers(0, size - 1), masses), max_size=2 * size))
            indices, values = [i for i, _ in changes], [m for _, m in changes]
            outcomes = [attempt(tree.update, indices, values) for tree in trees]
        assert outcomes[0] == outcomes[1]
        assert_same_trees(*trees)
        if trees[0].total > 0:
            fractions = data.draw(st.lists(st.floats(0.0, 1.0), max_size=10))
            total = float(trees[0].total)
            prefixes = [0.0, total, *(min(f * total, total) for f in fractions)]
            assert trees[0].find(prefixes).tolist() == trees[1].find(prefixes).tolist()


# Sizes around those at which the core reads one level more, and the end of a level falls inside its groups of eight.
@needs_native
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 65_535, 65_536, 65_537, 131_073, 300_001, 10**6 + 3])
def test_large_trees_and_their_draws_are_the_same_on_both_cores(size):
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=generator, dtype=torch.float64).mul_(4).exp_()
    values *= torch.rand(size, generator=generator) < 0.5
    values[-1] = 3.0
    trees = both(lambda: SegmentTree(values))
    for num in (1, 5, 300, size):  # the last one updates about every leaf at once
        indices = torch.randint(size, (num,), generator=generator)
        changes = torch.rand(num, generator=generator, dtype=torch.float64)
        for tree in trees:
            tree.update(indices, changes)
        assert_same_trees(*trees)
        draws = [tree.sample(1000, generator=torch.Generator().manual_seed(num)) for tree in trees]
        assert torch.equal(draws[0][0], draws[1][0])
        assert_same_bits(draws[0][1], draws[1][1])
        ends = trees[0].masses.cumsum(0).clamp_(max=float(trees[0].total))
        assert torch.equal(trees[0].find(ends), trees[1].find(ends))


@needs_native
@pytest.mark.parametrize("stratified", ["none", "batch", "pass"])
@pytest.mark.parametrize("floor", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000, 100_001])
def test_a_sampler_draws_the_same_on_both_cores(size, targeted, floor, stratified):
    generator = torch.Generator().manual_seed(size)
    target = None
    if targeted:
        target = torch.rand(size, generator=generator, dtype=torch.float64) + 0.01
        target[: size // 3] = 0
        target /= target.sum()
    options = {"target": target, "floor": floor, "epsilon": 0.01, "stratified": stratified, "seed": 3}
    samplers = both(lambda: dasgrad.AdaptiveSampler(size, 700, **options))
    scores = torch.rand(size, generator=generator, dtype=torch.float64).pow_(8)

    def compare():
        for num in (0, 1, 255, 256, 257, 700):
            (indices, weights), (expected_indices, expected_weights) = [sampler.draw(num) for sampler in samplers]
            assert torch.equal(indices, expected_indices)
            assert_same_bits(weights, expected_weights)
        edges = torch.tensor([0.0, floor, floor / 2, 1.0, 1 - 2**-53], dtype=torch.float64)
        located = [sampler._locate(edges) for sampler in samplers]
        assert torch.equal(located[0][0], located[1][0])
        assert_same_bits(located[0][1], located[1][1])

    compare()  # before the first refresh: the target alone
    for sampler in samplers:
        sampler.refresh(scores)
    compare()
    for sampler in samplers:
        sampler.update([0, size - 1, 0], [5.0, 2.0, 7.0])
    compare()


@needs_native
def test_strided_arguments_are_read_as_they_are():
    trees = both(lambda: SegmentTree(torch.arange(100)))
    indices, values = torch.arange(100).reshape(50, 2)[:, 1], torch.rand(150, dtype=torch.float64)[::3]
    prefixes = torch.rand(20, 30, dtype=torch.float64).mul_(20).mT
    for tree in trees:
        tree.update(indices, values)
    assert_same_trees(*trees)
    assert torch.equal(trees[0].find(prefixes), trees[1].find(prefixes))
    assert torch.equal(trees[0].find(prefixes.expand(2, 30, 20)), trees[1].find(prefixes.expand(2, 30, 20)))


@pytest.mark.usefixtures("core")
def test_another_default_device_changes_nothing():
    tree, generator = SegmentTree(torch.tensor([1.0, 2.0])), torch.Generator().manual_seed(0)
    with torch.device("meta"):
        indices, drawn = tree.sample(5, generator=generator)
        tree.update([1], [4.0])
        found = tree.find([0.5, 4.5])
    assert {indices.device.type, drawn.device.type, found.device.type} == {"cpu"}
    assert found.tolist() == [0, 1]


@pytest.mark.usefixtures("core")
def test_masses_that_are_views_with_a_sign_to_come_are_read_with_it():
    negated = torch.tensor([0.5 - 2.0j], dtype=torch.complex128).conj().imag
    assert negated.is_neg()
    tree = SegmentTree(negated)
    assert tree.masses.tolist() == [2.0]
    tree.update(torch.tensor([0]), negated * 2)
    assert tree.total.item() == 4.0
    with pytest.raises(ValueError, match=r"got -2\.0 at index 0"):
        tree.update(torch.tensor([0]), torch.tensor([0.5 + 2.0j], dtype=torch.complex128).conj().imag)


# -- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["for this machine", "portable"])
def test_the_source_is_clean_under_the_sanitizers(tmp_path, variant):
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("needs a C++ compiler, none is on the path")
    if not SOURCE.exists():
        pytest.skip("needs the source tree")
    program = tmp_path / "driver"
    sanitizers = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
    if subprocess.run(
        [compiler, *sanitizers, "-x", "c++", "-", "-o", str(program)], input="int main() {}", text=True, check=False
    ).returncode:
        pytest.skip("the compiler has no sanitizers")
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", *sanitizers]
    if variant == "portable":
        flags.append("-DDASGRAD_PORTABLE")
    subprocess.run([compiler, *flags, str(SOURCE), str(DRIVER), "-o", str(program)], check=True)
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("ok ")


@needs_native
def test_the_library_needs_neither_python_nor_torch():
    library = Path(native.__file__).with_name("segment_tree.core.so")
    content = library.read_bytes()
    assert b"Py_" not in content
    assert b"PyInit" not in content
    assert b"libtorch" not in content
    assert b"libpython" not in content


# -- threads and processes ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("core")
def test_threads_that_draw_and_update_one_tree_see_it_whole():
    """The total alternates between 2**20 and 2**21 with all masses, so a torn read has a wrong mass or prefix."""
    size = 2**16
    low, high = torch.full((size,), 16.0, dtype=torch.float64), torch.full((size,), 32.0, dtype=torch.float64)
    tree, everything = SegmentTree(low), torch.arange(size)
    errors, stop = [], threading.Event()

    def reading(seed):
        generator = torch.Generator().manual_seed(seed)
        try:
            while not stop.is_set():
                indices, drawn = tree.sample(64, generator=generator)
                assert bool((drawn == drawn[0]).all())
                assert bool((indices >= 0).all() & (indices < size).all())
                assert tree.total.item() in (2.0**20, 2.0**21)
                everywhere = tree.masses
                assert bool((everywhere == everywhere[0]).all())
        except Exception as error:  # noqa: BLE001 (a thread must hand over whatever went wrong)
            errors.append(error)

    readers = [threading.Thread(target=reading, args=(seed,)) for seed in range(2)]
    for reader in readers:
        reader.start()
    for step in range(40):
        values = high if step % 2 == 0 else low
        if step % 3 == 0:
            tree.rebuild(values)
        else:
            tree.update(everything, values)
    stop.set()
    for reader in readers:
        reader.join()
    assert not errors
    assert torch.equal(torch.cat(tree._levels), torch.cat(SegmentTree(tree.masses)._levels))


@pytest.mark.usefixtures("core")
def test_two_threads_that_update_lose_nothing():
    size = 5000
    tree = SegmentTree(torch.zeros(size))

    def write(parity):
        for index in range(parity, size, 2):
            tree.update([index], [index + 1.0])

    writers = [threading.Thread(target=write, args=(parity,)) for parity in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    expected = SegmentTree(torch.arange(1, size + 1))
    assert torch.equal(torch.cat(tree._levels), torch.cat(expected._levels))


FORK = """
import os, threading
import torch
from dasgrad.sampling import SegmentTree
torch.set_num_threads(1)
tree, everything = SegmentTree(torch.ones(2**16)), torch.arange(2**16)
expected = tree.sample(100, generator=torch.Generator().manual_seed(0))[0]
# The first call of an operation of torch registers its end under a lock of the C library that a fork leaves held. So
# every operation below is called once before there is a second thread.
assert torch.equal(expected, tree.sample(100, generator=torch.Generator().manual_seed(0))[0])
tree.update([0], [tree[0].item()])
stop, values = threading.Event(), torch.full((2**16,), 2.0, dtype=torch.float64)
def update(values):
    while not stop.is_set():
        tree.update(everything, values)
        values = 3.0 - values
tree.update(everything, 3.0 - values)
writer = threading.Thread(target=update, args=(values,))
writer.start()
codes = []
for _ in range(20):  # forked while the other thread is in the middle of an update, more often than not
    pid = os.fork()
    if pid == 0:
        same = torch.equal(tree.sample(100, generator=torch.Generator().manual_seed(0))[0], expected)
        tree.update([0], [100.0])
        os._exit(0 if same and tree[0].item() == 100.0 and tree.total.item() in (2**16 + 99, 2**17 + 98) else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stop.set()
writer.join()
print(codes.count(0), tree[0].item() in (1.0, 2.0))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("setting", ["1", "0"])
def test_a_forked_process_finds_its_parents_tree_whole_and_free(setting):
    environment = {**os.environ, "DASGRAD_NATIVE": setting}
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.stdout.split() == ["20", "True"], result.stderr


class DrawnInWorkers(torch.utils.data.Dataset):
    """Item i is what a tree made before the workers were forked draws with seed i."""

    def __init__(self, tree):
        self.tree = tree

    def __len__(self):
        return 6

    def __getitem__(self, seed):
        self.tree.update([seed], [0.0])  # the worker's own copy
        return self.tree.sample(50, generator=torch.Generator().manual_seed(seed))[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("core")
def test_forked_workers_use_their_parents_tree_and_leave_it_alone():
    size = 10**6  # large enough for large pages
    tree = SegmentTree(torch.arange(size))
    before = tree.masses
    loader = torch.utils.data.DataLoader(
        DrawnInWorkers(tree), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    for seed, drawn in enumerate(loader):
        expected = SegmentTree(before)
        expected.update(list(range(seed % 2, seed + 1, 2)), [0.0] * (seed // 2 + 1))
        assert torch.equal(drawn, expected.sample(50, generator=torch.Generator().manual_seed(seed))[0])
    assert torch.equal(tree.masses, before)


# -- its absence ---------------------------------------------------------------------------------------------------


def test_the_environment_turns_it_off():
    code = "from dasgrad.sampling import SegmentTree, native\nprint(native.available(), SegmentTree([1.0]).compiled)"
    environment = {**os.environ, "DASGRAD_NATIVE": "0"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "None"]


def test_a_library_that_does_not_load_is_as_good_as_none(tmp_path, monkeypatch):
    monkeypatch.delenv("DASGRAD_NATIVE", raising=False)
    assert shared_library.load(tmp_path, "segment_tree", native._SIGNATURES) is None
    for name in ("segment_tree.core.so", "segment_tree.core.dll"):
        (tmp_path / name).write_bytes(b"for another machine")
    assert shared_library.load(tmp_path, "segment_tree", native._SIGNATURES) is None


@needs_native
def test_a_library_of_another_version_is_as_good_as_none():
    missing = {**native._SIGNATURES, "dasgrad_of_tomorrow": (None, [])}
    assert shared_library.load(Path(native.__file__).parent, "segment_tree", missing) is None
