import csv
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from dasgrad.report.collect import collect
from dasgrad.report.html import SCRIPTS, embed_json, render_page
from dasgrad.report.page import build_page
from dasgrad.report.paired import find_quantity, improvement_curve, saved_steps
from dasgrad.report.pictures import encode_png
from dasgrad.report.styles import STYLES, assign_styles
from dasgrad.report.writing import write_page
from report.made import make_draws, make_record, put, put_digits, put_draws

NASTY = "</script><script>alert('x')</script><!-- \"&amp; <img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """The elements of a document, and what is inside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def test_improvement_at_the_same_cost() -> None:
    ours, baseline = ([make_record(m, s, level) for s in range(3)] for m, level in (("dasgrad", 0.4), ("adam", 0.5)))
    loss = find_quantity("train_loss")
    steps, at_steps = improvement_curve(ours, baseline, loss, "step")
    seconds, at_seconds = improvement_curve(ours, baseline, loss, "seconds")
    np.testing.assert_array_equal(steps, ours[0].curves["step"])
    assert seconds[-1] == 1.0  # where the baseline ends; ours has done a third of its steps by then
    expected = [float(np.interp(1.0, run.curves["seconds"], run.curves["train_loss"])) for run in ours]
    final = [run.final("train_loss") for run in baseline]
    assert at_seconds.mean[-1] == pytest.approx((np.mean(final) - np.mean(expected)) / np.mean(final))
    assert at_steps.mean[-1] > 0 > at_seconds.mean[-1]
    evaluations, _ = improvement_curve(ours, baseline, loss, "evaluations")
    assert evaluations[-1] == 3200  # scored examples are charged


def test_saved_steps_need_the_mark_to_be_reached() -> None:
    better, worse = ([make_record("dasgrad", s, level) for s in range(3)] for level in (0.4, 0.6))
    baseline = [make_record("adam", s, 0.5) for s in range(3)]
    value, reached = saved_steps(better, baseline)
    assert reached == 3
    assert value.low > 0
    assert saved_steps(worse, baseline) == (pytest.approx(saved_steps(worse, baseline)[0]), 0)
    assert saved_steps(worse, baseline)[0].mean == 0


def test_the_page_has_all_that_was_recorded(tmp_path: Path) -> None:
    put_digits(tmp_path, 3, dasgrad=0.4, amsgrad=0.5, mystery=0.45)
    path = put(tmp_path, make_record("dasgrad", 3, 0.4, columns={"gain": range(11), "own_thing": range(11)}))
    put_draws(path, make_draws())
    page = build_page(collect(tmp_path), "runs")
    (own,) = page["sets"]
    assert own["title"] == "Logistic regression on digits"
    by_name = {series["name"]: series for series in own["series"]}
    assert by_name["mystery"]["label"] == "mystery"
    assert by_name["dasgrad"]["seeds"] == 4
    assert [d["label"] for d in own["diagnostics"]] == ["gain", "own thing"] or own["diagnostics"] == []
    assert own["reference"] == "amsgrad"
    assert own["comparisons"][0]["ours"] == "dasgrad"
    assert own["comparisons"][0]["seeds"] == 3  # those that both have
    assert set(own["comparisons"][0]["curves"]["train_loss"]) == {"step", "evaluations", "seconds"}
    assert own["draws"][0]["pictures"][0].startswith("data:image/png;base64,")
    assert own["environments"][0]["machine"]["cpu"] == "a processor"
    assert own["options"]["common"]["betas"] == "0.9, 0.99"
    json.dumps(page, allow_nan=False)


def test_optional_columns_are_shown_where_they_are(tmp_path: Path) -> None:
    for seed in range(2):
        put(tmp_path, make_record("dasgrad", seed, columns={"largest_weight": [float("nan"), *range(10)]}))
        put(tmp_path, make_record("adam", seed))
    (own,) = build_page(collect(tmp_path), "runs")["sets"]
    assert own["diagnostics"] == [{"column": "largest_weight", "label": "largest weight"}]
    bands = {series["name"]: series["bands"].get("largest_weight") for series in own["series"]}
    assert bands["adam"] is None
    assert bands["dasgrad"]["mean"][:3] == [None, 0, 1]


def test_one_seed_has_no_interval_and_a_diverged_run_no_number(tmp_path: Path) -> None:
    record = make_record()
    record.curves["train_loss"][-3:] = [np.inf, np.nan, np.nan]
    put(tmp_path, record)
    put(tmp_path, make_record("amsgrad"))
    (own,) = build_page(collect(tmp_path), "runs")["sets"]
    (ours,) = (series for series in own["series"] if series["adaptive"])
    assert "low" not in ours["bands"]["train_loss"]
    assert ours["bands"]["train_loss"]["mean"][-1] is None
    assert ours["final"]["train_loss"] == {"mean": None, "low": None, "high": None}
    assert ours["reached"] is None


def test_many_methods_start_with_those_that_are_compared(tmp_path: Path) -> None:
    names = ["dasgrad", "amsgrad", "adam", *(f"other{k}" for k in range(9))]
    for name in names:
        put(tmp_path, make_record(name))
    (own,) = build_page(collect(tmp_path), "runs")["sets"]
    assert {series["name"] for series in own["series"] if series["shown"]} == {"dasgrad", "amsgrad", "adam"}
    looks = {(series["color"], tuple(series["dash"])) for series in own["series"]}
    assert len(looks) == len(names)


def test_styles_do_not_run_out() -> None:
    styles = assign_styles([*STYLES, *(f"m{k}" for k in range(16))])
    assert len({(style.color, style.dash) for style in styles.values()}) == len(styles)


def test_data_cannot_leave_its_script(tmp_path: Path) -> None:
    put(tmp_path, make_record(NASTY, experiment=NASTY, options={NASTY: NASTY}))
    put(tmp_path, make_record("adam", experiment=NASTY))
    page = build_page(collect(tmp_path), NASTY)
    page["leftOut"] = [{"file": NASTY + "\udcff", "reason": NASTY}]
    text = render_page(page)
    tags = Tags(text)
    names = [tag for tag, _ in tags.tags]
    assert names.count("script") == 2
    assert "img" not in names
    assert json.loads(tags.scripts[0])["sets"][0]["name"] == NASTY
    assert text.count("<!--") == 0
    text.encode()


@pytest.mark.parametrize("text", [NASTY, "<!--<script>", "]]>", "\u2028\u2029", "ünï€", '"\\'])
def test_embedded_json_reads_back(text: str) -> None:
    embedded = embed_json({"text": text})
    assert not re.search("[<>&\u2028\u2029]", embedded)
    assert json.loads(embedded) == {"text": text}


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    put_digits(tmp_path, 2)
    text = render_page(build_page(collect(tmp_path), "runs"))
    for tag, attributes in Tags(text).tags:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in ("src", "href", "action", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert "@import" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_page_table_and_figures_are_written(tmp_path: Path) -> None:
    put_digits(tmp_path, 2)
    put(tmp_path, make_record("=cmd|dasgrad $x_y$", experiment="../a<b>"))
    put(tmp_path, make_record("_adam", experiment="../a<b>"))
    written = write_page(collect(tmp_path), "runs", tmp_path / "out" / "page.html")
    assert [path.name for path in written[:2]] == ["page.html", "page.csv"]
    figures = sorted(path.name for path in written[2:])
    assert figures == ["a-b.png", "a-b.svg", "digits.png", "digits.svg"]
    assert {path.parent for path in written[2:]} == {tmp_path / "out" / "page-figures"}
    rows = list(csv.DictReader(written[1].read_text().splitlines()))
    assert {"final_train_loss", "improvement_test_accuracy", "seconds", "scored"} <= {row["quantity"] for row in rows}
    assert any(row["method"] == "'=cmd|dasgrad $x_y$" for row in rows)
    assert any(row["set"] == "claim digits" for row in rows)


def test_a_large_run_set_stays_below_two_megabytes(tmp_path: Path) -> None:
    for method in ("dasgrad", "dasgrad-paper", "dasgrad-adam", "ap-sgd", *(f"other{k}" for k in range(10))):
        for seed in range(2):
            put(tmp_path, make_record(method, seed, points=51, columns={f"c{k}": np.random.rand(51) for k in range(5)}))  # noqa: NPY002
    page = build_page(collect(tmp_path), "runs")
    assert 7 * len(embed_json(page["sets"][0])) < 2_000_000


def test_pictures_are_png() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow, another reader to compare with, is not installed")
    import io

    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    colour = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)
    for pixels in (grey, colour):
        np.testing.assert_array_equal(np.asarray(image.open(io.BytesIO(encode_png(pixels)))), pixels)
    with pytest.raises(ValueError, match=r"must have shape \[H, W\]"):
        encode_png(np.zeros((2, 2, 4), dtype=np.uint8))


@pytest.mark.skipif(shutil.which("node") is None, reason="node, which checks the syntax of JavaScript, is not here")
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_have_no_syntax_error(name: str) -> None:
    path = files("dasgrad.report") / "template" / name
    subprocess.run(["node", "--check", str(path)], check=True)


def test_scripts_never_read_html_from_text() -> None:
    for name in SCRIPTS:
        text = (files("dasgrad.report") / "template" / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
        assert len(text.splitlines()) < 500
