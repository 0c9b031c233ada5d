"""The paper in code: Algorithms 1 and 2, float64, plain loops, the paper's letters.

This module is the specification. It is slow on purpose: φ and ψ take the *whole* history of gradients,
as the paper writes them, and no recursion, vectorised draw or closed form is used. The fast parts of the
library are tested against it step by step; nothing outside the tests and the theory imports it.

Letters: ``theta`` θ, ``g`` gᵢ, ``m`` the descent direction, ``v`` the diagonal of V̂, ``H = √v + eps`` the
metric, ``w`` the importance weight, ``p`` the probabilities, ``pi`` the target π, ``s`` the scores,
``lam`` the floor λ, ``kappa`` the coupled L2 factor κ, ``J`` the refresh interval. Steps t run from 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
History = list[Vector]
Phi = Callable[[History, Sequence[float]], Vector]
Psi = Callable[[History, float], Vector]
Project = Callable[[Vector, Vector], Vector]

# --- φ and ψ (Section 2) ------------------------------------------------------------------------------


def phi_last(g: History, beta1: Sequence[float]) -> Vector:
    """φ of SGD, AdaGrad and RMSProp: the newest gradient."""
    return g[-1]


def phi_average(g: History, beta1: Sequence[float]) -> Vector:
    """φ of Adam and AMSGrad: Σ_τ (1−β₁τ) (Π_{k>τ} β₁k) g_τ, with one β₁ for every step."""
    m = np.zeros_like(g[-1])
    for tau in range(len(g)):
        coefficient = 1.0 - beta1[tau]
        for k in range(tau + 1, len(g)):
            coefficient *= beta1[k]
        m = m + coefficient * g[tau]
    return m


def psi_identity(g: History, beta2: float) -> Vector:
    """ψ of SGD: the identity."""
    return np.ones_like(g[-1])


def psi_mean_square(g: History, beta2: float) -> Vector:
    """ψ of AdaGrad: (1/t) Σ_τ g_τ²."""
    total = np.zeros_like(g[-1])
    for g_tau in g:
        total = total + g_tau**2
    return total / len(g)


def psi_average_square(g: History, beta2: float) -> Vector:
    """ψ of RMSProp and Adam: (1−β₂) Σ_τ β₂^(t−τ) g_τ²."""
    v = np.zeros_like(g[-1])
    for tau, g_tau in enumerate(g, start=1):
        v = v + (1.0 - beta2) * beta2 ** (len(g) - tau) * g_tau**2
    return v


def psi_running_maximum(g: History, beta2: float) -> Vector:
    """ψ of AMSGrad: the largest of Adam's ψ over all times up to t."""
    v_hat = np.zeros_like(g[-1])
    for t in range(1, len(g) + 1):
        v_hat = np.maximum(v_hat, psi_average_square(g[:t], beta2))
    return v_hat


MOMENTS: dict[str, tuple[Phi, Psi]] = {
    "sgd": (phi_last, psi_identity),
    "adagrad": (phi_last, psi_mean_square),
    "rmsprop": (phi_last, psi_average_square),
    "adam": (phi_average, psi_average_square),
    "amsgrad": (phi_average, psi_running_maximum),
}


def _divide(a: Vector, b: Vector) -> Vector:
    """A / b with 0/0 := 0."""
    quotient = np.zeros_like(a)
    for h in range(len(a)):
        if b[h] != 0.0:
            quotient[h] = a[h] / b[h]
        elif a[h] != 0.0:
            quotient[h] = np.inf if a[h] > 0 else -np.inf
    return quotient


# --- Algorithm 1: the general stochastic gradient method ----------------------------------------------


@dataclass
class Algorithm1:
    """One run of the general method, advanced by ``step``; ``theta`` and ``g`` (the history) are its state.

    ``alpha(t)`` and ``beta1(t)`` are functions of the step, t from 1. ``weighting`` says what the weight
    multiplies: ``"update"`` is the paper's line θ − α w m/√V̂, averaged over a mini-batch,
    ``"gradient"`` weights the gradients that enter the moments.
    """

    theta: Vector
    alpha: Callable[[int], float]
    phi: Phi
    psi: Psi
    beta1: Callable[[int], float] = lambda t: 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    kappa: float = 0.0
    weighting: Literal["gradient", "update"] = "gradient"
    project: Project | None = None
    g: History = field(default_factory=list)

    def betas(self, t: int) -> list[float]:
        """β₁ of the steps 1 to t."""
        return [self.beta1(tau) for tau in range(1, t + 1)]

    def metric(self, history: History) -> Vector:
        """H = √ψ(history) + eps; before the first gradient ψ is 0, or the identity where it always is."""
        if not history:
            return np.full_like(self.theta, self.eps + (1.0 if self.psi is psi_identity else 0.0))
        return np.sqrt(self.psi(history, self.beta2)) + self.eps

    def step(self, gradients: Sequence[Vector], weights: Sequence[float]) -> None:
        """One step t from the B drawn examples' gradients at θ_t and their weights."""
        t, B = len(self.g) + 1, len(gradients)
        decay = self.kappa * self.theta
        direction = np.zeros_like(self.theta)
        if self.weighting == "gradient":
            g_hat = sum(w * g for w, g in zip(weights, gradients, strict=True)) / B + decay
            self.g.append(np.asarray(g_hat))
            direction = self.phi(self.g, self.betas(t))
        else:
            # (1/B) Σ_b w_b φ(g_1, …, g_{t−1}, g_b): each draw's own direction, with its own weight.
            for w, g_b in zip(weights, gradients, strict=True):
                direction = direction + w * self.phi([*self.g, g_b + decay], self.betas(t)) / B
            self.g.append(np.asarray(sum(gradients) / B + decay))
        H = self.metric(self.g)
        theta = self.theta - self.alpha(t) * _divide(direction, H)
        self.theta = theta if self.project is None else self.project(theta, H)


# --- Algorithm 2: DASGrad -----------------------------------------------------------------------------


def score(run: Algorithm1, g_i: Vector, preconditioner: Literal["own", "frozen"], momentum: bool) -> float:
    """sᵢ, the norm ‖H^(−1/2) ·‖ of example i's direction, before step t = len(run.g) + 1 is taken.

    ``own`` has the example's own gradient in V̂, as the paper prints; ``frozen`` takes V̂ as it stands.
    With ``momentum`` the direction is mᵢ = φ(g_1, …, g_{t−1}, gᵢ + κθ), without it gᵢ alone.
    """
    t = len(run.g) + 1
    ahead = [*run.g, g_i + run.kappa * run.theta]
    direction = run.phi(ahead, run.betas(t)) if momentum else g_i
    H = run.metric(ahead if preconditioner == "own" else run.g)
    return float(np.sqrt(np.sum(_divide(direction**2, H))))


def probabilities(s: Sequence[float], pi: Sequence[float], epsilon: float, lam: float) -> Vector:
    """P = (1−λ) mass/Σmass + λπ with massᵢ = πᵢ(sᵢ + ε); p = π where Σmass = 0."""
    mass = [pi_i * (s_i + epsilon) for s_i, pi_i in zip(s, pi, strict=True)]
    total = sum(mass)
    if total == 0.0:
        return np.asarray(pi, dtype=np.float64)
    return np.asarray([(1 - lam) * m_i / total + lam * pi_i for m_i, pi_i in zip(mass, pi, strict=True)])


def draw(u: float, s: Sequence[float], pi: Sequence[float], epsilon: float, lam: float) -> int:
    """The index a uniform u picks: from π below the floor λ, from the masses above it."""
    mass = [pi_i * (s_i + epsilon) for s_i, pi_i in zip(s, pi, strict=True)]
    total = sum(mass)
    if total == 0.0:
        shares, v = list(pi), u
    elif u < lam:
        shares, v = list(pi), u / lam
    else:
        shares, v = [m_i / total for m_i in mass], (u - lam) / (1 - lam)
    cumulative = 0.0
    for i, share in enumerate(shares):
        cumulative += share
        if cumulative > v:
            return i
    return max(i for i, share in enumerate(shares) if share > 0)


def balanced_draw(p: Sequence[float], credit: dict[tuple[int, int], float]) -> int:
    """The next index where every half of the examples keeps account of what it is owed, and not a u decides.

    Examples are halved, from the smallest power of two that holds them down to one. ``credit[start, size]`` is the part
    of a draw that the first half of examples start … start + size − 1 is owed; it is written to.
    """
    start, size = 0, 1
    while size < len(p):
        size *= 2
    while size > 1:
        half = size // 2
        owed = credit[start, size] + sum(p[start : start + half]) / sum(p[start : start + size])
        credit[start, size] = owed - 1 if owed >= 1 else owed
        start, size = (start, half) if owed >= 1 else (start + half, half)
    return start


@dataclass(frozen=True)
class Trajectory:
    """What a run of Algorithm 2 went through: θ_1 … θ_{T+1}, and for each step p, the draws and weights."""

    theta: list[Vector]
    p: list[Vector]
    indices: list[list[int]]
    weights: list[list[float]]


def algorithm2(
    run: Algorithm1,
    gradient: Callable[[int, Vector], Vector],
    uniforms: Sequence[Sequence[float]],
    *,
    n: int,
    J: int,
    epsilon: float = 0.0,
    lam: float = 0.1,
    pi: Sequence[float] | None = None,
    preconditioner: Literal["own", "frozen"] = "own",
    momentum: bool | None = None,
) -> Trajectory:
    """DASGrad: Algorithm 1 with probabilities that follow the scores, recomputed when t mod J = 0.

    ``gradient(i, theta)`` is ∇fᵢ(θ); ``uniforms`` holds B numbers in [0, 1) for each of T steps and so
    decides every draw. ``momentum=None`` means: β₁m belongs to the score where the weight multiplies it,
    that is with ``weighting="update"``.
    """
    pi = [1.0 / n] * n if pi is None else pi
    momentum = run.weighting == "update" if momentum is None else momentum
    s = [0.0] * n
    epsilon_now = 0.0  # before the first refresh Σmass = 0, hence p = π
    record = Trajectory([run.theta], [], [], [])
    for t, u_t in enumerate(uniforms, start=1):
        if t % J == 0:
            s = [score(run, gradient(i, run.theta), preconditioner, momentum) for i in range(n)]
            epsilon_now = epsilon
        p = probabilities(s, pi, epsilon_now, lam)
        indices = [draw(u, s, pi, epsilon_now, lam) for u in u_t]
        weights = [float(pi[i] / p[i]) for i in indices]
        run.step([gradient(i, run.theta) for i in indices], weights)
        record.theta.append(run.theta)
        record.p.append(p)
        record.indices.append(indices)
        record.weights.append(weights)
    return record
