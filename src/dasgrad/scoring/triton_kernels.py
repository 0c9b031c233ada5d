"""The bodies of `dasgrad.scoring.kernels`; importing this needs Triton.

Each program takes a block of rows (examples) and walks over columns; out-of-range entries read as values that add
nothing. Sums are kept as tiles and reduced once, at the end.
"""

import triton
import triton.language as tl


@triton.jit
def linear_with_squares(
    x_ptr, w_ptr, q_ptr, bias_ptr, y_ptr, s_ptr, num_rows, num_inputs, num_outputs,
    ROWS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BIAS: tl.constexpr, SQUARES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, INPUTS)
    outputs = tl.arange(0, OUTPUTS)
    y = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    s = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, num_inputs, INPUTS):
        at = start + columns
        x_mask = (rows[:, None] < num_rows) & (at[None, :] < num_inputs)
        x = tl.load(x_ptr + rows[:, None].to(tl.int64) * num_inputs + at[None, :], mask=x_mask, other=0.0)
        w_mask = (outputs[None, :] < num_outputs) & (at[:, None] < num_inputs)
        w = tl.load(w_ptr + outputs[None, :] * num_inputs + at[:, None], mask=w_mask, other=0.0)
        y = tl.dot(x, w, y, input_precision=PRECISION)
        if SQUARES:
            q = tl.load(q_ptr + outputs[None, :] * num_inputs + at[:, None], mask=w_mask, other=0.0)
            s = tl.dot(x * x, q, s, input_precision=PRECISION)
    if BIAS:
        y += tl.load(bias_ptr + outputs, mask=outputs < num_outputs, other=0.0)[None, :]
    mask = (rows[:, None] < num_rows) & (outputs[None, :] < num_outputs)
    offsets = rows[:, None].to(tl.int64) * num_outputs + outputs[None, :]
    tl.store(y_ptr + offsets, y, mask=mask)
    if SQUARES:
        tl.store(s_ptr + offsets, s, mask=mask)


@triton.jit
def _reciprocal(x):
    """1/x to 1 ulp or so by one instruction; division takes several."""
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _root(x):
    return tl.inline_asm_elementwise("sqrt.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _own_share(
    g, floor, past, decay, offset, gain, slope, sign, eps,
    DECAY: tl.constexpr, MOMENTUM: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    seen = g
    if DECAY or MOMENTUM:
        seen = sign * g + decay
    metric = _root(tl.maximum(floor, past + gain * seen * seen)) + eps
    direction = g
    if MOMENTUM:
        direction = offset + slope * seen
    square = direction * direction
    share = square * _reciprocal(metric)
    if GUARD:  # eps = 0: 0/0 := 0
        share = tl.where(square == 0.0, 0.0, share)
    return share


@triton.jit
def _own_output(
    output, left_ptr, rows, row_mask, x, x_squares, at, inside, floor_ptr, past_ptr, decay_ptr, offset_ptr,
    gain, slope, sign, eps, num_outputs, num_inputs,
    DECAY: tl.constexpr, MOMENTUM: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    entry = output * num_inputs + at
    left = tl.load(left_ptr + rows.to(tl.int64) * num_outputs + output, mask=row_mask, other=0.0)
    floor = tl.load(floor_ptr + entry, mask=inside, other=1.0)[None, :]
    past = tl.load(past_ptr + entry, mask=inside, other=1.0)[None, :]
    if DECAY or MOMENTUM:
        decay = tl.zeros_like(past)
        offset = tl.zeros_like(past)
        if DECAY:
            decay = tl.load(decay_ptr + entry, mask=inside, other=0.0)[None, :]
        if MOMENTUM:
            offset = tl.load(offset_ptr + entry, mask=inside, other=0.0)[None, :]
        share = _own_share(
            left[:, None] * x, floor, past, decay, offset, gain, slope, sign, eps, DECAY, MOMENTUM, GUARD
        )
    else:
        square = (left * left)[:, None] * x_squares
        share = square * _reciprocal(_root(tl.maximum(floor, past + gain * square)) + eps)
        if GUARD:  # eps = 0: 0/0 := 0
            share = tl.where(square == 0.0, 0.0, share)
    return share


@triton.jit
def own_outer_products(
    left_ptr, right_ptr, floor_ptr, past_ptr, decay_ptr, offset_ptr, out_ptr,
    gain, slope, sign, eps, num_rows, num_outputs, num_inputs,
    ROWS: tl.constexpr, INPUTS: tl.constexpr, UNROLLED: tl.constexpr,
    DECAY: tl.constexpr, MOMENTUM: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = rows < num_rows
    columns = tl.arange(0, INPUTS)
    total = tl.zeros((ROWS, INPUTS), dtype=tl.float32)
    for start in range(0, num_inputs, INPUTS):
        at = start + columns
        inside = at < num_inputs
        mask = row_mask[:, None] & inside[None, :]
        x = tl.load(right_ptr + rows[:, None].to(tl.int64) * num_inputs + at[None, :], mask=mask, other=0.0)
        x_squares = x * x
        if UNROLLED > 0:
            for output in tl.static_range(UNROLLED):
                total += _own_output(
                    output, left_ptr, rows, row_mask, x, x_squares, at, inside, floor_ptr, past_ptr, decay_ptr,
                    offset_ptr, gain, slope, sign, eps, num_outputs, num_inputs, DECAY, MOMENTUM, GUARD,
                )  # fmt: skip
        else:
            for output in range(num_outputs):
                total += _own_output(
                    output, left_ptr, rows, row_mask, x, x_squares, at, inside, floor_ptr, past_ptr, decay_ptr,
                    offset_ptr, gain, slope, sign, eps, num_outputs, num_inputs, DECAY, MOMENTUM, GUARD,
                )  # fmt: skip
    tl.store(out_ptr + rows, tl.sum(total, 1), mask=row_mask)


@triton.jit
def own_entries(
    g_ptr, floor_ptr, past_ptr, decay_ptr, offset_ptr, out_ptr,
    gain, slope, sign, eps, num_rows, size, num_parts,
    ROWS: tl.constexpr, ENTRIES: tl.constexpr, DECAY: tl.constexpr, MOMENTUM: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    total = tl.zeros((ROWS, ENTRIES), dtype=tl.float32)
    for start in range(part * ENTRIES, size, num_parts * ENTRIES):
        at = start + tl.arange(0, ENTRIES)
        inside = at < size
        mask = (rows[:, None] < num_rows) & inside[None, :]
        g = tl.load(g_ptr + rows[:, None].to(tl.int64) * size + at[None, :], mask=mask, other=0.0)
        floor = tl.load(floor_ptr + at, mask=inside, other=1.0)
        past = tl.load(past_ptr + at, mask=inside, other=1.0)
        decay = tl.zeros_like(past)
        offset = tl.zeros_like(past)
        if DECAY:
            decay = tl.load(decay_ptr + at, mask=inside, other=0.0)
        if MOMENTUM:
            offset = tl.load(offset_ptr + at, mask=inside, other=0.0)
        total += _own_share(
            g, floor[None, :], past[None, :], decay[None, :], offset[None, :],
            gain, slope, sign, eps, DECAY, MOMENTUM, GUARD,
        )  # fmt: skip
    tl.store(out_ptr + rows.to(tl.int64) * num_parts + part, tl.sum(total, 1), mask=rows < num_rows)


@triton.jit
def quadratic_entries(
    g_ptr, quadratic_ptr, cross_ptr, out_ptr, num_rows, size, num_parts,
    ROWS: tl.constexpr, ENTRIES: tl.constexpr, QUADRATIC: tl.constexpr, CROSS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    total = tl.zeros((ROWS, ENTRIES), dtype=tl.float32)
    for start in range(part * ENTRIES, size, num_parts * ENTRIES):
        at = start + tl.arange(0, ENTRIES)
        inside = at < size
        mask = (rows[:, None] < num_rows) & inside[None, :]
        g = tl.load(g_ptr + rows[:, None].to(tl.int64) * size + at[None, :], mask=mask, other=0.0)
        if QUADRATIC:
            total += g * g * tl.load(quadratic_ptr + at, mask=inside, other=0.0)[None, :]
        else:
            total += g * g
        if CROSS:
            total += g * tl.load(cross_ptr + at, mask=inside, other=0.0)[None, :]
    tl.store(out_ptr + rows.to(tl.int64) * num_parts + part, tl.sum(total, 1), mask=rows < num_rows)
