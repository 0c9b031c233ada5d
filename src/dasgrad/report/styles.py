"""How methods are named and drawn: told apart by dash and lightness as well as by hue, so also in grey."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """The look of a method in figures and on the page."""

    label: str
    color: str
    dash: tuple[float, ...] = ()
    """Lengths of strokes and gaps in line widths; none for a solid line."""

    @property
    def linestyle(self) -> str | tuple[int, tuple[float, ...]]:
        """The dash as matplotlib takes it."""
        return (0, self.dash) if self.dash else "-"


# Okabe and Ito's colours, which colour-blind readers tell apart: blue where AMSGrad's moments are used, vermillion
# where Adam's are; solid where examples are drawn by importance, dashed where they are reshuffled.
STYLES = {
    "dasgrad": Style("AMSGrad, adaptive (DASGrad)", "#0072B2"),
    "amsgrad": Style("AMSGrad, reshuffled", "#56B4E9", (5.0, 1.5)),
    "dasgrad-adam": Style("Adam, adaptive", "#A23B00"),
    "adam": Style("Adam, reshuffled", "#E69F00", (1.2, 1.2)),
    "dasgrad-paper": Style("DASGrad, as printed", "#003A63", (9.0, 1.2)),
    "dasgrad-printed-weights": Style("DASGrad, weights as printed", "#7A3E8E", (9.0, 1.2, 1.2, 1.2)),
    "amsgrad-weighted": Style("AMSGrad, weighted loss", "#2E8B8B", (3.0, 1.2)),
    "amsgrad-iid": Style("AMSGrad, independent draws", "#7FC4EC", (2.0, 1.0)),
    "adam-iid": Style("Adam, independent draws", "#C98A00", (2.5, 1.0, 1.0, 1.0)),
    "sgd": Style("SGD, reshuffled", "#333333", (5.0, 1.5)),
    "sgd-iid": Style("SGD, independent draws", "#777777", (2.0, 1.0)),
    "ap-sgd": Style("SGD, adaptive (ap-SGD)", "#111111"),
    "adagrad": Style("AdaGrad, reshuffled", "#009E73", (5.0, 1.5)),
    "adagrad-iid": Style("AdaGrad, independent draws", "#4CC3A1", (2.0, 1.0)),
    "rmsprop": Style("RMSProp, reshuffled", "#CC79A7", (5.0, 1.5)),
    "rmsprop-iid": Style("RMSProp, independent draws", "#DFA6C6", (2.0, 1.0)),
    "sgd-theory": Style("SGD", "#777777", (5.0, 1.5)),
    "ap-sgd-theory": Style("ap-SGD", "#000000"),
    "adagrad-theory": Style("AdaGrad", "#009E73", (2.0, 1.0)),
    "adam-theory": Style("Adam, β₁/t", "#E69F00", (1.6, 1.0)),
    "amsgrad-theory": Style("AMSGrad, β₁/t", "#56B4E9", (4.0, 1.5)),
    "dasgrad-theory": Style("DASGrad, β₁/t", "#0068A8"),
    "dasgrad-paper-theory": Style("DASGrad as printed, β₁/t", "#003A63", (9.0, 1.6)),
    "dasgrad-constant-theory": Style("DASGrad as printed, constant β₁", "#A23B00", (9.0, 1.2, 1.2, 1.2)),
}

# For methods that have no style of their own, in this order.
PALETTE = (
    ("#1B7837", ()),
    ("#7A3E8E", (6.0, 1.5, 1.2, 1.5)),
    ("#D6604D", (3.0, 1.5)),
    ("#4D4D4D", (1.2, 1.8)),
    ("#7F7F00", (8.0, 2.0)),
    ("#004D40", (4.0, 1.2, 1.2, 1.2, 1.2, 1.2)),
    ("#8C564B", (2.0, 1.0)),
    ("#5C6BC0", (7.0, 1.2, 2.0, 1.2)),
)


def assign_styles(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each name: its own where it has one, else the next of the palette, labelled by its name."""
    styles: dict[str, Style] = {}
    spare = 0
    for method in methods:
        if method in STYLES:
            styles[method] = STYLES[method]
            continue
        color, dash = PALETTE[spare % len(PALETTE)]
        if spare >= len(PALETTE):  # a second round: the same hues, more broken up
            dash = (*(dash or (9.0, 1.5)), 0.8, 1.5)
        styles[method] = Style(method, color, dash)
        spare += 1
    return styles
