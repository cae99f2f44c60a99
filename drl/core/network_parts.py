"""Objects by name, as configs hold them: backbones, heads, activations, initializations, and the user's own objects.

A maker is the object itself or its name, `module:name`, which is imported when it is first used. An object of the
user's program is named `module:NAME`, `file.py:NAME` if the script defines it, or `python:NAME` if no module holds it
under its own name, such as a lambda or an instance. The process that was given the object uses the object itself;
another process receives it with the run, or must find it by its name.
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from drl.core.errors import BadInput, MissingExtra, did_you_mean, shown

Factory = Callable[..., Any]  # a class or function that makes a part of a run
Maker = str | Factory
Part = TypeVar("Part")


class NetworkPart(NamedTuple):
    """One backbone, head or activation: its maker in each engine.

    A backbone's maker takes `(obs_spec, config)`, a policy head's `(features, distribution, config)`, a head of action
    values `(features, num_actions, config)`. In PyTorch each also takes the `torch.Generator` for initial weights.
    An activation is a function of one array; in PyTorch it can also be a class of modules.
    """

    torch: Maker | None = None
    jax: Maker | None = None
    normalize_obs: bool = False  # whether a backbone expects normalized observations
    numpy: Maker | None = None  # of an activation; without it, an agent needs its engine to act


BACKBONES: dict[str, NetworkPart] = {
    "mlp": NetworkPart("drl.engines.torch.backbones:make_mlp", "drl.engines.jax.backbones:make_mlp"),
    "simba": NetworkPart("drl.engines.torch.backbones:make_simba", "drl.engines.jax.backbones:make_simba", True),
    "cnn": NetworkPart("drl.engines.torch.backbones:make_cnn", "drl.engines.jax.backbones:make_cnn"),
    "conv1d": NetworkPart("drl.engines.torch.backbones:make_conv1d", "drl.engines.jax.backbones:make_conv1d"),
}
HEADS: dict[str, NetworkPart] = {}  # registered by plugins; the built-in heads follow from the model's config
ACTIVATIONS: dict[str, NetworkPart] = {
    name: NetworkPart(
        f"drl.engines.torch.layers:{name}",
        f"drl.engines.jax.layers:{name}",
        numpy=f"drl.engines.numpy.layer_parts:{name}",
    )
    for name in ("tanh", "relu", "gelu", "silu", "elu", "leaky_relu", "selu", "mish", "softplus", "sigmoid")
}
# (rng, shape [out, in, …], gain) → weights, for all engines.
INITIALIZATIONS: dict[str, Maker] = {
    name: f"drl.engines.numpy.layer_parts:{name}"
    for name in ("orthogonal", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal")
}
# Of users: parameters → torch.optim.Optimizer, or learning rate → Optax transformation.
OPTIMIZERS: dict[str, Factory] = {}
IN_MEMORY = "python"  # "module" of objects that cannot be imported
_plugins: set[str] = set()  # modules that the user has named
_given: dict[str, object] = {}  # the user's objects, by name


def name_of(thing: object, label: str = "") -> str:
    """Return the name of an object, and keep the object under it.

    >>> name_of(Path)
    'pathlib:Path'
    """
    named = thing.func if isinstance(thing, functools.partial) else thing
    label = label or getattr(named, "__qualname__", type(named).__qualname__)
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or getattr(module, label, None) is not thing:
        place = IN_MEMORY
    elif module.__name__ != "__main__":
        place = module.__name__
    else:
        script = getattr(module, "__file__", None)  # a notebook or an interactive session has none
        place = Path(script).name if script else IN_MEMORY
    name = unique = f"{place}:{label}"
    number = 1
    while _given.setdefault(unique, thing) is not thing:  # another object has this name
        number += 1
        unique = f"{name}_{number}"
    return unique


def given_objects() -> dict[str, object]:
    """Return all objects of the user by name, for another process."""
    return dict(_given)


def give_objects(objects: dict[str, object]) -> None:
    """Add the objects that another process was given."""
    _given.update(objects)


def is_given(name: str) -> bool:
    """Whether this process was given an object under this name."""
    return name in _given


def register_backbone(name: str, *, torch: Maker | None = None, jax: Maker | None = None) -> None:
    """Register a backbone for `--backbone name`. Give a maker for each engine that should run it."""
    register_in(BACKBONES, "backbone", name, NetworkPart(torch, jax))


def register_head(name: str, *, torch: Maker | None = None, jax: Maker | None = None) -> None:
    """Register a head for `--head name`. Give a maker for each engine that should run it."""
    register_in(HEADS, "head", name, NetworkPart(torch, jax))


def register_activation(
    name: str, *, torch: Maker | None = None, jax: Maker | None = None, numpy: Maker | None = None
) -> None:
    """Register an activation for `--activation name`: a function of one array for each engine that should run it."""
    register_in(ACTIVATIONS, "activation", name, NetworkPart(torch, jax, numpy=numpy))


def register_initialization(name: str, function: Factory) -> None:
    """Register a function `(rng, shape, gain) -> weights` in NumPy for `--init name`."""
    register_in(INITIALIZATIONS, "initialization", name, function)


def name_in(
    table: dict[str, Part], setting: str, given: object, part_of: Callable[[Factory], Part], others: Iterable[str] = ()
) -> str:
    """Return the name of a setting's value in `table`. The value is a name there or in `others`, a plugin's
    `module:function`, or a Python function, which is registered by name so that a config holds plain text only."""
    if callable(given):
        if not hasattr(given, "__qualname__"):
            raise BadInput(f"{setting} is {shown(given)}, which has no name; give a function or a class")
        name = name_of(given)
        table.setdefault(name, part_of(given))
        return name
    if not isinstance(given, str):
        raise BadInput(f"{setting} is {shown(given)}; expected a name or a function")
    if given not in table and given not in others:
        function = _function_of_plugin(setting, given, [*others, *table])
        table[given] = part_of(function)
        give_objects({given: function})
    return given


def _function_of_plugin(setting: str, given: str, options: list[str]) -> Factory:
    module, _, name = given.partition(":")
    function = getattr(sys.modules.get(module), name, None) if module in _plugins else None
    if callable(function) and getattr(function, "__module__", None) == module:
        return function
    if _has_module(given):
        raise BadInput(f"{setting} is {given!r}; import the module that defines it: --plugins {module}")
    if not name:
        raise BadInput(
            f"{setting} is {given!r}; for a custom one, import the module that registers it: --plugins MODULE; "
            f"{did_you_mean(given, options)}"
        )
    raise BadInput(
        f"{setting} is {given!r}, a function of the script that began this, which cannot be found again; define it at "
        "the top of a module"
    )


def _has_module(function: str) -> bool:
    """Whether a function can be imported by its name.

    >>> _has_module("my_parts:warm"), _has_module("script.py:warm"), _has_module("python:<lambda>")
    (True, False, False)
    """
    module, _, name = function.partition(":")
    return name.isidentifier() and module not in ("__main__", IN_MEMORY) and not module.endswith(".py")


def function_modules(settings: Mapping[str, object], unknown: bool = True) -> list[str]:
    """Return the modules of functions `module:function` in flat settings; if `unknown`, only of functions that are not
    registered yet."""
    given = [v for k, v in settings.items() if k in ("activation", "init", "optimizer") or k.endswith("_schedule")]
    found = [name for name in given if isinstance(name, str) and _has_module(name) and not (unknown and is_given(name))]
    return sorted({name.partition(":")[0] for name in found})


def part_maker(table: Mapping[str, NetworkPart], name: str, engine: str) -> Factory:
    """Return the maker of a part in one engine."""
    maker = getattr(table[name], engine)
    if maker is None:
        raise BadInput(f"{name!r} was registered without a form for the {engine} engine; register_…(…, {engine}=…)")
    return resolve(maker)


def resolve(maker: Maker, feature: str = "", extra: str = "") -> Factory:
    """Return the object behind `module:name`, or the object itself. A missing `extra` is reported for `feature`."""
    if not isinstance(maker, str):
        return maker
    module, _, name = maker.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        if not extra:
            raise
        raise MissingExtra(feature, extra, error) from None


def register_in(table: dict[str, Part], kind: str, name: str, part: Part) -> None:
    """Add a part to a table; raise if the name is taken or not valid."""
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
        _plugins.add(module)
