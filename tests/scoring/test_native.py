"""The compiled core of measures: clean under the sanitizers, and shared out over threads."""

import math
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from dasgrad.scoring import native
from dasgrad.scoring.native import threads
from dasgrad.scoring.workspace import Workspace

SOURCE = Path(native.__file__).with_name("measures.cpp")
DRIVER = Path(__file__).with_name("native_driver.cpp")
needs_native = pytest.mark.skipif(not native.supports(torch.zeros(1)), reason="built without the compiled core")


def test_the_source_is_clean_under_the_sanitizers(tmp_path):
    """With the vectors of narrower machines, too."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("needs a C++ compiler, none is on the path")
    if not SOURCE.exists():
        pytest.skip("needs the source tree")
    program = tmp_path / "driver"
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if subprocess.run(
        [compiler, *sanitizers, "-x", "c++", "-", "-o", str(program)], input="int main() {}", text=True, check=False
    ).returncode:
        pytest.skip("the compiler has no sanitizers")
    widest = tmp_path / "widest.h"
    widest.write_text("#include <cstdint>\nextern int64_t widest;\n", encoding="utf8")
    # Clones for several processors resolve before a sanitizer is ready: they are left out, the code is the same.
    flags = [
        "-std=c++17",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fopenmp-simd",
        "-DDASGRAD_CLONES=",
        "-DDASGRAD_WIDEST=widest",
        "-include",
        str(widest),
        *sanitizers,
    ]
    subprocess.run([compiler, *flags, str(SOURCE), str(DRIVER), "-o", str(program)], check=True)
    result = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("ok ")


@needs_native
def test_the_library_needs_neither_python_nor_torch():
    content = Path(native.__file__).with_name("measures.core.so").read_bytes()
    for name in (b"Py_", b"PyInit", b"libtorch", b"libpython"):
        assert name not in content


@pytest.mark.parametrize("own_threads", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_examples", [0, 1, 2, 17])
def test_every_example_is_done_once(num_examples, num_threads, own_threads, monkeypatch):
    if own_threads:
        monkeypatch.setattr(threads, "_openmp", None)
    done = torch.zeros(num_examples, dtype=torch.int64)

    def part(first, last):
        done[first:last] += 1

    threads.share_out(part, num_examples, num_threads)
    assert (done == 1).all()


@pytest.mark.skipif(threads._openmp is None, reason="torch has no GNU OpenMP here")
def test_an_error_in_a_thread_reaches_the_caller():
    def part(first, last):
        raise ZeroDivisionError("in a thread")

    with pytest.raises(ZeroDivisionError, match="in a thread"):
        threads.share_out(part, 10, 2)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("shape", [(7, 3, 17), (33, 300, 20), (0, 4, 5), (150, 40, 19 * 16 + 3), (2, 0, 5), (2, 3, 0)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_weight_and_bias_of_a_layer_are_measured_at_once(shape, num_threads, dtype, with_bias, monkeypatch):
    monkeypatch.setattr(native, "_worthwhile_threads", lambda entries: num_threads)
    num_examples, num_rows, num_columns = shape
    generator = torch.Generator().manual_seed(0)
    left, right, weight, bias = (
        torch.rand(size, generator=generator, dtype=torch.float64)
        for size in (
            (num_examples, num_rows),
            (num_examples, num_columns),
            (num_rows, num_columns),
            num_rows,
        )
    )
    left *= torch.rand(left.shape, generator=generator) < 0.5  # as behind rectified units
    left[1:2] = 0
    wanted = left.square() * (right.square() @ (0.5 / (2 * weight.sqrt() + 0.1)).t())
    if with_bias:
        wanted += left.square() * (0.25 / (3 * bias.sqrt() + 0.2))
    factors = left.to(dtype), right.to(dtype)
    curvatures = (weight.to(dtype), (2.0, 0.1, 0.5)), (bias.to(dtype), (3.0, 0.2, 0.25)) if with_bias else None
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    totals = native.LinearTotals(num_examples, dtype, Workspace())
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for number in (1, 2, 3):
        assert totals.add(*factors, *curvatures)
        torch.testing.assert_close(totals.values, number * wanted.sum(1), rtol=tolerance, atol=0)
    weights = torch.rand(num_examples, generator=generator, dtype=torch.float64) + 0.5
    lengths = totals.lengths(weights.to(dtype), 0.25)
    assert lengths.dtype == dtype
    torch.testing.assert_close(lengths.double(), (3 * wanted.sum(1)).sqrt() / (0.25 * weights), rtol=tolerance, atol=0)
    other = torch.float32 if dtype == torch.float64 else torch.float64
    assert not totals.add(factors[0].to(other), factors[1].to(other), *curvatures)
    assert totals.lengths(weights.to(other), 0.25) is None


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_outputs", [0, 1, 5])
@pytest.mark.parametrize("lengths", [[], [0], [3], [0, 0, 4000, 2, 1]])
@pytest.mark.parametrize("with_bias", [True, False])
def test_sparse_rows_are_multiplied_as_they_are(lengths, num_outputs, num_threads, dtype, with_bias, monkeypatch):
    monkeypatch.setattr(native, "_worthwhile_threads", lambda entries: num_threads)
    generator = torch.Generator().manual_seed(0)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    columns = torch.randint(6, (int(starts[-1]),), generator=generator)  # some more than once
    values, weight, bias = (
        torch.randn(size, generator=generator, dtype=torch.float64)
        for size in (columns.shape, (num_outputs, 6), (num_outputs,))
    )
    dense = torch.zeros(len(lengths), 6, dtype=torch.float64)
    owners = torch.repeat_interleave(torch.arange(len(lengths)), starts.diff())
    dense.index_put_((owners, columns), values, accumulate=True)
    wanted = dense @ weight.t() + (bias if with_bias else 0.0)
    found = native.sparse_linear(starts, columns, values, weight.to(dtype), bias if with_bias else None)
    assert found.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=100 * tolerance)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("shape", [(7, 3, 17), (1, 1, 1), (0, 2, 5), (2, 0, 5), (3, 2, 640)])
def test_sums_of_normalised_inputs_are_those_of_a_layer_norm(shape, num_threads, dtype, monkeypatch):
    monkeypatch.setattr(native, "_worthwhile_threads", lambda entries: num_threads)
    generator = torch.Generator().manual_seed(0)
    inputs, gradients = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    inputs = 3 * inputs + 10
    wanted = (torch.nn.functional.layer_norm(inputs, shape[-1:], eps=0.1) * gradients).sum(1)
    found = native.normalised_sums(inputs.to(dtype), gradients.to(dtype), 0.1)
    assert found.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=10 * tolerance)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("terms", [0, 1, 2])
def test_rows_named_more_than_once_are_added(num_threads, dtype, terms, monkeypatch):
    monkeypatch.setattr(native, "_worthwhile_threads", lambda entries: num_threads)
    generator = torch.Generator().manual_seed(0)
    num_examples, num_rows, width = 7, 4, 19
    owners = torch.tensor([0] * 3 + [2] * 9 + [3] + [6] * 5)  # some have none
    indices = torch.randint(num_rows, owners.shape, generator=generator)
    values, quadratic, cross = (
        torch.randn(size, width, generator=generator, dtype=torch.float64) for size in (len(owners), num_rows, num_rows)
    )
    gradients = torch.zeros(num_examples, num_rows, width, dtype=torch.float64)
    gradients.index_put_((owners, indices), values, accumulate=True)
    wanted = gradients.square() * (quadratic if terms else 1.0) + (cross * gradients if terms == 2 else 0.0)
    polynomial = (quadratic.to(dtype) if terms else None, cross.to(dtype) if terms == 2 else None)
    found = native.polynomial_rows(owners, indices, values.to(dtype), *polynomial, num_rows, num_examples)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(found, wanted.sum((1, 2)), rtol=tolerance, atol=tolerance)
    for outside in (-1, num_rows):
        indices[5] = outside
        with pytest.raises(IndexError, match="4 rows"):
            native.polynomial_rows(owners, indices, values.to(dtype), *polynomial, num_rows, num_examples)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("shape", [(5, 3, 7, 112), (3, 4, 12, 64), (2, 1, 1, 16), (4, 0, 5, 32), (0, 2, 3, 16)])
@pytest.mark.parametrize("terms", [0, 1, 2])
def test_sums_of_products_are_measured_without_being_formed(shape, num_threads, dtype, terms, monkeypatch):
    num_examples, num_positions, num_rows, num_columns = shape
    if not native.sums_whole_vectors(torch.zeros(0, dtype=dtype), num_columns):
        pytest.skip("needs the compiled core and its widest vectors")
    monkeypatch.setattr(native, "_worthwhile_threads", lambda entries: num_threads)
    generator = torch.Generator().manual_seed(0)
    left, right, quadratic, cross = (
        torch.randn(size, generator=generator, dtype=torch.float64)
        for size in (
            (num_positions, num_examples, num_rows),
            (num_examples, num_positions, num_columns),
            (num_rows, num_columns),
            (num_rows, num_columns),
        )
    )
    left, quadratic = left.transpose(0, 1), quadratic.square() if terms else torch.ones_like(quadratic)
    gradients = left.transpose(1, 2) @ right
    wanted = (quadratic * gradients.square()).sum((1, 2))
    scale = wanted.max() if num_examples else 0.0
    if terms == 2:
        wanted += (cross * gradients).sum((1, 2))
    given = [part.to(dtype) if k < terms else None for k, part in enumerate((quadratic, cross))]
    found = native.sums_of_products(left.to(dtype), right.to(dtype), *given)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(scale))


@pytest.mark.parametrize("terms", [0, 1, 2])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [((3, 2), (1, 1), (1, 1)), ((2, 3), (2, 3), (1, 1)), ((2, 1), (1, 2), (3, 2))]
)
def test_gradients_of_convolutions_are_measured_without_gathering_patches(kernel, stride, dilation, terms):
    if not native.sums_whole_vectors(torch.zeros(0, dtype=torch.float64), 16):
        pytest.skip("needs the compiled core and its widest vectors")
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, 16, 9, 8, generator=generator, dtype=torch.float64)
    weight, cross = torch.randn(2, 7, 16, *kernel, generator=generator, dtype=torch.float64)
    outputs = torch.nn.functional.conv2d(images, weight, stride=stride, dilation=dilation)
    left = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    gradients = torch.stack(
        [
            torch.nn.grad.conv2d_weight(x[None], weight.shape, b[None], stride, 0, dilation)
            for x, b in zip(images, left, strict=True)
        ]
    )
    quadratic = weight.square() if terms else torch.ones_like(weight)
    wanted = (quadratic * gradients.square()).flatten(1).sum(1)
    if terms == 2:
        wanted += (cross * gradients).flatten(1).sum(1)
    given = [part if k < terms else None for k, part in enumerate((quadratic, cross))]
    found = native.sums_over_windows(left, images.permute(0, 2, 3, 1), kernel, stride, dilation, *given)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12 * float(wanted.abs().max()))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 16, 24), (1, 9, 1), (0, 3, 4), (2, 0, 3)])
def test_matrices_are_transposed_in_memory(shape, dtype, num_threads, monkeypatch):
    monkeypatch.setattr(native, "_worthwhile_threads", lambda entries: num_threads)
    matrices = torch.arange(math.prod(shape)).view(shape).to(dtype)
    found = native.transposed(matrices)
    assert found.is_contiguous()
    assert torch.equal(found, matrices.transpose(1, 2))


@needs_native
def test_columns_that_fill_no_vector_are_left_to_matrix_products():
    assert not native.sums_whole_vectors(torch.zeros(0), 17)
    assert not native.sums_whole_vectors(torch.zeros(0, dtype=torch.bfloat16), 64)
