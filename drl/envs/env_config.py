"""An environment as its agent sees it: its id, arguments, wrappers and frames; and its `EnvSpec`.

`check_trusted` limits what a file may name: only environments and wrappers of well-known packages.
"""

import contextlib
import copy
import inspect
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from drl.core.configs import Whole
from drl.core.contracts import VecEnv
from drl.core.errors import BadInput, UnusableFile, did_you_mean, one_line, shown
from drl.core.network_parts import is_given, name_of
from drl.core.safe_files import read_plain
from drl.core.setting_rules import plain_setting
from drl.envs.env_names import (
    PREFIX,
    ParallelGame,
    WrapperLike,
    find_game,
    find_object,
    game_module,
    import_for,
    import_package_of,
    is_game,
    is_installed,
    split_wrapper,
    wrapper_names,
)
from drl.envs.spaces import EnvKwargs, GymEnv, GymVectorEnv

COMPATIBILITY = ("GymV21Environment", "GymV26Environment")  # make what their arguments name
WRITING = ("RecordVideo",)  # wrappers that write where their arguments say


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """An environment, by names and plain data."""

    env: str  # an id, `module:Id`, `module:Class`, `file.py:Class` or `pettingzoo:NAME`
    env_kwargs: EnvKwargs = field(default_factory=dict)  # for its constructor
    wrappers: tuple[str, ...] = ()  # the first one innermost; see env_names.py
    frame_stack: int = 1  # frames per observation; see env_wrappers.py

    def __post_init__(self) -> None:
        stack = plain_setting(self.frame_stack)
        object.__setattr__(self, "frame_stack", stack)
        if isinstance(stack, bool) or not isinstance(stack, int) or stack < 1:
            raise BadInput(f"frame_stack = {stack!r}; expected a whole number, 1 or more")


# An id, a config, Gymnasium's own config, an environment to copy, or a class or function that makes one.
EnvLike = str | EnvConfig | EnvSpec | GymEnv | ParallelGame | Callable[..., GymEnv | ParallelGame]
AnyVector = GymVectorEnv | VecEnv
VECTORS = (gym.vector.VectorEnv, VecEnv)
AnyEnv = EnvLike | AnyVector  # a vector environment is stepped as it is; no second one can be made of it


def as_config(
    env: AnyEnv,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    frame_stack: Whole | None = None,
) -> EnvConfig:
    """Any description of an environment as a config. Arguments that are not None replace those of the config.

    >>> as_config("CartPole-v1", wrappers=["TimeAwareObservation"])
    EnvConfig(env='CartPole-v1', env_kwargs={}, wrappers=('TimeAwareObservation',), frame_stack=1)
    """
    config = env if isinstance(env, EnvConfig) else EnvConfig(env=env if isinstance(env, str) else _named(env))
    if env_kwargs is not None:
        config = replace(config, env_kwargs=dict(env_kwargs))
    if wrappers is not None:
        config = replace(config, wrappers=wrapper_names(wrappers))
    return config if frame_stack is None else replace(config, frame_stack=plain_setting(frame_stack))


def _named(env: object) -> str:
    """Return the name of an environment that was passed as an object."""
    if isinstance(env, gym.Env):
        env = env.spec or Copies(env)
    elif is_game(env):
        env = Copies(env)
    if isinstance(env, EnvSpec):
        return env.id if gym.registry.get(env.id) == env else name_of(env, env.id)
    if not callable(env) and not isinstance(env, VECTORS):
        raise BadInput(
            f"env is {env!r:.80}; expected an id such as CartPole-v1, a function or class that makes a Gymnasium "
            "environment, one to copy, its EnvSpec, or a vector environment"
        )
    return name_of(env)


def given_vector(env: str) -> AnyVector | None:
    """Return the vector environment that was passed under this name, if it is one."""
    found = find_object(env) if is_given(env) else None
    return found if isinstance(found, VECTORS) else None


def without_vector(config: EnvConfig) -> EnvConfig | None:
    """Return the config of a single environment, for evaluation and films: of a vector environment's id; None: it has
    no registered id."""
    vector = given_vector(config.env)
    if vector is None:
        return config
    spec = getattr(vector, "spec", None)
    if spec is None or spec.id not in gym.registry:
        return None
    return replace(config, env=spec.id, env_kwargs=dict(gym.registry[spec.id].kwargs))


class Copies:
    """Makes copies of one environment."""

    def __init__(self, env: Any):
        self.env: Any = env
        self.__qualname__ = type(env.unwrapped).__qualname__
        try:
            copy.deepcopy(env)
        except Exception as error:
            raise BadInput(
                f"the environment {self.__qualname__} cannot be copied ({error}); pass a function that makes one"
            ) from error

    def __call__(self) -> object:
        return copy.deepcopy(self.env)


def call_maker(make: Callable[..., object], render_mode: str | None, env_kwargs: EnvKwargs) -> object:
    """Call a user's class or function, with `render_mode` if it takes one."""
    options = dict(env_kwargs)
    if render_mode is not None:
        with contextlib.suppress(TypeError, ValueError):  # it has no signature
            for each in inspect.signature(make).parameters.values():
                if each.name == "render_mode" or each.kind is inspect.Parameter.VAR_KEYWORD:
                    options["render_mode"] = render_mode
    return make(**options)


class OwnSpec(EnvSpec):
    """The spec of an unregistered class or function that makes environments, its `entry_point`."""

    @property
    def maker(self) -> Callable[..., object]:
        """The user's class or function."""
        assert callable(self.entry_point)
        return self.entry_point


def find_spec(env_id: str) -> EnvSpec:
    """Look up an id in Gymnasium's registry, after importing the module that registers it; or find the class or
    function of that name."""
    if env_id.startswith(PREFIX):
        return _own_spec(env_id.removeprefix(PREFIX), find_game(env_id))
    module, _, name = env_id.rpartition(":")
    if module and not is_given(env_id):
        import_for(env_id)
    if not module and name not in gym.registry:
        import_package_of(name)
    own = None if not module or (name in gym.registry and not is_given(env_id)) else find_object(env_id)
    if isinstance(own, VECTORS):
        raise BadInput(f"{name} is a vector environment that was given as an object; no other can be made of it")
    if isinstance(own, EnvSpec):
        return own
    if callable(own):
        return _own_spec(name, own)
    spec = gym.registry.get(name) or latest_version(name)
    if spec is not None:
        return spec
    offers = _in_file(module or name)
    if module and name:
        said = f"{module} neither registers nor defines an environment {name!r}"
        raise BadInput(f"{said}; {offers}" if offers else said)
    if offers:
        raise BadInput(f"{env_id!r} does not name an environment: {offers}")
    raise BadInput(f"Gymnasium knows no environment {name!r}: {_advice(name)}")


def _in_file(source: str) -> str:
    """Name the environments in a Python file, as advice; "" if there is no such file. The file is read, not run: a
    config may name it."""
    path = Path(source if source.endswith(".py") else f"{source}.py")
    try:
        if not path.is_file():
            return f"there is no file {path}" if source.endswith(".py") else ""
        names = file_envs(read_plain(path).decode())
    except (OSError, ValueError, UnusableFile) as error:
        return f"{path} cannot be read ({one_line(error)})" if source.endswith(".py") else ""
    if not names:
        return f"{path} defines no class or function that could be one; name it as {path}:NAME"
    return f"{path} has {', '.join(names)}; name one, such as {path}:{names[0]}"


def file_envs(source: str) -> list[str]:
    r"""The names of the environments in Python code: ids that it registers, and classes that derive from one called
    …Env; if there are none, all public classes and functions.

    >>> file_envs("class Maze(gym.Env): ...\nclass Small(Maze): ...\nclass Map: ...")
    ['Maze', 'Small']
    """
    found = re.findall(r"""^\s*(?:\w+\.)*register\(\s*(?:id\s*=\s*)?["']([^"'\s]+)""", source, re.M)
    for name, bases in re.findall(r"^class (\w+)\(([^()]*)\)", source, re.M):
        if any(base.endswith("Env") or base in found for base in re.findall(r"\w+", bases)):
            found.append(name)
    return found or re.findall(r"^(?:class|def) ([^\W_]\w*)", source, re.M)


def _advice(name: str) -> str:
    """Advise on an unknown id: Gymnasium's own message for an old version, else the closest ids."""
    try:
        gym.spec(name)
    except (gym.error.DeprecatedEnv, gym.error.VersionNotFound) as error:
        return str(error)
    except gym.error.Error:
        pass
    return did_you_mean(name, gym.registry)


def _own_spec(name: str, make: Callable[..., Any]) -> OwnSpec:
    return OwnSpec(re.sub(r"[^\w.-]", "_", name), entry_point=make)


def unchecked_spec(env_id: str) -> EnvSpec:
    """Return the spec of an id that need not be registered."""
    try:
        return EnvSpec(env_id)
    except gym.error.Error as error:
        raise BadInput(f"{env_id!r} is not an environment id: {error}") from error


def latest_version(name: str) -> EnvSpec | None:
    """Return the newest registered version of a name without one."""
    try:
        namespace, plain, version = parse_env_id(name)
    except gym.error.Error:
        return None
    highest = find_highest_version(namespace, plain) if version is None else None
    return None if highest is None else gym.registry.get(get_env_id(namespace, plain, highest))


def check_trusted(env: str, wrappers: object, source: str, command: str | None = None, why: str = "") -> None:
    """Raise if a file names an environment or a wrapper that may only be made when the user types it.

    `source` is the file; `command` is what to type in front of `--env` or `--wrapper`. None: only `--trust` helps.
    `why`: a further reason to refuse it.
    """
    if not isinstance(wrappers, list | tuple) or not all(isinstance(wrapper, str) for wrapper in wrappers):
        raise BadInput(f"{source}: wrappers is {shown(wrappers)}; expected a list of names")
    wanted = [("environment", "--env", env, env)]
    wanted += [("wrapper", "--wrapper", text, split_wrapper(text)[0]) for text in wrappers]
    for kind, flag, text, name in wanted:
        module = game_module(name) if name.startswith(PREFIX) else name.rpartition(":")[0]
        if is_given(name):
            continue
        known = not module or is_installed(module)
        if known and _is_harmless(kind, name, module):
            continue
        typed = f"name it yourself: {command} {flag} {shlex.quote(text)} (or add --trust)" if command else "add --trust"
        reason = "what it does depends on its arguments" if known else f"importing the module {module!r} runs its code"
        reason += f" ({why})" if why else ""
        raise BadInput(f"{source} names the {kind} {text!r}, and {reason}; if you trust it, {typed}")


def _is_harmless(kind: str, name: str, module: str) -> bool:
    """Whether a name without a module, or of a known package, stands for an environment or wrapper and nothing else. A
    function could do anything with the arguments in the file: `drl.cli.entry:main` and `gymnasium:make` are two."""
    label = name.rpartition(":")[2]
    if label.startswith(COMPATIBILITY) or label in WRITING:
        return False
    if not module or name.startswith(PREFIX):  # of a game only `parallel_env` is called
        return True
    found = find_object(name)
    if kind == "environment" and (found is None or label in gym.registry):
        return True  # looked up in a registry
    if not isinstance(found, type):
        return False
    if kind == "wrapper":
        return issubclass(found, gym.Wrapper)
    if not issubclass(found, gym.Env) or issubclass(found, gym.Wrapper):
        return False
    home = found.__module__
    return home.partition(".")[0] != "drl" or home.startswith("drl.games.")  # others of drl make what they are told to
