"""The example's own gradient in the metric: compiled core, torch operations and the general formula agree."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import helpers
from dasgrad.moments import resolve
from dasgrad.scoring import kernels, native, own
from dasgrad.scoring.preconditioned import Preconditioning, squared_norms

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


def make_view(
    moments, shape, *, step=3, eps=1e-8, decay=0.0, sign=1.0, corrected=False, dtype=torch.float64, device="cpu"
):
    """A parameter in the middle of training; some entries were never touched."""
    generator = torch.Generator().manual_seed(step)
    pair = resolve(moments)
    param = torch.randn(shape, generator=generator, dtype=torch.float64)
    state = {key: torch.rand(shape, generator=generator, dtype=torch.float64) ** 4 * 1e-3 for key in pair.keys}
    if "max_exp_avg_sq" in state:
        state["max_exp_avg_sq"] = torch.maximum(state["max_exp_avg_sq"], state["exp_avg_sq"])
    for values in state.values():
        values.view(-1)[::3] = 0.0
    return Preconditioning(
        param=param.to(device, dtype),
        state={key: value.to(device, dtype) for key, value in state.items()},
        moments=pair,
        betas=(0.9, 0.99),
        eps=eps,
        bias_correction=corrected,
        step=float(step),
        coupled_decay=decay,
        sign=sign,
        lr_share=1.0,
    )


def gradients_of(left, right):
    return torch.einsum("bo,bk->bok", left, right)


VIEWS = st.fixed_dictionaries(
    {
        "moments": st.sampled_from(helpers.MOMENTS),
        "step": st.integers(1, 50),
        "eps": st.sampled_from([0.0, 1e-8, 1e-3]),
        "decay": st.sampled_from([0.0, 0.3]),
        "sign": st.sampled_from([1.0, -1.0]),
        "corrected": st.booleans(),
    }
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    options=VIEWS,
    momentum=st.booleans(),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 70)),
    seed=st.integers(0, 99),
)
def test_every_way_equals_the_general_formula(device, dtype, compiled, options, momentum, sizes, seed):
    if compiled and device == "cpu" and not native.supports(torch.zeros(1)):
        pytest.skip("built without the compiled core")
    # −g + κθ may all but cancel, and without eps the quotient then has no bound: nothing to compare in float32.
    assume(dtype == torch.float64 or options["eps"] > 0 or options["decay"] == 0)
    num, rows, columns = sizes
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(num, rows, generator=generator, dtype=torch.float64)
    right = torch.randn(num, columns, generator=generator, dtype=torch.float64)
    right[:, ::2] = 0.0  # so that 0/0 happens where eps is 0
    exact = make_view(shape=(rows, columns), **options)
    expected = squared_norms(gradients_of(left, right), exact, "own", momentum)
    view = make_view(shape=(rows, columns), dtype=dtype, device=device, **options)
    terms = own.read_terms(view, momentum, dtype)
    left, right = left.to(device, dtype), right.to(device, dtype)
    dense = gradients_of(left, right).flatten(1)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "supports", lambda tensor: False)
            patch.setattr(kernels, "available", lambda tensor: False)
        found = [own.sum_entries(terms, dense.clone())]
        assert own.takes_outer_products(left) == (compiled and (device == "cpu" or dtype == torch.float32))
        if own.takes_outer_products(left):
            found.append(own.sum_outer_products(terms, left, right))
    rtol = 1e-11 if dtype == torch.float64 else 2e-5
    for totals in found:
        torch.testing.assert_close(totals.double().cpu(), expected, rtol=rtol, atol=1e-30 if rtol < 1e-9 else 1e-12)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("moments", helpers.MOMENTS)
def test_rows_equal_the_dense_gradient_they_stand_for(moments, momentum, columns):
    view = make_view(moments, (4, 5), decay=0.3)
    terms = own.read_terms(view, momentum, torch.float64)
    indices = torch.tensor([3, 0, 2])
    values = torch.randn(3, 4 if columns else 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = torch.zeros(3, 4, 5, dtype=torch.float64)
    for entry, index in enumerate(indices):
        (gradients[entry].t() if columns else gradients[entry])[index] = values[entry]
    nothing = squared_norms(torch.zeros(1, 4, 5, dtype=torch.float64), view, "own", momentum)
    expected = squared_norms(gradients, view, "own", momentum) - nothing
    found = own.sum_rows(terms, indices, values, columns)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_large_batches_are_shared_out_over_threads():
    """Each example is summed by one thread, in the same order: not a bit changes."""
    if not native.supports(torch.zeros(1)):
        pytest.skip("built without the compiled core")
    terms = own.read_terms(make_view("amsgrad", (10, 784), dtype=torch.float32), False, torch.float32)
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(301, 10, generator=generator), torch.randn(301, 784, generator=generator)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = own.sum_outer_products(terms, left, right)
        torch.set_num_threads(3)
        together = own.sum_outer_products(terms, left, right)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)
    assert torch.equal(alone[7:8], own.sum_outer_products(terms, left[7:8], right[7:8]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (70, 784, 10), (129, 33, 64), (5, 100, 17)])
def test_linear_layers_are_read_once(sizes, tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    num, inputs, outputs = sizes
    x, weight = torch.randn(num, inputs, device="cuda"), torch.randn(outputs, inputs, device="cuda")
    bias, quadratic = torch.randn(outputs, device="cuda"), torch.rand(outputs, inputs, device="cuda")
    for offset in (bias, None):
        y, squares = kernels.linear_with_squares(x, weight, offset, quadratic)
        alone, nothing = kernels.linear_with_squares(x, weight, offset, None)
        assert nothing is None
        torch.testing.assert_close(alone, y, rtol=1e-5, atol=1e-5)
        expected = x.double() @ weight.double().t() + (0 if offset is None else offset.double())
        rtol = 1e-2 if tf32 else 1e-5
        torch.testing.assert_close(y.double(), expected, rtol=rtol, atol=rtol * inputs**0.5)
        torch.testing.assert_close(squares.double(), x.double() ** 2 @ quadratic.double().t(), rtol=rtol, atol=rtol)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("size", [1, 10, 513, 40_000])
def test_entries_under_a_frozen_metric_are_read_once(size, cross):
    gradients = torch.randn(37, size, device="cuda")
    quadratic, linear = torch.rand(size, device="cuda"), torch.randn(size, device="cuda") if cross else None
    expected = gradients.double() ** 2 @ quadratic.double()
    expected = expected + gradients.double() @ linear.double() if cross else expected
    found = kernels.quadratic_entries(gradients, quadratic, linear)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * size**0.5)
