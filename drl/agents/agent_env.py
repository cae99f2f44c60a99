"""The environment that an agent plays in: the one that is named, or the one on its card; environments by id."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict, Unpack

from drl.core.contracts import Agent, VecEnv
from drl.core.errors import BadInput, MissingExtra, UnusableFile
from drl.core.network_parts import function_modules, import_plugins
from drl.core.specs import PlainDict
from drl.envs.atari import usual_frame_stack
from drl.envs.env_config import EnvConfig, EnvLike, as_config, check_trusted
from drl.envs.env_names import WrapperLike
from drl.envs.env_wrappers import usual_wrappers
from drl.envs.make_vec_env import make_vec_env
from drl.envs.spaces import EnvKwargs
from drl.runs.folder.run_folder import own_settings
from drl.settings.experiment import RunConfig

JAX_ONLY = ("brax:", "gymnax:")  # prefixes of ids: environments of these packages, which the JAX engine steps
MOST_FRAMES = 1000  # largest frame_stack that an agent's card may name


class EnvOptions(TypedDict, total=False):
    """Options of `make_vec_env`."""

    vectorization: str
    timeout: float


def open_vec_env(
    config: EnvConfig, num_envs: int, seed: int, *, seeds_stream: str = "world", **options: Unpack[EnvOptions]
) -> VecEnv:
    """`make_vec_env`; the JAX engine steps the environments of `JAX_ONLY`."""
    env = config.env
    if not env.startswith(JAX_ONLY):
        return make_vec_env(config, num_envs, seed, seeds_stream=seeds_stream, **options)
    package = env.partition(":")[0]
    if config.frame_stack > 1 or config.wrappers:
        raise BadInput(f"{'wrappers are' if config.wrappers else 'frame_stack is'} not for {package}: environments")
    try:
        from drl.engines.jax.envs import HostedVecEnv, make_jax_env
    except ImportError as error:
        raise MissingExtra(env, package, error) from None
    return HostedVecEnv(make_jax_env(env, config.env_kwargs), num_envs, seed, env, seeds_stream)


def env_notes(config: EnvConfig) -> PlainDict:
    """The environment on an agent's card."""
    notes = {"env": config.env, "env_kwargs": config.env_kwargs, "frame_stack": config.frame_stack}
    return notes | ({"wrappers": list(config.wrappers)} if config.wrappers else {})


def env_for(
    agent: Agent,
    env: EnvLike | None = None,
    env_kwargs: EnvKwargs | None = None,
    wrappers: Iterable[WrapperLike] | None = None,
    frame_stack: int | None = None,
    *,
    source: str = "the agent's card",
    command: str | None = None,
    trust: bool = False,
) -> EnvConfig:
    """The environment to play in; None: that of the training. In that one, its arguments and wrappers are those of the
    training, and in each the agent sees as many frames at once as in training, unless others are given.

    `source`, `command` and `trust`: see `check_trusted`; a card may name only known modules.
    """
    trained = _on_card(getattr(agent, "notes", {}), source)  # an agent of the user may have none
    if env is None and trained is None:
        raise BadInput(f"{source} does not name its environment; name one: --env ID, or env= in Python")
    if trained is None:
        assert env is not None
        config = as_config(env, env_kwargs, wrappers, frame_stack)
        usual = config.frame_stack if isinstance(env, EnvConfig) else usual_frame_stack(config.env, config.env_kwargs)
        return as_config(config, frame_stack=frame_stack or usual)
    config = as_config(trained if env is None else env)
    if not isinstance(env, EnvConfig):  # which is complete
        if config.env == trained.env:
            wrappers_named = trained.wrappers if wrappers is None else ()
            if not trust:
                check_trusted(trained.env if env is None else "", wrappers_named, source, command)
            config = trained
        else:  # it sees the other environment as it saw its own
            carried = [name for name in usual_wrappers(config.env) if name in trained.wrappers]
            config = as_config(config, wrappers=carried, frame_stack=trained.frame_stack)
    return as_config(config, env_kwargs, wrappers, frame_stack)


def own_run(folder: Path) -> PlainDict | None:
    """The settings of the run that an agent's folder is in, if this account started it. Its plugins are imported, which
    the agent may need."""
    settings = own_settings(folder)
    if settings is not None:
        import_plugins([*(settings.get("plugins") or ()), *function_modules(settings)])
    return settings


def is_env_of(agent: Agent, settings: PlainDict | None) -> bool:
    """Whether an agent's card names the environment of a run of this account, with the same arguments and wrappers:
    the card itself is not signed."""
    if settings is None:
        return False
    run = RunConfig(
        env=settings.get("env", RunConfig.env),
        env_kwargs=tuple(settings.get("env_kwargs") or ()),
        wrappers=tuple(settings.get("wrappers") or ()),
        frame_stack=settings.get("frame_stack", 0),
    )
    notes = getattr(agent, "notes", {})
    names = ("env", "env_kwargs", "frame_stack", "wrappers")
    return {name: notes[name] for name in names if name in notes} == env_notes(run.env_config)


def _on_card(notes: PlainDict, source: str) -> EnvConfig | None:
    """The environment of the training. A card is untrusted, so its types are checked."""
    if notes.get("env") is None:
        return None
    card: PlainDict = {"env_kwargs": {}, "wrappers": [], "frame_stack": 1} | notes
    card["env_kwargs"] = card["env_kwargs"] or {}
    stack, wrappers = card["frame_stack"], card["wrappers"]
    checks = {
        "env": isinstance(card["env"], str),
        "env_kwargs": isinstance(card["env_kwargs"], dict),
        "wrappers": isinstance(wrappers, list) and all(isinstance(wrapper, str) for wrapper in wrappers),
        "frame_stack": isinstance(stack, int) and not isinstance(stack, bool) and 1 <= stack <= MOST_FRAMES,
    }
    if wrong := [name for name, right in checks.items() if not right]:
        raise UnusableFile(f"{source} describes its environment wrongly, in {', '.join(wrong)}")
    return EnvConfig(env=card["env"], env_kwargs=card["env_kwargs"], wrappers=tuple(wrappers), frame_stack=stack)
