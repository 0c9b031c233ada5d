"""A run is saved whole and restored whole: nothing in between, nothing half, and no code out of a file."""

import errno
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import dasgrad
import helpers
from dasgrad import atomic
from dasgrad.training import checkpoint

ROOT = Path(__file__).parents[2]


class Augmented(helpers.Rows):
    """Adds noise of every global generator to the targets."""

    def __getitem__(self, index):
        noise = torch.rand(()).item() + np.random.random() + random.random()  # noqa: NPY002 (the global one)
        return self.inputs[index], self.targets[index] + noise


def build(dataset=helpers.Rows, n=30, refresh=3, seed=3, moments="amsgrad", **options):
    inputs, targets, linear = helpers.regression(n)
    model = nn.Sequential(nn.Dropout(0.3), linear)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.01, moments=moments)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader(
        dataset(inputs, targets),
        sampler=dasgrad.AdaptiveSampler(n, 3, seed=seed),
        scorer=scorer,
        refresh=refresh,
        scoring_dataset=(inputs, targets),
        **options,
    )
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": dasgrad.InverseSqrtLR(optimizer),
        "warmup": lr_scheduler.LinearLR(optimizer),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
        "loader": loader,
    }


def seed_everything(seed=0):
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def step(parts, batch):
    losses = helpers.squared_losses(parts["model"](batch.inputs), batch.targets)
    parts["optimizer"].zero_grad()
    parts["scaler"].scale(batch.weighted_mean(losses)).backward()
    parts["scaler"].step(parts["optimizer"])
    parts["scaler"].update()
    parts["scheduler"].step()
    parts["warmup"].step()
    return torch.cat([batch.indices, batch.targets, parts["model"][1].weight.detach()[0], torch.rand(1)])


def freeze(value):
    """A copy that can be compared: tensors and arrays as bytes."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {key: freeze(item) for key, item in value.items()}
    return [freeze(item) for item in value] if isinstance(value, list | tuple) else value


def snapshot(parts):
    """Everything that must not change."""
    states = {name: part.state_dict() for name, part in parts.items()}
    draws = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    return freeze((states, draws))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.pt"


def in_memory(inputs, targets):
    return inputs, targets


@pytest.mark.parametrize("dataset", [helpers.Rows, Augmented, in_memory])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stopped", [1, 7, 10, 13])
def test_a_resumed_run_makes_the_same_steps_bit_for_bit(file, dataset, num_workers, stopped):
    options = {"dataset": dataset, "num_workers": num_workers}
    seed_everything()
    parts, expected = build(**options), []
    for _ in range(2):
        for batch in parts["loader"]:
            expected.append(step(parts, batch))
            if len(expected) == stopped:
                dasgrad.save_checkpoint(file, extra={"step": stopped}, **parts)
    seed_everything(1)
    parts, got = build(seed=8, **options), []
    assert dasgrad.load_checkpoint(file, **parts) == {"step": stopped}
    while len(got) < len(expected) - stopped:
        got += [step(parts, batch) for batch in parts["loader"]]
    assert all(torch.equal(a, b) for a, b in zip(expected[stopped:], got, strict=True))


def test_every_scheduler_of_torch_and_every_plain_value_comes_back(file):
    param = nn.Parameter(torch.zeros(2))

    def make():
        optimizer = torch.optim.AdamW([param], lr=torch.tensor(0.1), foreach=False)
        return {
            "optimizer": optimizer,
            "multi": lr_scheduler.MultiStepLR(optimizer, [2, 4]),
            "cosine": lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
            "plateau": lr_scheduler.ReduceLROnPlateau(optimizer),
            "cyclic": lr_scheduler.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False),
            "lambda": lr_scheduler.LambdaLR(optimizer, lambda k: 0.5**k),
            "chained": lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(optimizer, 0.9)]),
            "sampler": dasgrad.AdaptiveSampler(4, 2),
        }

    parts = make()
    param.grad = torch.ones(2)
    parts["optimizer"].step()
    parts["multi"].step()
    parts["plateau"].step(np.float64(3.0))
    extra = {"n": 3, "f": 2.5, "s": "x", "b": b"y", "none": None, "t": torch.arange(6)[::2], "nested": [(1, {2: {3}})]}
    extra |= {"counter": Counter("aab"), "ordered": OrderedDict(a=1), "default": defaultdict(int, a=1)}
    dasgrad.save_checkpoint(file, extra=extra, **parts)
    other = make()
    found = dasgrad.load_checkpoint(file, **other)
    assert torch.equal(found.pop("t"), extra.pop("t"))
    assert found == extra
    assert other["plateau"].best == 3.0
    assert other["multi"].milestones == Counter([2, 4])
    assert freeze(other["optimizer"].state_dict()) == freeze(parts["optimizer"].state_dict())


def test_a_view_is_saved_without_the_rest_of_its_storage_and_a_module_with_its_versions(file):
    norm = nn.BatchNorm1d(3)
    dasgrad.save_checkpoint(file, norm=norm, extra={"row": torch.zeros(100_000, 3)[7]})
    assert file.stat().st_size < 50_000
    content = checkpoint._read(file)
    assert content["parts"]["norm"]._metadata[""] == {"version": 2}


def test_names_are_free_and_folders_are_made_and_links_followed(tmp_path):
    real, link = tmp_path / "a" / "b" / "run.pt", tmp_path / "link.pt"
    link.symlink_to(real)
    part = nn.Linear(1, 1)
    dasgrad.save_checkpoint(link, path=part, file=part, self=part)
    assert link.is_symlink()
    assert real.is_file()
    assert dasgrad.load_checkpoint(str(real), path=part, file=part, self=part) == {}
    mask = os.umask(0)
    os.umask(mask)
    assert real.stat().st_mode & 0o777 == 0o666 & ~mask


# --- what is refused ----------------------------------------------------------------------------------


class Part:
    """A part that takes what it is given, and then may regret it."""

    def __init__(self, value=0, refuses=False):
        self.value, self.refuses = value, refuses

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]
        if self.refuses and state["value"] == 1:
            raise KeyError("no, thank you")


def test_when_a_part_refuses_everything_is_as_it_was_and_the_pass_goes_on(file):
    saved = build(num_workers=2)
    dasgrad.save_checkpoint(file, **saved, part=Part(1))
    seed_everything()
    expected_parts = build(num_workers=2)
    expected = [step(expected_parts, batch) for batch in expected_parts["loader"]]
    seed_everything()
    parts, part = build(num_workers=2), Part(2, refuses=True)
    batches = iter(parts["loader"])
    got = [step(parts, next(batches)) for _ in range(4)]
    before = snapshot(parts)
    with pytest.raises(KeyError, match="no, thank you") as caught:
        dasgrad.load_checkpoint(file, **parts, part=part)
    assert caught.value.__notes__ == [f"`load_checkpoint`: part 'part' of {file}"]
    assert part.value == 2
    assert snapshot(parts) == before
    got += [step(parts, batch) for batch in batches]
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"refresh": 4}, ValueError, "refresh=3, got 4"),
        ({"n": 33}, ValueError, "num_examples=30, got 33"),
        ({"moments": "adam"}, ValueError, "moments='amsgrad'"),
    ],
)
def test_a_part_built_otherwise_is_refused_by_name_and_nothing_changes(file, options, kind, message):
    parts = build()
    step(parts, next(iter(parts["loader"])))
    dasgrad.save_checkpoint(file, **parts)
    other = build(**options)
    before = snapshot(other)
    with pytest.raises(kind, match=message):
        dasgrad.load_checkpoint(file, **other)
    assert snapshot(other) == before


def test_a_model_of_another_shape_is_refused_before_its_fitting_half_is_kept(file):
    dasgrad.save_checkpoint(file, model=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)))
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4))
    before = snapshot({"model": model})
    with pytest.raises(RuntimeError, match="size mismatch"):
        dasgrad.load_checkpoint(file, model=model)
    assert snapshot({"model": model}) == before


def test_generators_that_do_not_fit_are_refused_and_nothing_changes(file, monkeypatch):
    states = checkpoint.generators.get_states()
    monkeypatch.setattr(checkpoint.generators, "get_states", lambda: {**states, "python": (2, (1, 2), None)})
    dasgrad.save_checkpoint(file, part=Part(1))
    monkeypatch.undo()
    parts = {"part": Part(5)}
    before = snapshot(parts)
    with pytest.raises(ValueError, match=r"state vector|generators"):
        dasgrad.load_checkpoint(file, **parts)
    assert snapshot(parts) == before


def test_parts_missing_or_surplus_are_named(file):
    dasgrad.save_checkpoint(file, a=Part(1), b=Part(1))
    part = Part(7)
    with pytest.raises(ValueError, match=r"has the parts 'a', 'b', got the parts 'a': 'b' not given"):
        dasgrad.load_checkpoint(file, a=part)
    with pytest.raises(ValueError, match=r"'c', 'd' not in the file"):
        dasgrad.load_checkpoint(file, a=part, b=part, c=part, d=part)
    with pytest.raises(ValueError, match=r"got no parts: 'a', 'b' not given"):
        dasgrad.load_checkpoint(file)
    assert part.value == 7


BAD_CONTENT = [
    (lambda f: dasgrad.save_checkpoint(f, a=3), r"save_checkpoint\(a=...\)` must have `state_dict`.*got int"),
    (lambda f: dasgrad.load_checkpoint(f, a=[]), r"load_checkpoint\(a=...\)` must have `state_dict`.*got list"),
    (lambda f: dasgrad.save_checkpoint(f, extra=[1]), r"extra=...\)` must be a mapping or None, got list"),
    (lambda f: dasgrad.save_checkpoint(f, a=Part({"x": [len]})), r"a\['value'\]\['x'\]\[0\] is a builtin_function"),
    (lambda f: dasgrad.save_checkpoint(f, extra={"x": Part()}), r"extra\['x'\] is a Part"),
    (lambda f: dasgrad.save_checkpoint(f, extra={Part: 1}), r"extra: the key .*Part.* is a type"),
    (lambda f: dasgrad.save_checkpoint(f, extra={"x": np.zeros(2)}), r"extra\['x'\] is a ndarray"),
]


@pytest.mark.parametrize(("call", "message"), BAD_CONTENT)
def test_what_cannot_be_saved_is_named_and_the_old_file_stays(file, call, message):
    dasgrad.save_checkpoint(file, part=Part(1))
    before = file.read_bytes()
    with pytest.raises(TypeError, match=message):
        call(file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["run.pt"]


def test_no_file_is_an_error_of_its_own(file):
    with pytest.raises(FileNotFoundError):
        dasgrad.load_checkpoint(file, part=Part())


def write(file, payload, version=checkpoint.SCHEMA_VERSION):
    """A file with a right header, as anybody can make one."""
    with open(file, "wb") as stream:
        sink = checkpoint._Payload(stream)
        stream.write(bytes(checkpoint.HEADER.size))
        sink.write(payload)
        stream.seek(0)
        stream.write(checkpoint._make_header(sink, version))


class Payload:
    def __reduce__(self):
        return os.system, ("touch ran",)


def make_payloads(tmp_path):
    good = tmp_path / "good.pt"
    torch.save({"parts": {"part": Payload()}, "extra": {}, "generators": {}}, good)
    legacy = tmp_path / "legacy.pt"
    torch.save({"parts": Payload()}, legacy, _use_new_zipfile_serialization=False)
    return [good.read_bytes(), legacy.read_bytes(), pickle.dumps(Payload(), 2), b"cos\nsystem\n(S'touch ran'\ntR."]


@pytest.mark.parametrize("number", range(4), ids=["zip", "legacy", "pickle", "protocol 0"])
@pytest.mark.parametrize("header", [True, False])
def test_a_pickle_payload_never_runs(tmp_path, monkeypatch, number, header):
    monkeypatch.chdir(tmp_path)
    file, payload = tmp_path / "run.pt", make_payloads(tmp_path)[number]
    if header:
        write(file, payload)
    else:
        file.write_bytes(payload)
    part = Part(5)
    with pytest.raises(ValueError, match=r"run\.pt: (its content is not made of tensors|is not a checkpoint)"):
        dasgrad.load_checkpoint(file, part=part)
    assert part.value == 5
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Payload()))  # the payload is a live one
    assert (tmp_path / "ran").exists()


def test_foreign_files_are_refused(tmp_path):
    file = tmp_path / "run.pt"
    torch.save({"model": torch.zeros(3)}, file)
    foreign = {"torch.save": file.read_bytes(), "text": b"hello\n" * 50, "zeros": bytes(500), "one byte": b"x"}
    for content in foreign.values():
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"run\.pt: is not a checkpoint of dasgrad"):
            dasgrad.load_checkpoint(file, part=Part())
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"run\.pt: is empty"):
        dasgrad.load_checkpoint(file, part=Part())
    write(file, b"no zip")
    with pytest.raises(ValueError, match="was not loaded"):
        dasgrad.load_checkpoint(file, part=Part())
    torch.save({"parts": {}, "extra": 3}, tmp_path / "other.pt")
    write(file, (tmp_path / "other.pt").read_bytes())
    with pytest.raises(ValueError, match="holds no parts, extra, generators"):
        dasgrad.load_checkpoint(file, part=Part())


@pytest.mark.parametrize(("version", "what"), [(2, "a newer dasgrad wrote it"), (0, "it is too old")])
def test_other_schema_versions_are_refused_by_name(file, version, what):
    dasgrad.save_checkpoint(file, part=Part(1))
    write(file, file.read_bytes()[checkpoint.HEADER.size :], version)
    part = Part(5)
    with pytest.raises(ValueError, match=f"schema version {version}, this dasgrad reads version 1: {what}"):
        dasgrad.load_checkpoint(file, part=part)
    assert part.value == 5


def test_files_cut_short_or_with_a_tail_are_refused(file):
    dasgrad.save_checkpoint(file, part=Part(1))
    content = file.read_bytes()
    part = Part(5)
    for length in {*range(1, 80), *range(80, len(content), 97), len(content) - 1}:
        file.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"run\.pt: is cut short"):
            dasgrad.load_checkpoint(file, part=part)
    file.write_bytes(content + b"x")
    with pytest.raises(ValueError, match=r"something behind its end"):
        dasgrad.load_checkpoint(file, part=part)
    assert part.value == 5


def test_a_bit_flipped_anywhere_is_refused(file):
    dasgrad.save_checkpoint(file, part=Part(1), extra={"t": torch.arange(50.0)})
    content = file.read_bytes()
    part, rng = Part(5), random.Random(0)
    for position in {*range(checkpoint.HEADER.size + 20), *range(0, len(content), 41), len(content) - 1}:
        flipped = bytearray(content)
        flipped[position] ^= 1 << rng.randrange(8)
        file.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"run\.pt: (is damaged|is cut short|has something|is not a checkpoint)"):
            dasgrad.load_checkpoint(file, part=part)
    assert part.value == 5


# --- errors and kills while saving --------------------------------------------------------------------


class Failing:
    """Stands in for a function and raises at one of its calls."""

    def __init__(self, function, call):
        self.function, self.call, self.num_calls = function, call, 0

    def __call__(self, *args, **kwargs):
        self.num_calls += 1
        if self.num_calls == self.call:
            raise OSError(errno.ENOSPC, "no space left on device")
        return self.function(*args, **kwargs)


@pytest.mark.parametrize(
    ("name", "call", "new"),
    [("open", 1, False), ("fsync", 1, False), ("replace", 1, False), ("open", 2, True), ("fsync", 2, True)],
    ids=["make temporary", "sync file", "replace", "open folder", "sync folder"],
)
@pytest.mark.parametrize("exists", [True, False])
def test_an_error_at_any_step_of_a_save_leaves_the_old_file_or_the_new_one(file, monkeypatch, name, call, new, exists):
    if exists:
        dasgrad.save_checkpoint(file, part=Part(1))
    monkeypatch.setattr(atomic.os, name, Failing(getattr(os, name), call))
    with pytest.raises(OSError, match="no space left"):
        dasgrad.save_checkpoint(file, part=Part(2))
    monkeypatch.undo()
    assert os.listdir(file.parent) == (["run.pt"] if exists or new else [])
    if exists or new:
        part = Part()
        dasgrad.load_checkpoint(file, part=part)
        assert part.value == (2 if new else 1)


def test_a_write_that_fails_anywhere_leaves_the_old_file(file):
    """The kernel itself refuses to let the file grow, at every length on the way."""
    dasgrad.save_checkpoint(file, part=Part(1))
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    weights = torch.arange(100_000.0)
    for limit in (0, 1, 55, 56, 100, 1000, 8192, 200_000, 400_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(OSError) as caught:  # noqa: PT011 (the number says which)
                dasgrad.save_checkpoint(file, part=Part(2), extra={"weights": weights})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG
        assert file.read_bytes() == before
        assert os.listdir(file.parent) == ["run.pt"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    try:
        file, part = disk / "run.pt", Part()
        dasgrad.save_checkpoint(file, part=Part(1))
        with pytest.raises(OSError, match="No space left"):
            dasgrad.save_checkpoint(file, part=Part(2), extra={"weights": torch.zeros(100_000)})
        assert os.listdir(disk) == ["run.pt"]
        dasgrad.load_checkpoint(file, part=part)
        assert part.value == 1
        dasgrad.save_checkpoint(file, part=Part(3))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_files_of_killed_writers_go_with_the_next_save_and_those_of_live_ones_stay(file):
    code = (
        "import os, signal, sys\nfrom dasgrad import atomic\n"
        "with atomic.replacing(sys.argv[1]) as file:\n    file.write(b'x')\n    file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, file], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = os.listdir(file.parent)
    mine = file.with_name(".run.pt.notes.tmp")
    mine.touch()
    with atomic.replacing(file) as other:
        other.write(b"slow")
        assert left not in os.listdir(file.parent)
        (live,) = set(os.listdir(file.parent)) - {mine.name}
        dasgrad.save_checkpoint(file, part=Part(1))
        assert set(os.listdir(file.parent)) == {"run.pt", live, mine.name}
    assert file.read_bytes() == b"slow"
    assert set(os.listdir(file.parent)) == {"run.pt", mine.name}


@pytest.mark.skipif(
    not hasattr(os, "fork") or torch.cuda.is_available(),
    reason="lives are forked, and autograd does not survive a fork beside CUDA",
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_killed_again_and_again_equals_the_uninterrupted_one(tmp_path, num_workers):
    """The small version of ``python -m benchmarks kill``; it raises at the first step that differs."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom benchmarks import kill\n"
        "outcome = kill.survive(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))\n"
        "print(outcome.num_kills, outcome.num_steps)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(dasgrad.__file__).parents[1]), str(ROOT)))}
    printed, said = tmp_path / "printed", tmp_path / "said"  # files: workers of a killed life may hold a pipe open
    with printed.open("w") as out, said.open("w") as err:
        command = [sys.executable, "-c", code, "8", str(num_workers), tmp_path / "run"]
        (tmp_path / "run").mkdir()
        done = subprocess.run(command, stdout=out, stderr=err, check=False, env=environment)
    assert done.returncode == 0, said.read_text()
    assert printed.read_text().split() == ["8", "100"]
