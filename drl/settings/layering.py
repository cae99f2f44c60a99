"""The layers of settings, for commands and Python calls: a preset, then a file, then what is typed or passed."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from drl.algorithms import find_algorithm
from drl.core.configs import AnyPath, as_pairs
from drl.core.errors import BadInput, shown
from drl.core.network_parts import import_plugins
from drl.core.setting_rules import check_size
from drl.core.specs import PlainDict
from drl.envs.env_config import AnyEnv, as_config, check_trusted, given_vector
from drl.envs.env_names import WrapperLike
from drl.envs.spaces import EnvKwargs
from drl.settings.experiment import Experiment, RunConfig, check_reach, read_yaml
from drl.settings.presets import load_preset, one_budget, one_schedule


class ConfigFile(NamedTuple):
    """Settings from a file or a dict."""

    settings: PlainDict
    path: str  # "" for a dict
    trusted: bool = True  # whether it may name code to import
    command: str | None = None  # that trains with it, for advice

    @property
    def source(self) -> str:
        """Name in error messages."""
        return self.path or "config"


NO_FILE = ConfigFile({}, "")


def read_config(
    config: AnyPath | Mapping[str, object] | None,
    plugins: Iterable[str] = (),
    trust: bool | Callable[[AnyPath, PlainDict], bool] = True,
    command: str | None = None,
) -> ConfigFile:
    """Read settings, and import the given plugins, or else those of the file. A dict is trusted; a file only if `trust`
    is True, or is true of its path and settings."""
    file = NO_FILE
    if isinstance(config, Mapping):
        file = ConfigFile(dict(config), "")
    elif config is not None:
        settings = read_yaml(config)
        trusted = trust if isinstance(trust, bool) else trust(config, settings)
        file = ConfigFile(settings, str(config), trusted, command and f"{command} --config {config}")
    named = file.settings.get("plugins") or ()
    if not isinstance(named, list | tuple) or not all(isinstance(name, str) for name in named):
        raise BadInput(f"{file.source}: plugins is {shown(named)}; expected a list of modules")
    plugins = tuple(plugins)
    if named and not plugins and not file.trusted:
        yourself = f"{file.command} --plugins {' '.join(named)} (or add --trust)"
        advice = f"if you trust them, name them yourself: {yourself}" if file.command else "add trust=True"
        raise BadInput(
            f"{file.source} names the plugins {', '.join(named)}, and importing them runs their code; {advice}"
        )
    import_plugins(plugins or named)
    return file


def merge_layers(
    algorithm: str, given: Mapping[str, object], file: ConfigFile = NO_FILE, preset: bool | str = True
) -> tuple[PlainDict, str]:
    """Return the settings of a preset, a file and an argument list in one dict, and a text that names the first two.
    `preset` may be the name of another preset.

    >>> merge_layers("dqn", {"env": "CartPole-v1"}, ConfigFile({"gamma": 0.9}, "my.yaml"))[1]
    'preset dqn/CartPole-v1, then my.yaml'
    """
    record, from_file = find_algorithm(algorithm), dict(file.settings)
    if (other := from_file.get("algorithm", algorithm)) != algorithm:
        other = other if isinstance(other, str) else shown(other)
        raise BadInput(f"{file.source} is for {other}; expected {algorithm}")
    env = given.get("env", from_file.get("env", RunConfig.env))
    if not isinstance(env, str):
        raise BadInput(f"{file.source}: env is {shown(env)}; expected the name of an environment, such as CartPole-v1")
    check_size("env", env)
    if not file.trusted:
        wrappers = () if "wrappers" in given else from_file.get("wrappers") or ()
        check_trusted("" if "env" in given else env, wrappers, file.source, file.command)
        check_reach(from_file, given, file.source, file.command)
    if given.get("log_every") and given.get("quiet"):
        raise BadInput("log_every prints during training and quiet prints one line at the end; give one of them")
    name = preset if isinstance(preset, str) else None
    shipped = load_preset(algorithm, env, name) if preset else None
    named = f"preset {f'{name} ' if name else ''}{algorithm}/{env}" if shipped is not None else ""
    shipped = shipped or {}
    one_budget(shipped, from_file, given)
    one_schedule(shipped, from_file, given)
    flat = shipped | from_file | dict(given) | {"algorithm": algorithm, "env": env}
    if record.plugins:  # so that another process can resume the run
        flat["plugins"] = tuple(dict.fromkeys([*flat.get("plugins", ()), *record.plugins]))
    return flat, ", then ".join(filter(None, (named, file.path)))


def layered(
    algorithm: str, given: Mapping[str, object], file: ConfigFile = NO_FILE, preset: bool | str = True
) -> tuple[Experiment, str]:
    """Make the settings of a run from a preset, a file and an argument list, and a text that names the first two."""
    flat, sources = merge_layers(algorithm, given, file, preset)
    try:
        return Experiment.from_flat(flat), sources
    except BadInput:
        if file.settings:  # name the file if the mistake is there
            of_file, _ = merge_layers(algorithm, {}, file._replace(trusted=True), False)
            Experiment.from_flat(of_file, file.source)
        raise


def env_settings(
    env: AnyEnv, env_kwargs: EnvKwargs | None = None, wrappers: Iterable[WrapperLike] | None = None
) -> PlainDict:
    """Return the settings of a run that an environment determines."""
    config = as_config(env, env_kwargs, wrappers)
    settings: PlainDict = {"env": config.env}
    if config.env_kwargs or env_kwargs is not None:
        try:
            settings["env_kwargs"] = list(as_pairs("env_kwargs", config.env_kwargs))
        except BadInput as error:
            raise BadInput(f"{error}; for other objects pass a function: env=lambda: MyEnv(…)") from None
    if config.wrappers or wrappers is not None:
        settings["wrappers"] = list(config.wrappers)
    if config.frame_stack > 1:
        settings["frame_stack"] = config.frame_stack
    if (vector := given_vector(config.env)) is not None:
        settings["num_envs"] = vector.num_envs
    return settings
