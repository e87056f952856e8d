"""The server step: torch.optim over one flat shard of the model, in place.

A round's mean update is a pseudo-gradient: `.grad = -delta`, said to torch as `maximize`, which
saves the pass that would negate it. State is one vector of the shard's length a moment, so it is
sharded as the model is. delta: mean update, x: model, eta: learning rate, t: round, from 1.

    momentum   b <- mu b + delta;  x <- x + lr b                          FedAvgM, Hsu et al. 2019
    adagrad    v <- v + delta^2;  x <- x + eta delta / (sqrt v + tau)     Reddi et al. 2021, alg. 2
    adam       m <- b1 m + (1 - b1) delta;  v <- b2 v + (1 - b2) delta^2
               x <- x + eta c_t m / (sqrt v + tau)
    yogi       m as adam's;  v <- v - (1 - b2) delta^2 sign(v - delta^2)
               x <- x + eta m / (sqrt v + tau)

`form` is which FedAdam is meant. "flower", the default, equals the strategy of that name: v starts
at 0 and c_t = sqrt(1 - b2^(t+1)) / (1 - b1^(t+1)). "paper" is Reddi et al.'s: v starts at tau^2,
c_t = 1. torch.optim.Adam divides its eps by another factor than these do, and starts at t = 1:
`_Adam` sets its numbers before each step so that it computes exactly this. With `weight_decay` it
is AdamW (Loshchilov and Hutter 2019): x shrinks by eta * weight_decay of itself first.

The model keeps its dtype. Not here: who averages (torch_folds.py) and where state is kept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, cast

import torch

from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

TILE = 1 << 16
"""Elements that Yogi's many small operations take at a time: they stay in the core's cache."""
FORMS = ("flower", "paper")


class Step(Protocol):
    """What every rule offers."""

    def __call__(self, delta: torch.Tensor) -> None:
        """Move the shard by one round's mean update, of its shape and dtype; delta is kept.

        Raises:
            SettingsError: It has another shape or dtype.
        """


class _Torch:
    """One of torch's optimizers over one flat parameter."""

    def __init__(
        self,
        shard: torch.Tensor,
        made: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        _check(shard)
        self._x = torch.nn.Parameter(shard)  # shares the shard's memory
        self._optimizer = made([self._x])

    def __call__(self, delta: torch.Tensor) -> None:
        if delta.shape != self._x.shape or delta.dtype != self._x.dtype:
            said = f"{tuple(delta.shape)} of {delta.dtype}"
            raise SettingsError("step delta", f"{len(self._x)} of {self._x.dtype}", said)
        self._x.grad = delta
        self._optimizer.step()
        self._x.grad = None


class _Adam(_Torch):
    """Adam with the numbers of either form; see the module's table."""

    def __init__(self, shard: torch.Tensor, form: str, numbers: dict[str, float]) -> None:
        self._form, self._numbers = form, numbers
        decays = bool(numbers["weight_decay"])
        kind = torch.optim.AdamW if decays else torch.optim.Adam
        betas = numbers["beta_1"], numbers["beta_2"]
        super().__init__(
            shard, lambda x: kind(x, betas=betas, weight_decay=0.0, maximize=True, fused=True)
        )
        first = numbers["tau"] ** 2 if form == "paper" else 0.0
        self._t = 1.0  # Flower's count: the first step is its second
        self._optimizer.state[self._x] = {
            "step": torch.tensor(self._t, device=shard.device),
            "exp_avg": torch.zeros_like(shard),
            "exp_avg_sq": torch.full_like(shard, first),
        }

    def __call__(self, delta: torch.Tensor) -> None:
        self._t += 1.0
        n, group = self._numbers, self._optimizer.param_groups[0]
        root = math.sqrt(1.0 - n["beta_2"] ** self._t)
        group["eps"] = n["tau"] / root
        group["lr"] = n["eta"]
        if self._form == "paper":
            group["lr"] *= (1.0 - n["beta_1"] ** self._t) / root
        group["weight_decay"] = n["weight_decay"] * n["eta"] / group["lr"]
        super().__call__(delta)


class Yogi(torch.optim.Optimizer):
    """Yogi (Zaheer et al. 2018) as FedYogi uses it: no bias correction, moments from 0."""

    def __init__(
        self,
        params: list[torch.nn.Parameter],
        *,
        eta: float,
        beta_1: float,
        beta_2: float,
        tau: float,
    ) -> None:
        """Take flat parameters whose `.grad` is an update, not its negative."""
        super().__init__(params, {"eta": eta, "betas": (beta_1, beta_2), "tau": tau})
        x = params[0]
        self._work = [torch.empty(min(TILE, len(x)), dtype=x.dtype, device=x.device) for _ in "ab"]
        for x in params:
            self.state[x] = {"m": torch.zeros_like(x), "v": torch.zeros_like(x)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter once."""
        for group in self.param_groups:
            for x in group["params"]:
                state = self.state[x]
                for low in range(0, len(x), TILE):
                    part = slice(low, low + TILE)
                    m, v = state["m"][part], state["v"][part]
                    self._tile(x[part], m, v, x.grad[part], group)

    def _tile(
        self,
        x: torch.Tensor,
        m: torch.Tensor,
        v: torch.Tensor,
        delta: torch.Tensor,
        group: dict[str, object],
    ) -> None:
        beta_1, beta_2 = cast("tuple[float, float]", group["betas"])
        a, b = (buffer[: len(x)] for buffer in self._work)
        torch.mul(delta, delta, out=a)
        torch.sub(v, a, out=b).sign_()
        v.addcmul_(a, b, value=beta_2 - 1.0)
        m.lerp_(delta, 1.0 - beta_1)
        torch.sqrt(v, out=a).add_(cast("float", group["tau"]))
        x.addcdiv_(m, a, value=cast("float", group["eta"]))


def momentum(
    shard: torch.Tensor, *, server_learning_rate: float = 1.0, server_momentum: float = 0.0
) -> Step:
    """Return FedAvgM's step over a flat shard of floats; 1 and 0 are plain averaging."""
    _positive("server_learning_rate", server_learning_rate)
    _fraction("server_momentum", server_momentum)
    return _Torch(
        shard,
        lambda x: torch.optim.SGD(
            x, lr=server_learning_rate, momentum=server_momentum, maximize=True, fused=True
        ),
    )


def adagrad(shard: torch.Tensor, *, eta: float = 1e-1, tau: float = 1e-3) -> Step:
    """Return FedAdagrad's step over a flat shard of floats, moments from 0 as Flower's."""
    _positive("eta", eta)
    _positive("tau", tau)
    fused = shard.device.type == "cpu"  # torch has it for the CPU only
    return _Torch(
        shard, lambda x: torch.optim.Adagrad(x, lr=eta, eps=tau, maximize=True, fused=fused)
    )


def adam(
    shard: torch.Tensor,
    *,
    eta: float = 1e-1,
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    tau: float = 1e-3,
    weight_decay: float = 0.0,
    form: str = "flower",
) -> Step:
    """Return FedAdam's step over a flat shard of floats, in Flower's form or the paper's.

    Raises:
        SettingsError: A number is out of its range, or the form is none.
    """
    _moments(eta, beta_1, beta_2, tau)
    if form not in FORMS:
        raise SettingsError("step form", " or ".join(FORMS), form)
    if not 0 <= weight_decay < math.inf:
        raise SettingsError("step weight_decay", "0 or more", weight_decay)
    numbers = {"eta": eta, "beta_1": beta_1, "beta_2": beta_2, "tau": tau}
    return _Adam(shard, form, numbers | {"weight_decay": weight_decay})


def yogi(
    shard: torch.Tensor,
    *,
    eta: float = 1e-2,
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    tau: float = 1e-3,
) -> Step:
    """Return FedYogi's step over a flat shard of floats."""
    _moments(eta, beta_1, beta_2, tau)
    return _Torch(shard, lambda x: Yogi(x, eta=eta, beta_1=beta_1, beta_2=beta_2, tau=tau))


def _check(shard: torch.Tensor) -> None:
    if shard.dim() != 1 or not shard.dtype.is_floating_point or shard.requires_grad:
        said = f"{tuple(shard.shape)} of {shard.dtype}"
        raise SettingsError("step shard", "one row of floats without a gradient", said)


def _moments(eta: float, beta_1: float, beta_2: float, tau: float) -> None:
    _positive("eta", eta)
    _positive("tau", tau)
    _fraction("beta_1", beta_1)
    _fraction("beta_2", beta_2)


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise SettingsError(f"step {name}", "a finite number above 0", value)


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise SettingsError(f"step {name}", "0 or more and below 1", value)
