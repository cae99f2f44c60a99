"""Backbones and heads by name, for every engine; a plugin adds its own.

A maker is the object itself or the name of one, `module:name`, which is imported when it is first used.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from drl.core.errors import BadInput, MissingExtra

Factory = Callable[..., Any]  # a class or function that makes a part of a run
Maker = str | Factory


class NetworkPart(NamedTuple):
    """One backbone or head: its maker in each engine.

    A backbone's maker takes `(obs_spec, config)`, a policy head's `(features, distribution, config)`, a head of action
    values `(features, num_actions, config)`. In PyTorch each also takes the `torch.Generator` for initial weights.
    """

    torch: Maker | None = None
    jax: Maker | None = None
    normalize_obs: bool = False  # whether a backbone expects normalized observations


BACKBONES: dict[str, NetworkPart] = {
    "mlp": NetworkPart("drl.engines.torch.backbones:make_mlp", "drl.engines.jax.backbones:make_mlp"),
    "simba": NetworkPart("drl.engines.torch.backbones:make_simba", "drl.engines.jax.backbones:make_simba", True),
    "cnn": NetworkPart("drl.engines.torch.backbones:make_cnn", "drl.engines.jax.backbones:make_cnn"),
    "conv1d": NetworkPart("drl.engines.torch.backbones:make_conv1d", "drl.engines.jax.backbones:make_conv1d"),
}
HEADS: dict[str, NetworkPart] = {}  # registered by plugins; the built-in heads follow from the model's config


def register_backbone(name: str, *, torch: Maker | None = None, jax: Maker | None = None) -> None:
    """Register a backbone for `--backbone name`. Give a maker for each engine that should run it."""
    _register(BACKBONES, "backbone", name, NetworkPart(torch, jax))


def register_head(name: str, *, torch: Maker | None = None, jax: Maker | None = None) -> None:
    """Register a head for `--head name`. Give a maker for each engine that should run it."""
    _register(HEADS, "head", name, NetworkPart(torch, jax))


def part_maker(table: Mapping[str, NetworkPart], name: str, engine: str) -> Factory:
    """The maker of a part in one engine."""
    maker = getattr(table[name], engine)
    if maker is None:
        raise BadInput(f"{name!r} was registered without a form for the {engine} engine; register_…(…, {engine}=…)")
    return resolve(maker)


def resolve(maker: Maker, feature: str = "", extra: str = "") -> Factory:
    """The object behind `module:name`, or the object itself. A missing `extra` is reported for `feature`."""
    if not isinstance(maker, str):
        return maker
    module, _, name = maker.partition(":")
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except ImportError as error:
        if not extra:
            raise
        raise MissingExtra(feature, extra, error) from None


def _register(table: dict[str, NetworkPart], kind: str, name: str, part: NetworkPart) -> None:
    if not name.isidentifier() or name == "auto":
        raise BadInput(f"{kind} {name!r} is not a valid name; use letters, digits and underscores")
    if table.get(name, part) != part:
        raise BadInput(f"there is a {kind} {name!r} already; choose another name")
    table[name] = part


def import_plugins(modules: Iterable[str]) -> None:
    """Import each module; installed modules take precedence over files in the current folder."""
    for module in modules:
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # console scripts do not search the current folder
        try:
            importlib.import_module(module)
        except Exception as error:  # a user module can raise anything
            raise BadInput(f"cannot import plugin {module!r}: {type(error).__name__}: {error}") from error
