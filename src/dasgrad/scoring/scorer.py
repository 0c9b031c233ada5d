"""`ExampleScorer`: how much each example would move the parameters, in the optimizer's own metric."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dasgrad import nested
from dasgrad.progress import Progress, show_progress
from dasgrad.scoring import cheap
from dasgrad.scoring.chunks import FETCHED, WithinMemory, check_chunk_size, read_chunks, usual_chunk_size
from dasgrad.scoring.collector import add_bases
from dasgrad.scoring.engine import Engine
from dasgrad.scoring.explanation import Explanation, explain
from dasgrad.scoring.isolation import device_of, training_batch_norms, untouched, unwrap
from dasgrad.scoring.known import KnownPass, Plan, structure_of
from dasgrad.scoring.layout import Layout, find_layout
from dasgrad.scoring.listening import Ear, Heard, Listening, Weighted
from dasgrad.scoring.losses import Losses, LossesOfPairs, LossFunction
from dasgrad.scoring.measures import Measure, gradient_measure, step_measure
from dasgrad.scoring.noise import inverse_metric, mean_gradients
from dasgrad.scoring.plain import refuse_wrappers
from dasgrad.scoring.preconditioned import Preconditioner, options_of, read_optimizer
from dasgrad.scoring.probe import kind_of
from dasgrad.scoring.snapshot import Twin
from dasgrad.scoring.workspace import Workspace

ScoreName = Literal["dasgrad", "gradient", "last_layer", "loss"]
_SCORES = ("dasgrad", "gradient", "last_layer", "loss")
_LAYERS = ("all", "linear")


class ExampleScorer:
    """Scores sᵢ ≥ 0 of examples, under the model and optimizer as they are at the call.

    ====================  ===========================================================================
    ``score``             sᵢ
    ====================  ===========================================================================
    ``"dasgrad"``         ‖H^(−1/2) dᵢ‖: the preconditioned norm of the step example i would cause
    ``"gradient"``        ‖gᵢ‖
    ``"last_layer"``      ‖∂fᵢ/∂outputᵢ‖
    ``"loss"``            fᵢ
    a function            whatever ``score(model, data)`` returns, ``[B]``
    ====================  ===========================================================================

    With several param groups s² = Σ_g (lr_g / max lr) s_g², over parameters that are in the optimizer and
    require a gradient. Decoupled weight decay never enters a score.

    Args:
        model: scored in eval mode; mode, gradients, buffers, hooks and all random states are left as they
            were. ``torch.compile`` and data-parallel wrappers are looked through.
        loss_fn: ``loss_fn(outputs, targets) -> [B]`` for data that is a pair (inputs, targets).
        optimizer: `DASGrad`, or any with Adam's options and state (``torch.optim.AdamW`` included). Its
            weighting, moments, betas and learning rates are read at each call. Needed for ``"dasgrad"``.
        losses: ``losses(model, data) -> [B]``, the general form, instead of ``loss_fn``.
        score: see above.
        preconditioner: ``"own"`` has the example's own gradient in H, as the paper prints; ``"frozen"``
            takes H as it stands.
        momentum: whether β₁m belongs to dᵢ. None follows the optimizer: it does where the weight multiplies
            the whole step, ``weighting="update"``, and does not elsewhere.
        layers: ``"all"``, or ``"linear"`` for the parameters of ``nn.Linear`` modules alone.
        dtype: precision of the forward and backward passes; None is the model's own. Norms are summed in at
            least float32.

    Raises:
        ValueError, TypeError: for options out of range, a model none of whose parameters is in the
            optimizer, parameters whose gradients are no plain tensors (as of a ``DTensor``), or a loss that is
            not one value per example.

    Example:
        >>> import torch, dasgrad
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = dasgrad.DASGrad(model.parameters())
        >>> scorer = dasgrad.ExampleScorer(model, torch.nn.CrossEntropyLoss(reduction="none"), optimizer)
        >>> scorer(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])).shape
        torch.Size([5])
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        optimizer: Optimizer | None = None,
        *,
        losses: Losses | None = None,
        score: ScoreName | Callable[[Any, Any], Tensor] = "dasgrad",
        preconditioner: Preconditioner = "own",
        momentum: bool | None = None,
        layers: Literal["all", "linear"] = "all",
        dtype: torch.dtype | str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"`ExampleScorer(model=...)` must be an nn.Module, got {type(model).__name__}.")
        if not callable(score) and score not in _SCORES:
            raise ValueError(
                f"`ExampleScorer(score=...)` must be one of {', '.join(_SCORES)} or a function, got {score!r}."
            )
        if not callable(score) and (loss_fn is None) == (losses is None):
            raise ValueError("`ExampleScorer` needs exactly one of `loss_fn` and `losses`.")
        if preconditioner not in ("own", "frozen"):
            raise ValueError(f"`ExampleScorer(preconditioner=...)` must be 'own' or 'frozen', got {preconditioner!r}.")
        if layers not in _LAYERS:
            raise ValueError(f"`ExampleScorer(layers=...)` must be 'all' or 'linear', got {layers!r}.")
        if momentum not in (None, True, False):
            raise ValueError(f"`ExampleScorer(momentum=...)` must be True, False or None, got {momentum!r}.")
        if optimizer is not None and not hasattr(optimizer, "param_groups"):
            raise TypeError(
                f"`ExampleScorer(optimizer=...)` must be a torch.optim.Optimizer, got {type(optimizer).__name__}."
            )
        if score == "dasgrad" and optimizer is None:
            raise ValueError('`ExampleScorer(score="dasgrad")` needs `optimizer`, got None.')
        self.model = unwrap(model)
        self.optimizer = optimizer
        self.score = score
        self.preconditioner: Preconditioner = preconditioner
        self.layers = layers
        self._momentum = momentum
        self._losses = losses if losses is not None else LossesOfPairs(loss_fn) if loss_fn is not None else None
        self._dtype = _as_dtype(dtype)
        self._engine = Engine()
        self._ear = Ear(self._engine)
        self._workspace = Workspace()
        self._warned_batch_norm = False
        self._twin: Twin | None = None  # of a snapshot, what it holds
        if score in ("dasgrad", "gradient"):
            self._scored_parameters()
        if score == "dasgrad" and optimizer is not None:
            read_optimizer(optimizer)

    @property
    def momentum(self) -> bool:
        """Whether β₁m is part of the score."""
        if self._momentum is not None:
            return self._momentum
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return any(group.get("weighting") == "update" for group in groups)

    def __call__(self, data: Any, targets: Any = None) -> Tensor:
        """Scores ``[B]`` of a batch: ``scorer(data)``, or ``scorer(inputs, targets)``."""
        data = data if targets is None else (data, targets)
        with untouched(self._announced_model()):
            self._check_device(data)
            return self._chunk_scores()(data)

    def score_dataset(
        self,
        dataset: Any,
        chunk_size: int | None = None,
        progress: Progress = False,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> Tensor:
        """Scores ``[n]`` of a whole data set, chunk by chunk, on the model's device.

        Args:
            dataset: a map-style data set, or tensors in memory (a ``TensorDataset``, or a tuple or dict).
            chunk_size: examples fetched at once; memory is bounded whatever n is. On a CPU a chunk is scored in
                blocks, if its activations are large; on a GPU it goes through the model as a whole. None is 1,024,
                or on a CPU of tensors in memory as many as are 64 MiB, but no more than 16,384.
            progress: True for a bar, or a function of (done, total).
            collate_fn, num_workers: as for a ``DataLoader``, for data sets that are not in memory.
        """
        chunk_size = self.usual_chunk_size(dataset, collate_fn) if chunk_size is None else chunk_size
        check_chunk_size(chunk_size, "score_dataset(chunk_size=...)")
        scores = []
        with untouched(self._announced_model()):
            score = self._chunk_scores()
            device = device_of(self.model)
            chunks, num_examples = read_chunks(dataset, chunk_size, device, collate_fn, num_workers)
            with show_progress(progress, num_examples, "scoring") as advance:
                for data in chunks:
                    scores.append(score(data))
                    advance(len(scores[-1]))
            return torch.cat(scores)

    def usual_chunk_size(self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None = None) -> int:
        """The ``chunk_size`` of `score_dataset` where that is None; a function of one's own is given 1,024 examples."""
        return FETCHED if callable(self.score) else usual_chunk_size(dataset, device_of(self.model), collate_fn)

    def listen(self, batch: Weighted, scale: float = 1.0) -> AbstractContextManager[Heard]:
        """Take a training batch's scores out of its own backward pass.

        Inside the block run the forward pass and ``batch.weighted_mean(losses).backward()``, or
        ``batch.backward(losses, optimizer)``; not the optimizer's step. The model stays in its training mode,
        so with dropout the scores are of the gradients just computed. Parameters no rule serves are scored by
        the slower path when the block is left.

        Args:
            batch: with ``data`` and ``weights``, such as `WeightedBatch`.
            scale: what the weighted mean was multiplied by before the backward pass: a ``GradScaler``'s scale,
                or 1/k where k batches are accumulated.

        Example:
            >>> import torch, dasgrad
            >>> model = torch.nn.Linear(3, 2)
            >>> optimizer = dasgrad.DASGrad(model.parameters())
            >>> loss_fn = torch.nn.CrossEntropyLoss(reduction="none")
            >>> scorer = dasgrad.ExampleScorer(model, loss_fn, optimizer)
            >>> data = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
            >>> batch = dasgrad.WeightedBatch(data, torch.arange(5), torch.ones(5))
            >>> with scorer.listen(batch) as heard:
            ...     batch.weighted_mean(loss_fn(model(batch.inputs), batch.targets)).backward()
            >>> bool(torch.allclose(heard.scores, scorer(batch.inputs, batch.targets)))
            True
        """
        if self.score not in ("dasgrad", "gradient"):
            raise ValueError(f'`ExampleScorer.listen` needs score="dasgrad" or "gradient", got {self.score!r}.')
        if not scale > 0:
            raise ValueError(f"`ExampleScorer.listen(scale=...)` must be positive, got {scale!r}.")
        return Listening(self._recall, self._hear_new, batch, scale)

    def _recall(self, batch: Weighted, scale: float) -> tuple[KnownPass, Callable[[], Tensor]] | None:
        """A pass of a known kind, and its scores once it is over; None where a tape is needed."""
        key = (structure_of(self.model, self.optimizer)[0], kind_of(batch.data, ()))
        plan = self._ear.recall(key)
        if plan is None:
            return None
        weights = batch.weights
        scale /= max(1, weights.shape[0])
        known, collector = self._ear.hear_known(plan, self._measures_again(plan), weights, scale)

        def scores() -> Tensor:
            if known.sure:
                return collector.lengths(self._precise(plan.params))
            self._ear.forget(key)
            return self(batch.data)

        return known, scores

    @contextmanager
    def _hear_new(self, batch: Weighted, scale: float) -> Iterator[Heard]:
        assert self._losses is not None
        structure, holds = structure_of(self.model, self.optimizer)
        key = (structure, kind_of(batch.data, ()))
        params = self._scored_parameters()
        measures, weights = self._measures(params), batch.weights
        function = LossFunction(self.model, self._losses, self._dtype)
        data = nested.map_leaves(function.cast, batch.data)
        layout = find_layout(self.model, params)
        self._look(function, layout, data)
        plan, scale = Plan(params, holds), scale / max(1, len(weights))
        heard = Heard()
        with self._ear.hear_new(key, plan, layout, measures, weights, scale) as collector:
            yield heard
        total = add_bases(measures, collector.total())
        if self._engine.irregular:
            with untouched(self.model):
                self._engine.add_by_fallback(function, measures, data, total)
        heard.fill(total.clamp(min=0.0).sqrt().to(self._precise(params)))

    def look_at(self, data: Any, targets: Any = None) -> None:
        """Find out on some examples what a first call finds out about the model, and score none where that can be.

        On a GPU that takes many times what scoring them does, and does not come again.
        """
        data = data if targets is None else (data, targets)
        if self.score not in ("dasgrad", "gradient") or nested.count_examples(data) == 0:
            self(data)
            return
        self._check_device(data)
        assert self._losses is not None
        function = LossFunction(self.model, self._losses, self._dtype)
        layout = find_layout(self.model, self._scored_parameters())
        self._look(function, layout, nested.map_leaves(function.cast, data))

    def _look(self, function: LossFunction, layout: Layout, data: Any) -> None:
        if not self._engine.knows(layout, data):
            with untouched(self._announced_model()):
                self._engine.look(function, layout, data)

    def explain(self, data: Any, targets: Any = None) -> Explanation:
        """Which rule serves each parameter, its share of the cost, what fell back and why, on a batch.

        ``print(scorer.explain(inputs, targets))`` shows a table. The batch is scored twice, as a
        whole, the second time with a clock.
        """
        if self.score not in ("dasgrad", "gradient"):
            raise ValueError(f'`ExampleScorer.explain` needs score="dasgrad" or "gradient", got {self.score!r}.')
        assert self._losses is not None
        data = data if targets is None else (data, targets)
        params = self._scored_parameters()
        function = LossFunction(self.model, self._losses, self._dtype)
        with untouched(self._announced_model()):
            data = nested.map_leaves(function.cast, data)
            return explain(self._engine, function, find_layout(self.model, params), self._measures(params), data)

    @property
    def losses(self) -> Losses | None:
        """``losses(model, data) -> [B]``, as given or made of ``loss_fn``; None for a score of one's own alone."""
        return self._losses

    @property
    def has_losses(self) -> bool:
        """Whether it was given a loss, as every score needs that is not a function of one's own."""
        return self._losses is not None

    def noise(self, chunks: Iterable[Any]) -> tuple[float, float]:
        """Estimates of tr Σ, the gradient's noise, and of ‖μ‖², the square of its mean, from chunks of random examples.

        Each chunk is halved. With ga and gb the mean gradients of the m examples in all first and in all second halves,
        m‖ga − gb‖²/2 is an unbiased estimate of tr Σ, and ⟨ga, gb⟩ one of ‖μ‖², which can be negative. Their ratio is
        the noise scale: batches much larger than it gain little. Lengths are those of the score: for ``"dasgrad"`` in
        the optimizer's metric, which for ``preconditioner="own"`` is that after a step by the mean of ga and gb.
        """
        if self._losses is None:
            raise ValueError("`ExampleScorer.noise` needs `loss_fn` or `losses`, got a score of your own.")
        params = self._scored_parameters()
        function = LossFunction(self._announced_model(), self._losses, self._dtype)
        (first, second), num = mean_gradients(function, params, chunks)
        inverse = torch.ones_like(first)
        if self.score == "dasgrad" and self.optimizer is not None:
            inverse = inverse_metric(self.optimizer, params, (first + second) / 2, self.preconditioner)
        return num / 2 * float(((first - second).square() * inverse).sum()), float((first * second * inverse).sum())

    def with_score(self, score: ScoreName) -> "ExampleScorer":
        """The same model, loss and optimizer with another score."""
        return ExampleScorer(
            self.model,
            optimizer=self.optimizer,
            losses=self._losses,
            score=score,
            preconditioner=self.preconditioner,
            momentum=self._momentum,
            dtype=self._dtype,
        )

    def snapshot(self) -> "ExampleScorer":
        """The same scorer over copies of model, loss and optimizer state, as they are now: training leaves them alone.

        Tied parameters, buffers and forward hooks are copied; gradients and the optimizer's hooks are not. ``losses``
        and a ``score`` of one's own get the copy as their argument.

        Raises:
            TypeError: for a model that ``copy.deepcopy`` cannot copy.
        """
        self._announced_model()
        twin = Twin(self.model, self.optimizer, (self._losses, self.score), with_state=self.score == "dasgrad")
        losses, score = twin.functions
        copied = ExampleScorer(
            twin.model,
            optimizer=cast("Optimizer | None", twin.optimizer),
            losses=losses,
            score=score,
            preconditioner=self.preconditioner,
            momentum=self._momentum,
            layers=self.layers,
            dtype=self._dtype,
        )
        copied._twin = twin
        return copied

    def copy_from(self, live: "ExampleScorer") -> bool:
        """Take over the values of now, in place, for a `snapshot` of ``live``.

        False, and nothing is copied, where the model has other parameters or buffers than at the time.
        """
        assert self._twin is not None
        return self._twin.copy_from(live.model, live.optimizer, (live._losses, live.score))

    def _announced_model(self) -> nn.Module:
        names = [] if self._warned_batch_norm else training_batch_norms(self.model)
        if names:
            self._warned_batch_norm = True
            warnings.warn(
                f"BatchNorm in training mode: {', '.join(names)}. Its statistics come from the examples drawn, "
                "not from the target distribution, so the gradient is no longer unbiased and the running "
                "statistics belong to the sampler; it is scored in eval mode. Use GroupNorm or LayerNorm, or "
                "freeze the statistics with module.eval().",
                stacklevel=3,
            )
        return self.model

    def _chunk_scores(self) -> Callable[[Any], Tensor]:
        """A function of a chunk of data, for the model and optimizer as they are now."""
        if callable(self.score):
            return self._own_scores
        assert self._losses is not None
        function = LossFunction(self.model, self._losses, self._dtype)
        if self.score in ("loss", "last_layer"):
            cheap_scores = cheap.loss_scores if self.score == "loss" else cheap.last_layer_scores
            return WithinMemory(
                lambda data: cheap_scores(function, nested.map_leaves(function.cast, data)),
                functools.partial(self._engine.forward_block_size, function),
                self._free_memory,
            )
        params = self._scored_parameters()
        layout, measures = find_layout(self.model, params), self._measures(params)

        def scores(data: Any) -> Tensor:
            data = self._cast(function, data)
            squares, _ = self._engine.squares(function, layout, measures, data)
            return squares.sqrt().to(precise)

        precise = self._precise(params)
        block_size = functools.partial(self._engine.block_size, function, layout, measures)
        return WithinMemory(scores, block_size, self._free_memory)

    def _cast(self, function: LossFunction, data: Any) -> Any:
        """Data in the precision of the passes; a CPU's memory for the copy is used again from chunk to chunk."""

        def cast(leaf: Any) -> Any:
            dtype = function.dtype
            if dtype is None or not isinstance(leaf, Tensor) or not leaf.is_cpu or not leaf.is_floating_point():
                return function.cast(leaf)
            if leaf.dtype == dtype:
                return function.cast(leaf)
            buffer = self._workspace.take(f"data {next(numbers)}", tuple(leaf.shape), leaf.new_empty(0, dtype=dtype))
            return buffer.copy_(leaf.detach())

        numbers = itertools.count()
        return nested.map_leaves(cast, data)

    def _free_memory(self) -> None:
        self._workspace.clear()
        if device_of(self.model).type == "cuda":
            torch.cuda.empty_cache()

    def _check_device(self, data: Any) -> None:
        home = device_of(self.model)
        for leaf in nested.leaves(data):
            if leaf.device.type != home.type:
                raise ValueError(
                    f"`scorer(data)` must be on the model's device, {home}, got {leaf.device}; `score_dataset` moves "
                    "its chunks by itself."
                )

    def _precise(self, params: Mapping[str, Tensor]) -> torch.dtype:
        """At least float32, and no less than the passes are computed in."""
        dtypes = {param.dtype for param in params.values()} if self._dtype is None else {self._dtype}
        return functools.reduce(torch.promote_types, dtypes - {torch.float32}, torch.float32)

    def _measures(self, params: Mapping[str, Tensor]) -> dict[str, Measure]:
        if self.score == "gradient" or self.optimizer is None:
            return {name: gradient_measure(param, self._workspace) for name, param in params.items()}
        views = read_optimizer(self.optimizer)
        options = (self.preconditioner, self.momentum, self._workspace)
        return {name: step_measure(views[id(param)], *options) for name, param in params.items()}

    def _measures_again(self, plan: Plan) -> Mapping[str, Measure]:
        """The same, from a pass before where nothing but the values in the optimizer's state has changed."""
        if self.optimizer is None or self.preconditioner != "frozen":
            return self._measures(plan.params)
        found, options = plan.remembered, (self.score, self._momentum, *options_of(self.optimizer))
        if found.options != options or not all(each.lasts() for each in found.measures.values()):
            measures = found.measures = self._measures(plan.params)
            plain = not any(isinstance(value, Tensor) for group in options[2] for value in group)
            found.options = options if plain and all(each.lasts() for each in measures.values()) else None
        return found.measures

    def _own_scores(self, data: Any) -> Tensor:
        assert callable(self.score)
        expected = (nested.count_examples(data),)
        scores = self.score(self.model, data)
        if not isinstance(scores, Tensor) or scores.shape != expected:
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"`ExampleScorer(score=...)` must return one score per example, shape {expected}, got {got}."
            )
        return scores.detach()

    def _scored_parameters(self) -> dict[str, Tensor]:
        """Parameters that count, by the names `LossFunction` knows them by."""
        params: dict[str, Tensor] = {f"model.{name}": p for name, p in self.model.named_parameters() if p.requires_grad}
        if self.layers == "linear":
            linear = [m for m in self.model.modules() if isinstance(m, nn.Linear)]
            inside = {id(p) for m in linear for p in m.parameters(recurse=False)}
            params = {name: p for name, p in params.items() if id(p) in inside}
        if self.optimizer is not None:
            stepped = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
            params = {name: p for name, p in params.items() if id(p) in stepped}
        if not params:
            raise ValueError(
                "`ExampleScorer(model=..., optimizer=...)` must share at least one parameter that requires a "
                f"gradient, got none with layers={self.layers!r}. Where layers were exchanged, make a new optimizer, "
                "scorer and loader."
            )
        refuse_wrappers(params, "parameter")
        return params

    def __repr__(self) -> str:
        return (
            f"ExampleScorer(model={type(self.model).__name__}, score={self.score!r}, "
            f"preconditioner={self.preconditioner!r}, momentum={self.momentum}, layers={self.layers!r})"
        )


def _as_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found is None and dtype is None:
        return None
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"`ExampleScorer(dtype=...)` must be a floating dtype or its name, got {dtype!r}.")
    return found
