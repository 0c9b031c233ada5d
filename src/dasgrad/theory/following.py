"""One seeded run by the library's optimizer and sampler, recorded with expectations over the next draw."""

import torch
from torch import Tensor

from dasgrad.sampling import AdaptiveSampler
from dasgrad.theory.ahead import score_all
from dasgrad.theory.problem import FiniteSum
from dasgrad.theory.recording import record
from dasgrad.theory.schemes import Scheme
from dasgrad.theory.trajectory import Trajectory


def follow(
    problem: FiniteSum, scheme: Scheme, start: Tensor, num_steps: int, seed: int, max_points: int = 1000
) -> Trajectory:
    """Run a method on a problem with batches of one, scores fresh at every step where it is adaptive.

    Args:
        problem: what is minimised.
        scheme: the method.
        start: θ_1, ``[d]`` float64.
        num_steps: T.
        seed: of the draws.
        max_points: points kept, at most.
    """
    walk = Walk(problem, scheme, start, seed)
    with record(walk.optimizer, walk.sampler, problem=problem, max_points=max_points) as recorder:
        walk.take_steps(num_steps)
    return recorder.trajectory()


class Walk:
    """The run behind `follow`, to be advanced by hand."""

    def __init__(self, problem: FiniteSum, scheme: Scheme, start: Tensor, seed: int) -> None:
        self._problem, self._scheme = problem, scheme
        self.theta = torch.nn.Parameter(start.clone())
        self.optimizer, self._schedules = scheme.make_optimizer(self.theta, problem.projection)
        self.sampler = AdaptiveSampler(
            problem.num_examples,
            1,
            target=problem.target,
            floor=scheme.floor,
            epsilon=scheme.epsilon,
            stratified="none",
            seed=seed,
        )
        self.drawn = torch.empty(0, dtype=torch.int64)
        """The last draw, ``[1]``; empty before the first."""
        self._num_steps = 0

    def take_steps(self, num_steps: int) -> None:
        """So many draws and steps."""
        for _ in range(num_steps):
            self._step()

    def _step(self) -> None:
        theta, scheme = self.theta.detach(), self._scheme
        self._num_steps += 1
        grads = self._problem.gradients(theta)
        if scheme.adaptive:
            held = self.optimizer.state.get(self.theta, {})
            state = {key: held.get(key, torch.zeros_like(theta)) for key in scheme.pair.keys}
            hyper = scheme.hyper_at(self._num_steps)
            self.sampler.refresh(score_all(scheme.pair, scheme.weighting, state, grads, hyper))
        self.drawn, weights = self.sampler.draw()
        grad, weight = grads[int(self.drawn)], weights[0]
        if scheme.weighting == "update":
            self.theta.grad = grad
            self.optimizer.step(update_grads=[weight * grad], mean_weight=weight)
        else:
            self.theta.grad = weight * grad
            self.optimizer.step()
        for schedule in self._schedules:
            schedule.step()
