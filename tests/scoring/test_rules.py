"""Every rule equals a float64 autograd loop, over shapes and options, and serves what it says it serves."""

from functools import partial

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import dasgrad
from scoring import exact
from scoring.exact import integers, numbers

WIDTH = st.integers(1, 4)
few = settings(max_examples=15)  # for tests that are parametrised besides


# --- fully connected ----------------------------------------------------------------------------------


@given(exact.SIZES, st.lists(st.integers(1, 3), max_size=3), WIDTH, WIDTH, st.booleans(), exact.OPTIONS)
def test_linear(size, positions, inputs, outputs, bias, options):
    exact.check(lambda: nn.Linear(inputs, outputs, bias), numbers(size, *positions, inputs), options)


def sparse(size, columns, seed, duplicates):
    """Rows of no, some or repeated columns."""
    counts = integers(4, size, seed=seed)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    nnz = int(indptr[-1])
    if duplicates:
        indices = integers(columns, nnz, seed=seed + 1)
    else:
        shuffle = torch.Generator().manual_seed(seed)
        picked = [torch.randperm(columns, generator=shuffle)[:count] for count in counts.tolist()]
        indices = torch.cat([torch.zeros(0, dtype=torch.int64), *picked])
    return dasgrad.SparseRows(indptr, indices, numbers(nnz, seed=seed + 2), columns)


@given(exact.SIZES, st.integers(3, 6), WIDTH, st.integers(0, 9), st.booleans(), exact.OPTIONS)
def test_sparse_rows(size, columns, outputs, seed, duplicates, options):
    rows = sparse(size, columns, seed, duplicates)
    assert rows.distinct or duplicates
    exact.check(lambda: nn.Linear(columns, outputs), rows, options)


# --- convolutions -------------------------------------------------------------------------------------

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@st.composite
def convolutions(draw, mode):
    """A convolution of any options, and an input it takes."""
    dims = draw(st.sampled_from([1, 2, 2, 2, 3]))
    per_dim = lambda high: tuple(draw(st.integers(1, high)) for _ in range(dims))  # noqa: E731
    kernel, stride, dilation = per_dim(3), per_dim(2), per_dim(2)
    padding = draw(st.sampled_from(["same", "valid", *range(3)]))
    if padding == "same":
        stride = (1,) * dims
    groups = draw(st.integers(1, 2))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    spatial = tuple(draw(st.integers(5, 7)) for _ in range(dims))
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "padding_mode": mode}
    options["bias"] = draw(st.booleans())
    return (lambda: CONVOLUTIONS[dims](channels, outputs, kernel, **options)), (channels, *spatial)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@settings(max_examples=30)
@given(st.data(), exact.SIZES, st.booleans(), exact.OPTIONS)
def test_convolutions(mode, data, size, channels_last, options):
    build, shape = data.draw(convolutions(mode))
    inputs = numbers(size, *shape)
    if channels_last and inputs.dim() == 4:
        inputs = inputs.to(memory_format=torch.channels_last)
    exact.check(build, inputs, options)


@pytest.mark.parametrize("options", exact.COMBINATIONS, ids=lambda o: f"{o['preconditioner']}-{o['momentum']}")
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_convolutions_of_whole_vectors_of_channels(mode, options):
    def build():
        return nn.Conv2d(16, 3, (2, 3), stride=(2, 1), padding=1, dilation=(1, 2), padding_mode=mode)

    exact.check(build, exact.numbers(3, 16, 5, 6), options)


@st.composite
def transposed_convolutions(draw):
    dims = draw(st.sampled_from([1, 2, 2, 3]))
    per_dim = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    kernel, stride, dilation, extra = per_dim(1, 3), per_dim(1, 3), per_dim(1, 2), per_dim(0, 1)
    assume(all(e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)))
    padding = tuple(draw(st.integers(0, d * (k - 1))) for k, d in zip(kernel, dilation, strict=True))
    groups = draw(st.integers(1, 2))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    options = {"stride": stride, "padding": padding, "output_padding": extra, "dilation": dilation, "groups": groups}
    return (lambda: TRANSPOSED[dims](channels, outputs, kernel, **options)), (channels, *per_dim(2, 4))


@given(transposed_convolutions(), exact.SIZES, exact.OPTIONS)
def test_transposed_convolutions(convolution, size, options):
    build, shape = convolution
    exact.check(build, numbers(size, *shape), options)


# --- normalisations -----------------------------------------------------------------------------------


def with_statistics(build):
    """A layer whose running statistics are not those it starts with."""

    def made():
        layer = build().eval()
        for name, low, high in (("running_mean", -1, 1), ("running_var", 0.5, 2)):
            getattr(layer, name).uniform_(low, high)
        return layer

    return made


def normalisations(channels, spatial):
    """Layers and the shape of an example each takes."""
    two_d = len(spatial) == 2
    instance, batch = (nn.InstanceNorm2d, nn.BatchNorm2d) if two_d else (nn.InstanceNorm1d, nn.BatchNorm1d)
    tracked = {"affine": True, "track_running_stats": True}
    return {
        "layer": (lambda: nn.LayerNorm(spatial[-1]), (channels, *spatial)),
        "layer over several": (lambda: nn.LayerNorm((channels, *spatial)), (channels, *spatial)),
        "layer without bias": (lambda: nn.LayerNorm(channels, bias=False), (channels,)),
        "rms": (lambda: nn.RMSNorm(spatial[-1]), (channels, *spatial)),
        "rms with eps": (lambda: nn.RMSNorm((channels, *spatial), eps=0.5), (channels, *spatial)),
        "group": (lambda: nn.GroupNorm(2, channels), (channels, *spatial)),
        "group of one": (lambda: nn.GroupNorm(1, channels), (channels,)),
        "instance": (lambda: instance(channels, affine=True), (channels, *spatial)),
        "instance, tracked": (with_statistics(lambda: instance(channels, **tracked)), (channels, *spatial)),
        "batch": (with_statistics(lambda: batch(channels)), (channels, *spatial)),
        "batch of features": (with_statistics(lambda: nn.BatchNorm1d(channels)), (channels,)),
    }


@pytest.mark.parametrize("name", normalisations(2, (2,)))
@few
@given(
    exact.SIZES,
    st.sampled_from([2, 4]),
    st.lists(st.integers(2, 3), min_size=1, max_size=2),
    exact.OPTIONS,
)
def test_normalisations(name, size, channels, spatial, options):
    build, shape = normalisations(channels, tuple(spatial))[name]
    exact.check(build, numbers(size, *shape), options)


# --- tables -------------------------------------------------------------------------------------------


@given(
    exact.SIZES,
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(2, 4),
    WIDTH,
    st.sampled_from([None, 0, -1]),
    st.booleans(),
    exact.OPTIONS,
)
def test_embedding(size, positions, rows, width, padding_idx, in_bits, options):
    indices = integers(rows, size, *positions)
    indices = indices.int() if in_bits else indices
    exact.check(lambda: nn.Embedding(rows, width, padding_idx=padding_idx), indices, options)


class Bags(nn.Module):
    """A bag of embeddings, called in each of its ways on ``[B, length]`` indices."""

    def __init__(self, how, weighted, rows, **options):
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, 3, include_last_offset=how == "offsets and end", **options)
        self.how, self.weighted = how, weighted

    def forward(self, indices):
        lengths = indices.sum(1) % (indices.shape[1] + 1)  # bags of different sizes, some empty
        weights = 0.5 + indices.to(self.bag.weight.dtype) if self.weighted else None
        if self.how == "rows":
            return self.bag(indices, per_sample_weights=weights)
        taken = torch.arange(indices.shape[1]) < lengths.unsqueeze(1)
        ends = lengths.cumsum(0)
        offsets = torch.cat([ends.new_zeros(1), ends])
        if self.how == "offsets":
            offsets = offsets[:-1]
        return self.bag(indices[taken], offsets, None if weights is None else weights[taken])


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("how", ["rows", "offsets", "offsets and end"])
@few
@given(
    exact.SIZES,
    st.integers(1, 4),
    st.integers(2, 4),
    st.booleans(),
    st.sampled_from([None, 1]),
    exact.OPTIONS,
)
def test_embedding_bag(how, mode, size, length, rows, weighted, padding_idx, options):
    weighted = weighted and mode == "sum"
    indices = integers(rows, size, length)
    exact.check(lambda: Bags(how, weighted, rows, mode=mode, padding_idx=padding_idx), indices, options)


TABLES = {
    "max_norm": (lambda: nn.Embedding(4, 3, max_norm=0.5), "max_norm"),
    "scale_grad_by_freq": (lambda: nn.Embedding(4, 3, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "max": (lambda: nn.EmbeddingBag(4, 3, mode="max"), "mode='max'"),
}


@pytest.mark.parametrize("table", TABLES)
def test_tables_without_a_rule_are_exact_too(table):
    build, reason = TABLES[table]
    indices = torch.tensor([[0, 0, 1], [2, 3, 3], [1, 1, 1]])
    scorer = exact.check(build, indices, exact.COMBINATIONS[0], irregular=["weight"])
    assert reason in scorer._engine.irregular["model.weight"]


# --- examples along the second dimension --------------------------------------------------------------


class SequenceFirst(nn.Module):
    """Layers that see ``[T, B, width]``."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 3)

    def forward(self, tokens):
        return self.linear(self.norm(self.table(tokens.t())).tanh()).transpose(0, 1)


@given(exact.SIZES, st.integers(1, 4), exact.OPTIONS)
def test_sequence_first_layers(size, length, options):
    exact.check(SequenceFirst, integers(5, size, length), options)


# --- recurrent layers ---------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind, use, **options):
        super().__init__()
        self.rnn = kind(2, 3, **options)
        self.use = use

    def forward(self, x):
        steps_first = not self.rnn.batch_first
        output, last = self.rnn(x.transpose(0, 1) if steps_first else x)
        if self.use == "output":
            return output.transpose(0, 1) if steps_first else output
        return (last[1] if isinstance(last, tuple) else last).transpose(0, 1)


CELLS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": partial(nn.RNN, nonlinearity="relu")}


@pytest.mark.parametrize("cell", CELLS)
@few
@given(
    exact.SIZES,
    st.integers(1, 4),
    st.sampled_from(["output", "last"]),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    exact.OPTIONS,
)
def test_recurrent_layers(cell, size, length, use, num_layers, bias, batch_first, bidirectional, options):
    layout = {"num_layers": num_layers, "bias": bias, "batch_first": batch_first, "bidirectional": bidirectional}
    exact.check(lambda: Recurrent(CELLS[cell], use, **layout), numbers(size, length, 2), options)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 3, batch_first=True)

    def forward(self, x):
        lengths = torch.full((len(x),), x.shape[1])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.rnn(packed)[1].transpose(0, 1)


@pytest.mark.parametrize("build", [Packed, lambda: nn.LSTM(2, 3, batch_first=True, proj_size=2)])
def test_recurrent_layers_without_a_rule_are_exact_too(build):
    names = [name for name, _ in build().named_parameters()]
    exact.check(build, numbers(3, 4, 2), exact.COMBINATIONS[0], irregular=names)


# --- attention ----------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Attention between a sequence and parts of itself, in each of its ways."""

    def __init__(self, memory, mask, padding, use_weights, **options):
        super().__init__()
        kdim, vdim = options.get("kdim") or 4, options.get("vdim") or 4
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, **options)
        self.memory, self.mask, self.padding, self.use_weights = memory, mask, padding, use_weights
        self.kdim, self.vdim = kdim, vdim

    def forward(self, x):
        flip = (lambda t: t) if self.attention.batch_first else (lambda t: t.transpose(0, 1))
        query = flip(x)
        if self.memory == "self":
            key = value = query
        else:
            key = flip(x.flip(1))[..., : self.kdim]
            value = key if self.memory == "shared" else flip(x.flip(1).tanh())[..., : self.vdim]
        length = x.shape[1]
        masks = {}
        if self.mask is not None:
            causal = torch.ones(length, length, dtype=torch.bool).triu(1)
            if self.mask == "each":
                causal = causal.expand(len(x) * 2, -1, -1)
            masks["attn_mask"] = torch.zeros(causal.shape, dtype=x.dtype).masked_fill(causal, -1e4)
            masks["is_causal"] = self.mask == "causal"
        if self.padding:
            hidden = (torch.arange(length) > 0) & (x[..., 0] > 1)
            masks["key_padding_mask"] = torch.zeros(hidden.shape, dtype=x.dtype).masked_fill(hidden, -1e4)
        output, weights = self.attention(
            query, key, value, need_weights=self.use_weights, average_attn_weights=length > 2, **masks
        )
        output = flip(output).flatten(1)
        return output if weights is None else torch.cat([output, weights.flatten(1)], 1)


@pytest.mark.parametrize("memory", ["self", "shared", "apart", "apart, own widths"])
@few
@given(
    exact.SIZES,
    st.integers(1, 3),
    st.sampled_from([None, "one", "each", "causal"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    exact.OPTIONS,
)
def test_multi_head_attention(memory, size, length, mask, padding, use_weights, bias, batch_first, options):
    widths = {"kdim": 3, "vdim": 2} if memory == "apart, own widths" else {}
    exact.check(
        lambda: Attention(memory, mask, padding, use_weights, bias=bias, batch_first=batch_first, **widths),
        numbers(size, length, 4),
        options,
    )


@pytest.mark.parametrize("extra", ["add_bias_kv", "add_zero_attn"])
def test_attention_without_a_rule_is_exact_too(extra):
    build = lambda: Attention("self", None, False, False, batch_first=True, **{extra: True})  # noqa: E731
    names = [name for name, _ in build().named_parameters()]
    exact.check(build, numbers(3, 3, 4), exact.COMBINATIONS[1], irregular=names)
