"""`drl train ALGORITHM --env ID …`: every field of the run's, the model's and the algorithm's config is a flag."""

import dataclasses
import itertools
from typing import Any

from drl.cli.entry import EXIT_CODES
from drl.cli.flags import parse_flags
from drl.core.algorithms import ALGORITHMS, find_algorithm
from drl.core.errors import BadInput
from drl.core.plugins import import_plugins
from drl.envs.trust import check_trusted
from drl.experiment.config import PARTS, Experiment, RunConfig, read_yaml
from drl.experiment.presets import load_preset, preset_path

USAGE = f"""usage: drl train ALGORITHM --env ID [--config FILE.yaml] [--no-preset] …

ALGORITHM is one of {", ".join(ALGORITHMS)}. `drl train ALGORITHM --help` shows every flag.
A preset for the pair of algorithm and environment is used when there is one; --config goes on top of it and flags
on top of both."""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    algorithm, flags = arguments[0], arguments[1:]
    experiment, source = read_experiment(algorithm, flags)

    # An engine is loaded only when everything before it was right.
    from drl.experiment.launch import say, train, train_seeds

    if source and not experiment.run.quiet:
        say(f"settings: {source}")
    runs = train_seeds(experiment) if experiment.run.num_seeds > 1 else [train(experiment)]
    if not experiment.run.quiet:
        say("\n".join(report(finished) for finished in runs))
    return EXIT_CODES[runs[0].status]


def read_experiment(algorithm: str, flags: list[str]) -> tuple[Experiment, str]:
    """The experiment, and in words where its numbers come from."""
    flags = list(flags)
    config_file = take_flag(flags, "--config")
    use_preset, trust = "--no-preset" not in flags, "--trust" in flags
    flags = [flag for flag in flags if flag not in ("--no-preset", "--trust")]
    from_file = read_yaml(config_file) if config_file else {}
    _import_plugins(flags, from_file, trust, f"drl train {algorithm} --config {config_file}")
    find_algorithm(algorithm)
    if from_file.get("algorithm", algorithm) != algorithm:
        raise BadInput(
            f"{config_file} is for {from_file['algorithm']}; type: drl train {from_file['algorithm']} --config …"
        )
    env = _peek(flags, "--env") or from_file.get("env", RunConfig.env)
    if not isinstance(env, str):
        raise BadInput(f"{config_file}: env is {env!r}; expected the name of an environment, such as CartPole-v1")
    if _peek(flags, "--env") is None and not trust:
        check_trusted(env, str(config_file), f"drl train {algorithm} --config {config_file}")
    preset = (load_preset(algorithm, env) if use_preset else None) or {}
    _one_budget(preset, from_file, flags)
    settings = preset | from_file | {"algorithm": algorithm, "env": env}
    default = Experiment.from_flat(settings, config_file or str(preset_path(algorithm, env)))
    parts = {name: getattr(default, name) for name in PARTS}
    kinds: list[Any] = [(name, type(part), dataclasses.field(default=part)) for name, part in parts.items()]
    parsed: Any = parse_flags(
        dataclasses.make_dataclass("Flags", kinds, frozen=True),
        flags,
        prog=f"drl train {algorithm}",
        description=f"Train {algorithm}. Shown defaults are those of {env}"
        + (" (preset)." if preset else ".")
        + " Also: --config FILE.yaml, settings that go on top of the preset; --no-preset, without it; --trust, import "
        "the module that the file names for its environment, which runs its code.",
    )
    experiment = Experiment(algorithm=algorithm, **{name: getattr(parsed, name) for name in PARTS})
    sources = ([f"preset {algorithm}/{env}"] if preset else []) + ([str(config_file)] if config_file else [])
    return experiment, ", then ".join(sources)


def _import_plugins(flags: list[str], from_file: dict[str, Any], trust: bool, command: str) -> None:
    """Those that the command line names; those of a file only with --trust, since importing runs their code."""
    typed = peek_list(flags, "--plugins")
    filed = [] if typed else list(from_file.get("plugins") or [])
    if filed and not trust:
        raise BadInput(
            f"the file names the plugins {', '.join(map(str, filed))}, and importing them runs their code; if you trust "
            f"them, name them yourself: {command} --plugins {' '.join(map(str, filed))} (or add --trust)"
        )
    import_plugins([*typed, *filed])


def peek_list(flags: list[str], name: str) -> list[str]:
    """The values of `--flag one two`, left in place."""
    if name not in flags:
        return []
    values = itertools.takewhile(lambda value: not value.startswith("--"), flags[flags.index(name) + 1 :])
    return list(values)


def _one_budget(preset: dict[str, Any], from_file: dict[str, Any], flags: list[str]) -> None:
    """A budget of the other kind, given by file or flag, takes the place of the one below it."""
    budgets = {"total_timesteps": "--total-timesteps", "num_episodes": "--num-episodes"}
    for name, other in (("total_timesteps", "num_episodes"), ("num_episodes", "total_timesteps")):
        if from_file.get(name):
            preset.pop(other, None)
        if _peek(flags, budgets[name]) is not None:
            preset.pop(other, None)
            from_file.pop(other, None)


def _peek(flags: list[str], name: str) -> str | None:
    """The value of `--flag value` or `--flag=value`, underscores allowed, left in place."""
    value = None
    for position, flag in enumerate(flags):
        head, _, tail = flag.partition("=")
        if head.replace("_", "-") == name:  # the last one counts, as for the parser
            value = tail or (flags[position + 1] if position + 1 < len(flags) else None)
    return value


def take_flag(flags: list[str], name: str) -> str | None:
    """Like `_peek`, but removes the flag and its value."""
    value = _peek(flags, name)
    for position, flag in enumerate(flags):
        if flag.partition("=")[0] == name:
            if value is None:
                raise BadInput(f"{name} needs a value")
            del flags[position : position + (1 if "=" in flag else 2)]
            break
    return value


def report(finished: Any) -> str:
    """Where a run left what."""
    folder, summary = finished.folder, finished.evaluation
    lines = ["", f"{finished.status}: {folder}"]
    if summary:
        score = f"mean return {summary['mean_return']:.2f} ± {summary['std_return']:.2f}"
        lines.append(f"final agent: {score} over {summary['episodes']} episodes")
    paths = {"agent": folder / "agent", "plot": folder / "plots" / "return.png"}
    paths |= {"video": folder / "videos" / "final_agent.mp4"}
    lines += [f"  {name:6} {path}" for name, path in paths.items() if path.exists()]
    return "\n".join(lines)
