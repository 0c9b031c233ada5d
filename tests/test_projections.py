import decimal
import doctest
import math
import pickle
from dataclasses import FrozenInstanceError
from decimal import Decimal
from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dasgrad import projections
from dasgrad.projections import Box, L1Ball, L2Ball, NonNegative, Simplex

EPS = torch.finfo(torch.float64).eps
MAX = torch.finfo(torch.float64).max
SMALLEST = 5e-324

# One of each kind; `along` gives the same set along a dimension.
EACH = [Box(-0.75, 0.5), NonNegative(), L2Ball(1.5), L1Ball(1.25), Simplex()]
FIBREWISE = [L2Ball(1.5), L1Ball(1.25), Simplex()]
each = pytest.mark.parametrize("projection", EACH, ids=lambda p: type(p).__name__)
fibrewise = pytest.mark.parametrize("projection", FIBREWISE, ids=lambda p: type(p).__name__)


def along(projection, dim):
    return Simplex(dim) if isinstance(projection, Simplex) else type(projection)(projection.radius, dim)


def f64(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    as_ints = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
    assert torch.equal(actual.contiguous().view(as_ints), expected.contiguous().view(as_ints))


def assert_feasible(projection, x: Tensor, slack: float = 16 * EPS) -> None:
    if isinstance(projection, Box):
        assert bool(((x >= projection.low) & (x <= projection.high)).all())
    elif isinstance(projection, NonNegative):
        assert bool((x >= 0).all())
    elif isinstance(projection, L2Ball):
        assert math.hypot(*x.reshape(-1).tolist()) <= projection.radius * (1 + slack)
    elif isinstance(projection, L1Ball):
        assert math.fsum(x.abs().reshape(-1).tolist()) <= projection.radius * (1 + slack)
    else:
        assert bool((x >= 0).all())
        assert abs(math.fsum(x.reshape(-1).tolist()) - 1) <= slack


# Slow oracles, in exact or 80-digit arithmetic, with the zeros of the metric literally one tiny h.


def positive_metric(h: list[float]) -> list[Fraction]:
    tiny = min((Fraction(value) for value in h if value > 0), default=Fraction(1)) / 10**900
    return [Fraction(value) if value > 0 else tiny for value in h]


def exact_mass(y: list[float], h: list[float], mass: float) -> list[float]:
    """Minimise Σh(x − y)² over x ≥ 0, Σx = mass, by trying the supports one after another."""
    h, y = positive_metric(h), [Fraction(value) for value in y]
    order = sorted(range(len(y)), key=lambda i: h[i] * y[i], reverse=True)
    for size in range(len(y), 0, -1):
        support = order[:size]
        multiplier = (sum(y[i] for i in support) - Fraction(mass)) / sum(1 / h[i] for i in support)
        if all(y[i] >= multiplier / h[i] for i in support):
            return [float(max(Fraction(0), a - multiplier / b)) for a, b in zip(y, h, strict=True)]
    raise AssertionError("no support fits")


def exact_l1(y: list[float], h: list[float], radius: float) -> list[float]:
    if sum(abs(Fraction(value)) for value in y) <= Fraction(radius):
        return y
    magnitudes = exact_mass([abs(value) for value in y], h, radius)
    return [math.copysign(a, b) for a, b in zip(magnitudes, y, strict=True)]


def exact_l2(y: list[float], h: list[float], radius: float) -> list[float]:
    with decimal.localcontext(decimal.Context(prec=80, Emax=10**9, Emin=-(10**9))):
        h = [Decimal(value.numerator) / Decimal(value.denominator) for value in positive_metric(h)]
        y, radius = [Decimal(value) for value in y], Decimal(radius)
        norm = sum(value * value for value in y).sqrt()
        if norm <= radius:
            return [float(value) for value in y]
        low, high = (bound * (norm / radius - 1) for bound in (min(h), max(h)))
        for _ in range(130):  # a metric spread over 1e1600 to 35 digits
            middle = (low * high).sqrt()
            if sum((a / (1 + middle / b)) ** 2 for a, b in zip(y, h, strict=True)) > radius * radius:
                low = middle
            else:
                high = middle
        return [float(a / (1 + high / b)) for a, b in zip(y, h, strict=True)]


# What hypothesis draws: values and metrics with ties, zeros, and magnitudes far apart.

MODERATE = st.one_of(st.floats(-3, 3, allow_subnormal=False), st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]))
EXTREME = st.builds(lambda a, k: a * 10.0**k, st.floats(-9, 9), st.integers(-290, 290))
SPREAD = st.one_of(st.just(0.0), st.floats(-30, 30).map(lambda k: 10.0**k), st.sampled_from([1e-30, 1.0, 4.0, 1e30]))
ANY_METRIC = st.one_of(SPREAD, st.sampled_from([SMALLEST, 3 * SMALLEST, 2e-308, 1e-160, 1e150, 1e290]))


def coordinates(values, metrics, max_size=8):
    """Two lists of one length: a point and its metric."""
    pairs = st.lists(st.tuples(values, metrics), min_size=1, max_size=max_size)
    return pairs.map(lambda drawn: tuple(list(column) for column in zip(*drawn, strict=True)))


RADII = st.sampled_from([1e-9, 0.3, 1.0, 2.5, 1e6])
WIDE = coordinates(st.one_of(MODERATE, EXTREME), ANY_METRIC)


class TestAgainstExactArithmetic:
    @settings(max_examples=400)
    @given(WIDE)
    def test_simplex(self, drawn):
        y, h = drawn
        actual, expected = Simplex()(f64(y), f64(h)), f64(exact_mass(y, h, 1.0))
        assert_feasible(Simplex(), actual)
        # Rounding y moves x by as much, in the 1-norm; nothing else may.
        scale = 1 + f64(y).abs()[expected > 0].sum().item()
        assert (actual - expected).abs().max() <= 32 * EPS * scale

    @settings(max_examples=400)
    @given(WIDE, RADII)
    def test_l1_ball(self, drawn, radius):
        y, h = drawn
        actual, expected = L1Ball(radius)(f64(y), f64(h)), f64(exact_l1(y, h, radius))
        assert_feasible(L1Ball(radius), actual)
        scale = radius + f64(y).abs()[expected != 0].sum().item()
        assert (actual - expected).abs().max() <= 32 * EPS * scale
        assert bool((actual * f64(y) >= 0).all())

    @settings(max_examples=300)
    @given(WIDE, RADII)
    def test_l2_ball(self, drawn, radius):
        y, h = drawn
        actual, expected = L2Ball(radius)(f64(y), f64(h)), f64(exact_l2(y, h, radius))
        assert_feasible(L2Ball(radius), actual)
        # Rounding one coordinate moves another by √(h/h') times that (non-expansive in H), and on a sphere by
        # √eps at most: that much no method can tell.
        spread = [value for value in h if value > 0]
        condition = math.sqrt(max(spread) / min(spread)) if spread and 0.0 not in h else math.inf
        assert (actual - expected).abs().max() <= radius * min(64 * EPS * condition, 1e-7)

    @settings(max_examples=200)
    @given(coordinates(MODERATE, st.floats(1e-2, 1e2)), RADII)
    def test_l2_ball_to_rounding_in_a_mild_metric(self, drawn, radius):
        y, h = drawn
        actual, expected = L2Ball(radius)(f64(y), f64(h)), f64(exact_l2(y, h, radius))
        assert (actual - expected).abs().max() <= 200 * EPS * radius


class TestZerosOfTheMetric:
    """The limit of one common h → 0⁺, by hand."""

    cases = pytest.mark.parametrize(
        ("projection", "point", "metric", "expected"),
        [
            # the paid coordinates alone are too long: free ones vanish
            (L2Ball(1.0), [3.0, 4.0, 7.0], [2.0, 2.0, 0.0], [0.6, 0.8, 0.0]),
            # they fit: free ones take what is left, √(1 − 0.6²) = 0.8, in their own direction
            (L2Ball(1.0), [0.6, 5.0], [1.0, 0.0], [0.6, 0.8]),
            (L2Ball(1.0), [0.6, 3.0, -4.0], [9.0, 0.0, 0.0], [0.6, 0.48, -0.64]),
            (L2Ball(5.0), [30.0, 40.0], [0.0, 0.0], [3.0, 4.0]),
            (L1Ball(1.0), [2.0, -1.0, 7.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]),
            (L1Ball(1.0), [0.25, -1.0, 0.75], [1e-9, 0.0, 0.0], [0.25, -0.5, 0.25]),
            (L1Ball(2.0), [0.5, -4.0], [0.0, 0.0], [0.0, -2.0]),
            (L1Ball(1.0), [1.0, 5.0], [1.0, 0.0], [1.0, 0.0]),
            (Simplex(), [0.75, 0.75, 9.0], [1.0, 1.0, 0.0], [0.5, 0.5, 0.0]),
            (Simplex(), [0.5, -2.0, 9.0], [1.0, 5.0, 0.0], [0.5, 0.0, 0.5]),
            (Simplex(), [0.5, -2.0, -2.5], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]),
            (Simplex(), [0.5, -2.0, -2.25], [1.0, 0.0, 0.0], [0.5, 0.375, 0.125]),
            (Simplex(), [-7.0, -7.0], [0.0, 0.0], [0.5, 0.5]),
        ],
    )

    @cases
    def test_value(self, projection, point, metric, expected):
        torch.testing.assert_close(projection(f64(point), f64(metric)), f64(expected), rtol=1e-15, atol=1e-15)

    @cases
    def test_is_the_limit_of_tiny_equal_metrics(self, projection, point, metric, expected):
        tiny = f64(metric)
        tiny[tiny == 0] = 1e-150
        torch.testing.assert_close(projection(f64(point), tiny), f64(expected), rtol=1e-7, atol=1e-7)


class TestByHand:
    @pytest.mark.parametrize(
        ("projection", "point", "metric", "expected"),
        [
            (Box(-1.0, 2.0), [-3.0, 0.5, 9.0], [0.0, 1.0, 1e30], [-1.0, 0.5, 2.0]),
            (Box(-math.inf, 0.0), [-3.0, 0.5], [1.0, 1.0], [-3.0, 0.0]),
            (Box(f64([0.0, 1.0]), f64([1.0, 1.0])), [7.0, 7.0], [1.0, 1.0], [1.0, 1.0]),
            (NonNegative(), [-3.0, 0.0, 2.0], [0.0, 1.0, 5.0], [0.0, 0.0, 2.0]),
            (Simplex(), [-7.0, -7.0], [1.0, 3.0], [1.0, 0.0]),  # μ < 0: the cheaper one does all the work
            (Simplex(), [0.0, 0.0], [1.0, 3.0], [0.75, 0.25]),
            (Simplex(), [0.75, 0.75], [1.0, 3.0], [0.375, 0.625]),
            (L1Ball(1.0), [0.75, -0.75], [1.0, 3.0], [0.375, -0.625]),
            (L2Ball(1.0), [-5.0], [1e-30], [-1.0]),
            (L1Ball(2.0), [-5.0], [0.0], [-2.0]),
            (Simplex(), [-5.0], [7.0], [1.0]),
            (Simplex(), [123.0], [0.0], [1.0]),
        ],
    )
    def test_value(self, projection, point, metric, expected):
        torch.testing.assert_close(projection(f64(point), f64(metric)), f64(expected), rtol=1e-15, atol=1e-15)

    @pytest.mark.parametrize("huge", [1e20, 1e200, MAX])
    @pytest.mark.parametrize("h", [SMALLEST, 1e-30, 1.0, 1e30, MAX])
    def test_ties_share_equally_however_large(self, huge, h):
        point, metric = torch.full((4,), huge, dtype=torch.float64), torch.full((4,), h, dtype=torch.float64)
        quarter = torch.full((4,), 0.25, dtype=torch.float64)
        for projection in (Simplex(), L1Ball(1.0), L2Ball(0.5)):
            torch.testing.assert_close(projection(point, metric), quarter, rtol=1e-15, atol=0)
        torch.testing.assert_close(Simplex()(-point, metric), quarter, rtol=1e-15, atol=0)
        torch.testing.assert_close(L1Ball(1.0)(-point, metric), -quarter, rtol=1e-15, atol=0)

    def test_products_that_overflow_or_underflow_are_still_ordered(self):
        point, metric = f64([1e30, 1e30, 1e25]), f64([1e290, 1e300, 1e300])
        torch.testing.assert_close(L1Ball(1.0)(point, metric), f64([0.0, 1.0, 0.0]))
        point, metric = f64([2e-30, 1e-30, 5e-31]), f64([1e-310, 1e-300, 1e-299])
        torch.testing.assert_close(L1Ball(2e-30)(point, metric), f64([5e-31, 1e-30, 5e-31]), rtol=1e-9, atol=0)
        expected = f64([0.0, 1e-30 - 3e-31 * 10 / 11, 5e-31 - 3e-31 / 11])
        torch.testing.assert_close(L1Ball(1.2e-30)(point, metric), expected, rtol=1e-9, atol=0)

    def test_a_zero_coordinate_in_a_metric_of_unbounded_ratio(self):
        # h₀/h₁ overflows, and 0 · inf must not decide that coordinate 2 is left out.
        x = Simplex()(f64([0.0, 0.25, -0.25]), f64([1e300, 1e-300, 1e-300]))
        torch.testing.assert_close(x, f64([0.0, 0.75, 0.25]), rtol=1e-15, atol=1e-15)

    @pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
    def test_balls_scale_with_point_and_radius(self, scale):
        point, metric = f64([3.0, -1.0, 0.5, 2.0]), f64([1.0, 1e3, 1e-3, 0.0])
        for ball in (L1Ball, L2Ball):
            scaled = ball(1.25 * scale)(point * scale, metric) / scale
            torch.testing.assert_close(scaled, ball(1.25)(point, metric), rtol=1e-13, atol=1e-15)

    @fibrewise
    def test_only_the_ratios_of_the_metric_matter(self, projection):
        point, metric = f64([3.0, -1.0, 0.5, 2.0]), f64([1.0, 0.125, 8.0, 2.0])
        for scale in (2.0**-1000, 2.0**1000):
            assert_same_bits(projection(point, metric * scale), projection(point, metric))


class TestOptimality:
    @each
    @settings(max_examples=100)
    @given(drawn=coordinates(st.one_of(MODERATE, st.floats(-1e9, 1e9)), SPREAD), seed=st.integers(0, 2**32 - 1))
    def test_no_feasible_direction_descends(self, projection, drawn, seed):
        # KKT in one line: Σ h (y − x)(z − x) ≤ 0 for every feasible z.
        y, h = map(f64, drawn)
        x = projection(y, h)
        assert_feasible(projection, x)
        others = torch.randn(20, len(y), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        others = torch.cat([others * 3, torch.eye(len(y)), -torch.eye(len(y)), y[None], torch.zeros_like(y)[None]])
        row = along(projection, 1) if projection in FIBREWISE else projection
        feasible = row(others, torch.ones_like(others))
        ascent = (h * (y - x) * (feasible - x)).sum(-1)
        size = ((h * (y - x)).abs() * (1 + y.abs().clamp(max=2))).sum() + (h * (1 + y.abs())).sum()
        assert ascent.max() <= 1e-13 * size

    @settings(max_examples=100)
    @given(coordinates(MODERATE, st.floats(-30, 30).map(lambda k: 10.0**k)), st.sampled_from([0.3, 1.0]))
    def test_one_multiplier_explains_all_coordinates(self, drawn, radius):
        y, h = map(f64, drawn)
        y[0] += radius + 3  # outside the ball
        for projection in (L1Ball(radius), Simplex()):
            signed = y.abs() if isinstance(projection, L1Ball) else y
            x = projection(y, h).abs()
            error = 64 * EPS * (1 + signed.abs())
            lowest, highest = h * (signed - x - error), h * (signed - x + error)
            assert lowest[x > 0].max() <= highest[x > 0].min()  # one μ = h(|y| − x) wherever x > 0,
            assert lowest.max() <= highest[x > 0].min()  # and h|y| ≤ μ elsewhere

    # Asked for more digits than it can reach, Clarabel gives those it has; the tolerances below judge them.
    @pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning")
    @pytest.mark.parametrize("seed", range(12))
    @each
    def test_agrees_with_a_generic_convex_solver(self, projection, seed):
        generator = np.random.default_rng(seed)
        size = 1 + seed
        y = generator.normal(size=size) * generator.choice([0.3, 1.0, 4.0])
        h = 10.0 ** generator.uniform(-2, 2, size=size)
        x = cp.Variable(size)
        constraints = {
            Box: lambda: [x >= projection.low, x <= projection.high],
            NonNegative: lambda: [x >= 0],
            L2Ball: lambda: [cp.norm2(x) <= projection.radius],
            L1Ball: lambda: [cp.norm1(x) <= projection.radius],
            Simplex: lambda: [x >= 0, cp.sum(x) == 1],
        }[type(projection)]()
        problem = cp.Problem(cp.Minimize(cp.sum_squares(cp.multiply(np.sqrt(h), x - y))), constraints)
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        actual = projection(torch.from_numpy(y), torch.from_numpy(h)).numpy()
        np.testing.assert_allclose(actual, x.value, atol=2e-4)  # the solver's error
        assert h @ (actual - y) ** 2 <= problem.value * (1 + 1e-7) + 1e-9

    @each
    @settings(max_examples=100)
    @given(
        drawn=st.lists(st.tuples(MODERATE, MODERATE, SPREAD), min_size=1, max_size=8).map(
            lambda d: list(zip(*d, strict=True))
        )
    )
    def test_is_non_expansive_in_the_metric(self, projection, drawn):
        first, second, h = map(f64, drawn)
        before = (h * (first - second) ** 2).sum().sqrt()
        after = (h * (projection(first, h) - projection(second, h)) ** 2).sum().sqrt()
        assert after <= before + 1e-13 * h.sum().sqrt()

    @each
    @given(drawn=WIDE)
    def test_projecting_twice_changes_nothing(self, projection, drawn):
        y, h = map(f64, drawn)
        once = projection(y, h)
        assert_same_bits(projection(once, h), once)
        assert_same_bits(projection(once, torch.ones_like(h)), once)

    @fibrewise
    def test_many_coordinates(self, projection):
        generator = torch.Generator().manual_seed(0)
        point = torch.randn(100_000, generator=generator, dtype=torch.float64)
        metric = 10.0 ** (60 * torch.rand(100_000, generator=generator, dtype=torch.float64) - 30)
        metric[::7] = 0
        for scale in (1e-9, 1e-5, 1.0, 1e6):  # nobody, some, or all of the paid ones move
            x = projection(point * scale, metric)
            assert_feasible(projection, x)
            assert_same_bits(projection(x, metric), x)


class TestFeasiblePoints:
    @each
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    @given(drawn=coordinates(st.one_of(st.floats(0, 0.5), st.just(-0.0)), SPREAD))
    def test_come_back_bit_for_bit(self, projection, dtype, drawn):
        y, h = map(f64, drawn)
        if isinstance(projection, Simplex):
            y = torch.cat([y / 8, y[:1]])
            y[-1] = 1 - y[:-1].sum()
            y, h = y.abs(), torch.cat([h, h[:1]])
            dtype = torch.float64  # where a sum is 1 to rounding
        else:
            y = y * 0.3
        y = y.to(dtype)
        x = projection(y, h)
        assert_same_bits(x, y)
        assert x.data_ptr() != y.data_ptr()

    def test_negative_zero(self):
        zeros = torch.full((9,), -0.0, dtype=torch.float64)
        for projection in (Box(0.0, 1.0), Box(torch.zeros(9), 1.0), Box(-1.0, torch.zeros(9)), NonNegative()):
            assert_same_bits(projection(zeros, torch.ones(9)), zeros)

    def test_on_the_boundary(self):
        assert_same_bits(L2Ball(5.0)(f64([3.0, -4.0]), f64([1.0, 0.0])), f64([3.0, -4.0]))
        assert_same_bits(L1Ball(7.0)(f64([3.0, -4.0]), f64([1.0, 0.0])), f64([3.0, -4.0]))
        tenths = torch.full((10,), 0.1, dtype=torch.float64)
        assert_same_bits(Simplex()(tenths, torch.arange(10, dtype=torch.float64)), tenths)

    def test_just_outside_moves(self):
        outside = 1 + 1e-13
        assert L2Ball(1.0)(f64([outside]), f64([1.0])).item() == 1.0
        assert L1Ball(1.0)(f64([outside]), f64([1.0])).item() == 1.0
        assert Simplex()(f64([outside]), f64([1.0])).item() == 1.0


class TestShapesAndDtypes:
    @fibrewise
    @pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2])
    def test_dim_is_a_loop_over_fibres(self, projection, dim):
        generator = torch.Generator().manual_seed(dim + 3)
        point = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
        metric = 10.0 ** (8 * torch.rand(3, 4, 5, generator=generator, dtype=torch.float64) - 4)
        metric[torch.rand(3, 4, 5, generator=generator) < 0.2] = 0
        point[0] *= 0.05  # some fibres are feasible
        x = along(projection, dim)(point, metric)
        assert x.shape == point.shape
        fibres = zip(*(t.movedim(dim, -1).reshape(-1, t.shape[dim]) for t in (point, metric, x)), strict=True)
        for y, h, actual in fibres:
            torch.testing.assert_close(actual, projection(y, h), rtol=1e-14, atol=1e-15)

    @each
    def test_without_dim_is_flattened(self, projection):
        point, metric = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), torch.rand(3, 4) + 0.1
        flat = projection(point.reshape(-1), metric.reshape(-1))
        assert_same_bits(projection(point, metric), flat.reshape(3, 4))
        assert_same_bits(projection(point.T, metric.T).T, projection(point.T.clone(), metric.T.clone()).T)

    @each
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("metric_dtype", [torch.float64, torch.float32])
    def test_is_float64_rounded_once(self, projection, dtype, metric_dtype):
        generator = torch.Generator().manual_seed(2)
        point = (3 * torch.randn(50, generator=generator)).to(dtype)
        metric = torch.rand(50, generator=generator, dtype=metric_dtype)
        exact = projection(point.double(), metric.double())
        assert_same_bits(projection(point, metric), exact.to(dtype))
        assert_feasible(projection, projection(point, metric).double(), slack=torch.finfo(dtype).eps)

    @each
    @pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
    def test_empty(self, projection, shape):
        empty = torch.zeros(shape)
        assert_same_bits(projection(empty, empty), empty)
        if projection in FIBREWISE:
            for dim in range(-len(shape), len(shape)):
                assert_same_bits(along(projection, dim)(empty, empty), empty)

    def test_zero_dimensional(self):
        point, metric = torch.tensor(5.0), torch.tensor(2.0)
        for projection in (
            L2Ball(1.5),
            L2Ball(1.5, 0),
            L1Ball(1.5, -1),
            Box(0.0, 1.5),
            Box(0.0, torch.tensor(1.5)),
        ):
            assert_same_bits(projection(point, metric), torch.tensor(1.5))
        assert_same_bits(Simplex(0)(point, metric), torch.tensor(1.0))
        assert_same_bits(NonNegative()(-point, metric), torch.tensor(0.0))

    @each
    def test_stays_outside_autograd_and_leaves_its_arguments_alone(self, projection):
        point = torch.nn.Parameter(f64([3.0, -2.0, 0.1]))
        metric = f64([1.0, 0.0, 2.0]).requires_grad_()
        x = projection(point, metric)
        assert not x.requires_grad
        assert point.tolist() == [3.0, -2.0, 0.1]
        assert metric.tolist() == [1.0, 0.0, 2.0]

    @pytest.mark.parametrize("dim", [None, 0, 1])
    def test_nothing_reads_values_off_the_cpu(self, dim):
        # Tensors on `meta` have no values, so whatever would synchronise a GPU raises here.
        point = torch.empty(6, 7, device="meta")
        for projection in (Box(0.0, 1.0), NonNegative(), L2Ball(1.0, dim), L1Ball(1.0, dim), Simplex(dim)):
            assert projection(point, point).shape == (6, 7)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")  # which we use
    @pytest.mark.parametrize("dim", [None, 0, 1])
    def test_cuda_agrees_without_synchronising(self, dim):
        generator = torch.Generator().manual_seed(3)
        point = torch.randn(40, 50, generator=generator, dtype=torch.float64)
        metric = 10.0 ** (60 * torch.rand(40, 50, generator=generator, dtype=torch.float64) - 30)
        metric[torch.rand(40, 50, generator=generator) < 0.1] = 0
        point[:, :20] *= 0.01
        on_gpu = point.cuda(), metric.cuda()
        for projection in (Box(0.0, 1.0), NonNegative(), L2Ball(1.0, dim), L1Ball(1.0, dim), Simplex(dim)):
            torch.cuda.set_sync_debug_mode("error")
            try:
                x = projection(*on_gpu)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            torch.testing.assert_close(x.cpu(), projection(point, metric), rtol=1e-12, atol=1e-7)


class TestNonFinitePoints:
    @fibrewise
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("h", [0.0, 1.0])
    def test_make_their_fibre_nan_and_no_other(self, projection, bad, h):
        point = f64([[3.0, bad, 1.0], [3.0, 2.0, 1.0], [0.0, 0.25, 0.75]])
        metric = f64([[1.0, h, 2.0]] * 3)
        x = along(projection, 1)(point, metric)
        assert bool(x[0].isnan().all())
        for row in (1, 2):
            torch.testing.assert_close(x[row], projection(point[row], metric[row]), rtol=1e-15, atol=0)
        assert bool(projection(point, metric).isnan().all())

    def test_in_a_box(self):
        x = Box(-1.0, 2.0)(f64([math.nan, math.inf, -math.inf]), torch.ones(3))
        assert math.isnan(x[0])
        assert x[1:].tolist() == [2.0, -1.0]
        x = NonNegative()(f64([math.nan, math.inf, -math.inf]), torch.ones(3))
        assert math.isnan(x[0])
        assert x[1:].tolist() == [math.inf, 0.0]


class TestObjects:
    def test_repr(self):
        assert repr(Box(-1, 1.5)) == "Box(low=-1.0, high=1.5)"
        assert repr(Box(torch.zeros(2), 1.0)) == "Box(low=tensor([0., 0.], dtype=torch.float64), high=1.0)"
        assert repr(NonNegative()) == "NonNegative()"
        assert repr(L2Ball(2)) == "L2Ball(radius=2.0, dim=None)"
        assert repr(L1Ball(0.5, dim=-1)) == "L1Ball(radius=0.5, dim=-1)"
        assert repr(Simplex(1)) == "Simplex(dim=1)"

    def test_equality_and_hash(self):
        def make():
            bound = torch.tensor([1.0, 2.0])
            return [
                Box(0, 1),
                Box(0, bound),
                NonNegative(),
                L2Ball(1),
                L1Ball(1),
                L1Ball(1, 0),
                Simplex(),
                Simplex(0),
            ]

        for i, first in enumerate(make()):
            for j, second in enumerate(make()):
                assert (first == second) == (i == j)
                assert i != j or hash(first) == hash(second)
        assert Box(0, torch.tensor([1.0, 2.0])) != Box(0, torch.tensor([1.0, 3.0]))
        assert Box(0, torch.tensor(1.0)) != Box(0, 1.0)
        assert Box(0, 1) != "Box(0, 1)"

    @each
    def test_pickle(self, projection):
        assert pickle.loads(pickle.dumps(projection)) == projection

    def test_frozen(self):
        with pytest.raises(FrozenInstanceError):
            L2Ball(1.0).radius = 2.0
        with pytest.raises(FrozenInstanceError):
            Box(0.0, 1.0).low = 2.0

    def test_a_box_keeps_its_own_bounds(self):
        low = torch.zeros(2, dtype=torch.float64)
        box = Box(low, 1.0)
        low += 5
        assert box(f64([-1.0, 0.5]), torch.ones(2)).tolist() == [0.0, 0.5]

    def test_examples_in_the_docstrings(self):
        result = doctest.testmod(projections)
        assert result.failed == 0
        assert result.attempted >= 10


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: L2Ball(-1.0), ValueError, "`L2Ball(radius=...)` must be positive and finite, got -1.0."),
        (lambda: L2Ball(0), ValueError, "`L2Ball(radius=...)` must be positive and finite, got 0."),
        (lambda: L1Ball(INF), ValueError, "`L1Ball(radius=...)` must be positive and finite, got inf."),
        (lambda: L1Ball(NAN), ValueError, "`L1Ball(radius=...)` must be positive and finite, got nan."),
        (lambda: L1Ball("1"), TypeError, "`L1Ball(radius=...)` must be a real number, got '1'."),
        (lambda: L2Ball(1j), TypeError, "`L2Ball(radius=...)` must be a real number, got 1j."),
        (lambda: L2Ball(True), TypeError, "`L2Ball(radius=...)` must be a real number, got True."),
        (lambda: L2Ball(torch.ones(2)), TypeError, "`L2Ball(radius=...)` must be a real number, got tensor"),
        (lambda: L2Ball(1.0, 0.5), TypeError, "`L2Ball(dim=...)` must be an int or None, got 0.5."),
        (lambda: L1Ball(1.0, "0"), TypeError, "`L1Ball(dim=...)` must be an int or None, got '0'."),
        (lambda: Simplex(True), TypeError, "`Simplex(dim=...)` must be an int or None, got True."),
        (lambda: Simplex((0, 1)), TypeError, "`Simplex(dim=...)` must be an int or None, got (0, 1)."),
        (
            lambda: Box(1, 0),
            ValueError,
            "`Box(low=..., high=...)` must satisfy low <= high, got 1.0 and 0.0.",
        ),
        (lambda: Box(torch.arange(2), 0.5), ValueError, "must satisfy low <= high, got tensor([0., 1."),
        (lambda: Box(NAN, 1.0), ValueError, "`Box(low=...)` must be below inf and not NaN, got nan."),
        (
            lambda: Box(0.0, f64([NAN])),
            ValueError,
            "`Box(high=...)` must be above -inf and not NaN, got tensor([nan]",
        ),
        (lambda: Box(INF, INF), ValueError, "`Box(low=...)` must be below inf and not NaN, got inf."),
        (lambda: Box(-INF, -INF), ValueError, "`Box(high=...)` must be above -inf and not NaN, got -inf."),
        (lambda: Box("0", 1.0), TypeError, "`Box(low=...)` must be a real number or a real tensor, got '0'."),
        (
            lambda: Box(0.0, None),
            TypeError,
            "`Box(high=...)` must be a real number or a real tensor, got None.",
        ),
        (
            lambda: Box(0.0, True),
            TypeError,
            "`Box(high=...)` must be a real number or a real tensor, got True.",
        ),
        (
            lambda: Box(torch.ones(1) * 1j, 1.0),
            TypeError,
            "`Box(low=...)` must be a real number or a real tensor",
        ),
        (
            lambda: Box(torch.zeros(2), torch.ones(3)),
            ValueError,
            "`Box(low=..., high=...)` must broadcast with each",
        ),
    ],
)
def test_constructor_errors(make, error, message):
    with pytest.raises(error) as raised:
        make()
    assert message in str(raised.value)


@each
@pytest.mark.parametrize(
    ("point", "metric", "error", "message"),
    [
        (
            torch.ones(3),
            torch.ones(2),
            ValueError,
            "(metric=...)` must have the point's shape (3,), got (2,).",
        ),
        (
            torch.ones(3),
            torch.ones(()),
            ValueError,
            "(metric=...)` must have the point's shape (3,), got ().",
        ),
        (
            torch.ones(2, dtype=torch.int64),
            torch.ones(2),
            TypeError,
            "(point=...)` must be a real floating-point",
        ),
        (torch.ones(2), torch.ones(2, dtype=torch.bool), TypeError, "tensor, got torch.bool."),
        (torch.ones(2) * 1j, torch.ones(2), TypeError, "floating-point tensor, got torch.complex64."),
        (torch.ones(2), torch.ones(2) * 1j, TypeError, "(metric=...)` must be a real floating-point tensor"),
        ([1.0], torch.ones(1), TypeError, "(point=...)` must be a real floating-point tensor, got list."),
        (torch.ones(1), 1.0, TypeError, "(metric=...)` must be a real floating-point tensor, got float."),
        (
            torch.ones(1),
            torch.ones(1, device="meta"),
            ValueError,
            "must be on the point's device cpu, got meta.",
        ),
        (
            torch.ones(2),
            f64([1.0, -0.5]),
            ValueError,
            "(metric=...)` must be finite and at least 0, got -0.5.",
        ),
        (torch.ones(2), f64([NAN, 1.0]), ValueError, "(metric=...)` must be finite and at least 0, got nan."),
        (torch.ones(2), f64([INF, 1.0]), ValueError, "(metric=...)` must be finite and at least 0, got inf."),
        (torch.ones(()), f64(-1.0), ValueError, "(metric=...)` must be finite and at least 0, got -1.0."),
    ],
)
def test_call_errors(projection, point, metric, error, message):
    with pytest.raises(error) as raised:
        projection(point, metric)
    assert str(raised.value).startswith(f"`{type(projection).__name__}()(")
    assert message in str(raised.value)


@fibrewise
@pytest.mark.parametrize(
    ("shape", "dim", "allowed"), [((2, 3), 2, "[-2, 1]"), ((2,), -2, "[-1, 0]"), ((), 1, "[-1, 0]")]
)
def test_dim_out_of_range(projection, shape, dim, allowed):
    with pytest.raises(ValueError, match="dim") as raised:
        along(projection, dim)(torch.ones(shape), torch.ones(shape))
    name = type(projection).__name__
    expected = f"`{name}(dim=...)` must be in {allowed} for a point of shape {shape}, got {dim}."
    assert str(raised.value) == expected


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 1, 2)])
def test_box_bounds_that_do_not_broadcast(shape):
    message = rf"`Box\(high=...\)` must broadcast to the point's shape \(1, 2\), got shape \({str(shape)[1:-1]}\)."
    with pytest.raises(ValueError, match=message):
        Box(0.0, torch.ones(shape))(torch.ones(1, 2), torch.ones(1, 2))
