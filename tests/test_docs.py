"""The documentation is true: its Python runs, its links lead somewhere, its signatures are the code's."""

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import dasgrad
from dasgrad import moments, projections, targets

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PROGRAMS = [page for page in PAGES if page == ROOT / "README.md" or page.parent == ROOT / "docs"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
REPOSITORY_PATH = re.compile(r"`((?:\.ci|benchmarks|docs|examples|src|tests)/[\w./-]*)`")

PUBLIC = {name: getattr(dasgrad, name) for name in dasgrad.__all__ if callable(getattr(dasgrad, name))}
PUBLIC |= {
    f"targets.{name}": getattr(targets, name) for name in ("uniform", "from_label_frequencies", "from_task_mixture")
}
PUBLIC |= {f"projections.{name}": getattr(projections, name) for name in projections.__all__ if name != "Projection"}
PUBLIC |= {f"moments.{name}": getattr(moments, name) for name in ("Moments", "Hyper")}
METHODS = {
    "AdaptiveLoader": (
        *("refresh", "on_refresh", "rescore", "update", "diagnosis", "examples_for_scoring"),
        *("take_draws", "put_back", "start_step"),
        *("rescore_beside", "take_effect"),
        *("state_dict", "load_state_dict"),
    ),
    "AdaptiveSampler": (
        *("refresh", "update", "forget", "draw", "draw_batches", "from_target", "weights_of"),
        *("set_epoch", "state_dict", "load_state_dict"),
    ),
    "AutoRefresh": (*("diagnose", "before_draw", "num_quiet_steps", "state_dict", "load_state_dict", "check"),),
    "Beta1Decay": ("step", "state_dict", "load_state_dict"),
    "CapturedLoop": ("run",),
    "DASGrad": ("step", "accumulate_update_grads", "add_param_group", "zero_grad", "state_dict", "load_state_dict"),
    "ExampleScorer": (
        "copy_from",
        "look_at",
        "explain",
        "listen",
        "noise",
        "score_dataset",
        "usual_chunk_size",
        "snapshot",
        "with_score",
    ),
    "SegmentTree": ("rebuild", "update", "sample", "find", "masses_of", "to", "state_dict", "load_state_dict"),
    "SparseRows": ("from_scipy", "to", "to_dense", "pin_memory"),
    "WeightedBatch": ("to", "pin_memory", "weighted_mean", "backward"),
    "moments.Moments": ("init_state", "advance", "phi", "psi", "corrections", "metric"),
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def bare_signature(callable_: Any) -> str:
    """The signature without annotations and without ``self``."""
    signature = inspect.signature(callable_)
    params = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=params, return_annotation=inspect.Signature.empty))


def slug(heading: str) -> str:
    """The anchor that code hosts give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_python_of_page_runs(page: Path):
    text = page.read_text(encoding="utf-8")
    assert text.count("```python") == len(BLOCK.findall(text)), "a block is not closed on a line of its own"
    namespace: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(0)
        for block in BLOCK.finditer(text):
            lines_before = text[: block.start(1)].count("\n")
            exec(compile("\n" * lines_before + block[1], name_of(page), "exec"), namespace)


def test_readme_quickstart_howto_and_algorithm_have_python():
    with_code = {name_of(page) for page in PROGRAMS if BLOCK.search(page.read_text(encoding="utf-8"))}
    assert {"README.md", "docs/quickstart.md", "docs/how-to.md", "docs/algorithm.md"} <= with_code


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_paths_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    missing = [path for path in REPOSITORY_PATH.findall(prose) if not (ROOT / path).exists()]
    for link in LINK.findall(prose):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            missing.append(link)
        elif anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            missing += [] if anchor in map(slug, headings) else [link]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_path_of_one_machine(page: Path):
    assert not re.search(r"(?<![\w.:/])/(?:home|root|tmp|work|Users|usr)/", page.read_text(encoding="utf-8"))


def test_api_page_mentions_every_public_name():
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert [name for name in dasgrad.__all__ if f"`{name}" not in text and f"`dasgrad.{name}" not in text] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_api_page_has_the_signature(name: str):
    text = " ".join((ROOT / "docs/api.md").read_text(encoding="utf-8").split())
    assert f"{name}{bare_signature(PUBLIC[name])}" in text
    for method in METHODS.get(name, ()):
        wanted = f"`{method}{bare_signature(getattr(PUBLIC[name], method))}`"
        assert wanted in text, f"{name}: {wanted}"


def test_api_page_leaves_no_public_method_out():
    for name, cls in PUBLIC.items():
        public = {
            key
            for key, value in vars(cls).items()
            if not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod))
        }
        tensor_manners = {"size", "dim", "is_floating_point", "get_lr"}
        assert public - tensor_manners <= set(METHODS.get(name, ())), name
