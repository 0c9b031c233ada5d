"""The page in a real browser: no network, every figure drawn, every control works, nothing of the data is run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.chromium import Chromium, find_chromium
from dasgrad.report.collect import collect
from dasgrad.report.writing import write_page
from report.made import make_draws, make_record, put, put_digits, put_draws

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason="no Chromium on the path, nor named in DASGRAD_CHROMIUM: the page is not tested in a browser",
)
NASTY = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'><!--"
FIGURES = [
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "improvement",
    "cost-seconds",
    "cost-evaluations",
    "diagnostics",
    "distribution",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    assert PROGRAM is not None
    chromium = Chromium(PROGRAM)
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    put_digits(folder, 3, amsgrad=0.5, adam=0.6)
    for seed in range(3):
        path = put(folder, make_record("dasgrad", seed, 0.4, columns={"gain": range(11), "entropy": range(11)}))
        if seed == 0:
            put_draws(path, make_draws())
    (folder / "foreign.txt").write_text("hello")
    return write_page(collect(folder), "runs", folder / "report.html")[0]


@pytest.fixture
def opened(browser: Chromium, page: Path) -> Iterator[Chromium]:
    browser.open(page)
    yield browser
    assert browser.complaints() == []


def count(browser: Chromium, selector: str) -> int:
    return int(browser.run(f"document.querySelectorAll({json.dumps(selector)}).length"))


def text(browser: Chromium, selector: str) -> str:
    return str(browser.run(f"document.querySelector({json.dumps(selector)}).textContent"))


def click(browser: Chromium, selector: str) -> None:
    browser.run(f"document.querySelector({json.dumps(selector)}).click()")


def test_it_loads_without_a_network_and_draws_every_figure(opened: Chromium) -> None:
    assert opened.run("document.documentElement.dataset.ready") == "true"
    for name in FIGURES:
        assert count(opened, f"[data-figure={name}] svg path.line, [data-figure={name}] svg rect.bar") > 0, name
    assert count(opened, "[data-figure=train_loss] path.band") == 3
    assert count(opened, "[data-figure=improvement] path.line") == 2
    paths = opened.run("[...document.querySelectorAll('path.line')].map((path) => path.getAttribute('d'))")
    assert all(path.startswith("M") and "NaN" not in path for path in paths)
    assert count(opened, "#left-out li") == 1
    assert "foreign.txt" in text(opened, "#left-out")


def test_claims_have_verdicts_with_numbers(opened: Chromium) -> None:
    assert "reproduced" in text(opened, "[data-claim=digits] .verdict")
    assert "[+" in text(opened, "[data-claim=digits] .findings")
    assert "not run" in text(opened, "[data-claim=imdb] .verdict")
    assert "dasgrad run imdb" in text(opened, "[data-claim=imdb]")


def test_a_method_is_hidden_and_shown_by_keyboard(opened: Chromium) -> None:
    button = ".method[data-name=adam]"
    opened.run(f"document.querySelector({json.dumps(button)}).focus()")
    opened.press("Enter")
    assert opened.run(f"document.querySelector({json.dumps(button)}).getAttribute('aria-pressed')") == "false"
    assert count(opened, "[data-figure=train_loss] path.line") == 2
    assert count(opened, "[data-figure=improvement] path.line") == 1
    assert count(opened, "[data-figure=cost-seconds] text.barlabel") == 2
    opened.press(" ")
    assert count(opened, "[data-figure=train_loss] path.line") == 3
    for name in ("adam", "amsgrad", "dasgrad"):
        click(opened, f".method[data-name={name}]")
    assert "every method is hidden" in text(opened, "[data-figure=train_loss]")


def test_the_axis_can_be_switched(opened: Chromium) -> None:
    labels, paths = [], []
    for value in ("seconds", "evaluations", "step"):
        click(opened, f"#controls button[data-value={value}]")
        labels.append(text(opened, "[data-figure=train_loss] .xlabel"))
        paths.append(opened.run("document.querySelector('[data-figure=improvement] path.line').getAttribute('d')"))
        assert opened.run("document.querySelectorAll('#controls [aria-pressed=true]').length") == 2
        assert text(opened, "[data-figure=distribution] .xlabel") == labels[-1]
    assert labels == ["seconds, scoring included", "gradient evaluations, those for scores included", "steps"]
    assert len(set(paths)) == 3


def test_losses_are_logarithmic_or_linear(opened: Chromium) -> None:
    path = "document.querySelector('[data-figure=train_loss] path.line').getAttribute('d')"
    before = opened.run(path)
    click(opened, "#controls button[data-value=linear]")
    assert opened.run(path) != before
    click(opened, "#controls button[data-value=log]")
    assert opened.run(path) == before


def test_values_can_be_read_by_mouse_and_by_keyboard(opened: Chromium) -> None:
    tip = "[data-figure=train_loss] .tip"
    assert opened.run(f"document.querySelector({json.dumps(tip)}).hidden") is True
    opened.hover("[data-figure=train_loss] svg", 0.95)
    assert "step 100" in text(opened, tip)
    assert count(opened, f"{tip} tr") == 3
    assert "[" in text(opened, tip)
    opened.hover("h1")
    assert opened.run(f"document.querySelector({json.dumps(tip)}).hidden") is True
    opened.run("document.querySelector('[data-figure=train_loss] svg').focus()")
    opened.press("Home")
    opened.press("ArrowRight")
    assert text(opened, "[data-figure=train_loss] .spoken").startswith("step 10: ")
    opened.press("Escape")
    assert opened.run(f"document.querySelector({json.dumps(tip)}).hidden") is True


def test_quantities_of_improvement_and_diagnostics_can_be_chosen(opened: Chromium) -> None:
    for figure, value in (("improvement", "test_accuracy"), ("diagnostics", "entropy")):
        path = f"document.querySelector('[data-figure={figure}] .ytick').textContent"
        before = opened.run(path)
        opened.run(
            f"(() => {{ const s = document.querySelector('[data-figure={figure}] select'); s.value = '{value}'; "
            "s.dispatchEvent(new Event('change')); })()"
        )
        assert figure == "diagnostics" or opened.run(path) != before
        assert count(opened, f"[data-figure={figure}] path.line") > 0


def test_examples_change_along_the_run(opened: Chromium) -> None:
    assert count(opened, ".examples .card img") == 6
    assert opened.run("[...document.querySelectorAll('.card img')].every((i) => i.complete && i.naturalWidth === 8)")
    first = ".examples .cards .card strong"
    assert text(opened, first) == "5×"
    opened.run("document.querySelector('.slider input').focus()")
    opened.press("ArrowLeft")
    assert text(opened, first) == "3×"
    assert text(opened, ".when") == "step 50"


def test_narrow_and_printed(opened: Chromium, page: Path, tmp_path: Path) -> None:
    opened.open(page, 360, 700)
    assert opened.run("document.documentElement.scrollWidth") <= 360
    opened.open(page)
    opened.print_to_pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert opened.run("document.querySelector('details.settings').open") is True


def test_every_control_has_a_name_and_takes_the_focus(opened: Chromium) -> None:
    unnamed = opened.run(
        "[...document.querySelectorAll('button, select, input, [tabindex=\"0\"]')].filter((e) => "
        "!(e.getAttribute('aria-label') || e.textContent.trim())).map((e) => e.outerHTML)"
    )
    assert unnamed == []
    assert opened.run("new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size") == count(opened, "[id]")
    seen = []
    for _ in range(count(opened, "a, button, select, input, summary, [tabindex='0']")):
        opened.press("Tab")
        seen.append(opened.run("document.activeElement.closest('[data-figure], [data-value], .method')?.outerHTML"))
    for part in ('data-value="seconds"', 'data-name="adam"', *(f'data-figure="{name}"' for name in FIGURES[:5])):
        assert any(part in html for html in seen if html), part


def test_html_in_names_does_no_harm(browser: Chromium, tmp_path: Path) -> None:
    for seed in range(2):
        options = {NASTY: NASTY}
        path = put(
            tmp_path,
            make_record(
                f"dasgrad{NASTY}"[:90], seed, 0.4, experiment=NASTY, options=options, columns={NASTY: range(11)}
            ),
        )
        put(tmp_path, make_record("adam", seed, 0.5, experiment=NASTY, options=options))
    put_draws(path, make_draws(pictures=False))
    (tmp_path / "<b>foreign&.txt").write_text("hello")
    browser.open(write_page(collect(tmp_path), NASTY, tmp_path / "report.html")[0])
    assert browser.run("window.hurt") is None
    assert count(browser, "img, b") == 0
    assert text(browser, "h2[id^=set]") == NASTY
    assert count(browser, "[data-figure=train_loss] path.line") == 2
    assert "<b>foreign&.txt" in text(browser, "#left-out")
    assert browser.complaints() == []


def test_one_seed_and_lost_values_still_draw(browser: Chromium, tmp_path: Path) -> None:
    record = make_record()
    for column in ("train_loss", "test_loss"):
        record.curves[column][5:] = float("nan")
    put(tmp_path, record)
    put(tmp_path, make_record("adam"))
    browser.open(write_page(collect(tmp_path), "runs", tmp_path / "report.html")[0])
    assert count(browser, "[data-figure=train_loss] path.line") == 2
    assert count(browser, "[data-figure=train_loss] path.band") == 0
    assert "a single seed" in text(browser, ".summary")
    assert browser.complaints() == []


def test_the_test_would_notice_an_error(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text("<script>console.error('oops'); nothing.there</script><img src='http://example.invalid/x.png'>")
    browser.open(page)
    assert len(browser.complaints()) >= 3
