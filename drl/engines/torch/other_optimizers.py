"""Optimizers of PyTorch other than those of `FlatRule`, by the settings `optimizer` and `optimizer_kwargs`."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.configs import Config, plain_pairs
from drl.core.errors import BadInput, did_you_mean
from drl.core.network_parts import OPTIMIZERS
from drl.core.specs import PlainDict
from drl.core.state_files import StateDict, StateValue

MakeOptimizers = Callable[[list[nn.Parameter]], torch.optim.Optimizer | list[torch.optim.Optimizer]]
FLAT = ("adam", "adamw", "rmsprop")  # kinds of `FlatRule`
CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}


def optimizer_of(config: Config) -> str | MakeOptimizers:
    """The kind of a `FlatRule`, or a function that makes an optimizer, by a config's settings."""
    name, given = getattr(config, "optimizer", "adam"), getattr(config, "optimizer_kwargs", ())
    kwargs = plain_pairs("optimizer_kwargs", given)
    if name in FLAT and not kwargs:
        return str(name)
    if name in OPTIMIZERS:
        return partial(OPTIMIZERS[name], **kwargs)
    decay = getattr(config, "weight_decay", 0.0)
    if name == "muon":
        return partial(_make_muon, config.learning_rate, decay, kwargs)
    if name.startswith("optax."):
        raise BadInput(f"optimizer is {name!r}, which is for the JAX engine; use --engine jax, or torch.optim.NAME")
    label = CLASSES.get(name, name.removeprefix("torch.optim."))
    kind = getattr(torch.optim, label, None)
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer) or kind is torch.optim.Optimizer:
        known = [each for each, value in vars(torch.optim).items() if isinstance(value, type)]
        raise BadInput(f"optimizer is {name!r}, which PyTorch does not have; {did_you_mean(label, known)}")
    return partial(_make, kind, _usual(config, name, decay) | {"lr": config.learning_rate} | kwargs)


def _usual(config: Config, name: str, decay: float) -> PlainDict:
    """The config's settings of an optimizer that `FlatRule` has too."""
    if name not in FLAT:
        return {}
    eps: PlainDict = {"eps": getattr(config, "adam_eps", getattr(config, "optimizer_eps", 1e-5))}
    if name == "rmsprop":
        return eps
    adam: PlainDict = {
        "betas": (getattr(config, "adam_beta1", 0.9), 0.999),
        "amsgrad": getattr(config, "amsgrad", False),
    }
    return eps | adam | ({"weight_decay": decay} if name == "adamw" else {})


def _make(kind: type, kwargs: PlainDict, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    try:
        made: torch.optim.Optimizer = kind(parameters, **kwargs)
    except (TypeError, ValueError) as error:
        raise BadInput(f"optimizer_kwargs does not fit {kind.__name__}: {error}") from None
    return made


def _make_muon(
    rate: float, decay: float, kwargs: PlainDict, parameters: list[nn.Parameter]
) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al., 2024) for weight matrices: Newton–Schulz iterations make the steps orthogonal. AdamW for
    everything else. Steps are as large as AdamW's, so that one learning rate serves both."""
    kind = getattr(torch.optim, "Muon", None)
    if kind is None:
        raise BadInput(f"optimizer is 'muon', which PyTorch {torch.__version__} does not have; it needs 2.9 or later")
    matrices = [p for p in parameters if p.ndim == 2]
    others = [p for p in parameters if p.ndim != 2]
    usual: PlainDict = {"lr": rate, "weight_decay": decay}
    made = [_make(kind, usual | {"adjust_lr_fn": "match_rms_adamw"} | kwargs, matrices)] if matrices else []
    return made + ([torch.optim.AdamW(others, lr=rate, weight_decay=decay)] if others else [])


class OtherOptimizer:
    """Optimizers of PyTorch for the parameters of one model, in place of a `FlatRule`."""

    def __init__(
        self,
        make: MakeOptimizers,
        parameters: list[nn.Parameter],
        factor_of: dict[int, float],  # id of a parameter → factor on its learning rate
    ):
        made = make(parameters)
        self.made: list[torch.optim.Optimizer] = made if isinstance(made, list) else [made]
        if wrong := [each for each in self.made if not isinstance(each, torch.optim.Optimizer)]:
            raise BadInput(f"optimizer made {wrong[0]!r:.80}; expected a torch.optim.Optimizer")
        if any(isinstance(each, torch.optim.LBFGS) for each in self.made):
            raise BadInput("optimizer is LBFGS, which computes the loss several times for one step; use another one")
        for optimizer in self.made:
            split: list[StateDict] = []
            for group in optimizer.param_groups:
                for factor in sorted({factor_of.get(id(p), 1.0) for p in group["params"]}):
                    members = [p for p in group["params"] if factor_of.get(id(p), 1.0) == factor]
                    split.append(group | {"params": members, "factor": factor})
            optimizer.param_groups = split

    def step(self, rate: float, count: int) -> None:
        """Move the parameters along their gradients. These optimizers count their steps themselves."""
        for optimizer in self.made:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["factor"]
            optimizer.step()

    def state_dict(self) -> StateDict:
        return {"other": [_as_numpy(optimizer.state_dict()["state"]) for optimizer in self.made]}

    def load_state_dict(self, state: StateDict) -> None:
        for optimizer, stored in zip(self.made, state["other"], strict=True):
            parts = {int(name): _as_tensors(part) for name, part in stored.items()}
            optimizer.load_state_dict(optimizer.state_dict() | {"state": parts})


def _as_numpy(state: StateValue) -> StateValue:
    if isinstance(state, dict):
        return {str(name): _as_numpy(part) for name, part in state.items()}
    if isinstance(state, list | tuple):
        return [_as_numpy(part) for part in state]
    return state.detach().cpu().numpy().copy() if isinstance(state, Tensor) else state


def _as_tensors(state: StateValue) -> StateValue:
    if isinstance(state, dict):
        return {name: _as_tensors(part) for name, part in state.items()}
    if isinstance(state, list):
        return [_as_tensors(part) for part in state]
    return torch.from_numpy(np.array(state)) if isinstance(state, np.ndarray | np.generic) else state
