"""`drl search ALGORITHM --env ID --n-trials N …`: search for better settings. The same command continues a search."""

import shlex
from dataclasses import dataclass, field, fields, replace

from drl.algorithms import ALGORITHMS, find_algorithm
from drl.cli.entry import EXIT_CODES
from drl.cli.flags import parse_flags
from drl.cli.train import check_names, import_named_plugins, peek
from drl.core.errors import BadInput, shown
from drl.core.specs import PlainDict
from drl.envs.env_specs import check_trusted
from drl.runs.folder.run_folder import is_own_config
from drl.settings.experiment import RunConfig, read_yaml
from drl.settings.foreign_settings import settings_of

USAGE = f"""usage: drl search ALGORITHM --env ID --n-trials N [--storage URL|FILE] [--n-jobs N] [--mode base|all] …

ALGORITHM is one of {", ".join(ALGORITHMS)}. `drl search ALGORITHM --help` shows every flag.
The search starts from the preset of the pair, if there is one; --config overrides it. The search writes best.yaml for
`drl train ALGORITHM --config`. The same command continues the search."""


def main(arguments: list[str]) -> int:
    """Run `drl search`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    algorithm, typed = arguments[0], arguments[1:]
    file, trust = peek(typed, "--config"), "--trust" in typed
    settings: PlainDict = {} if file is None else read_yaml(file)
    trust = trust or is_own_config(file, settings)
    again = f"drl search {algorithm} --config {file}"
    import_named_plugins(typed, settings, trust, str(file), again)
    find_algorithm(algorithm)
    from drl.search.run_search import search
    from drl.search.search_plan import SearchConfig
    from drl.search.search_report import Commands

    @dataclass(frozen=True, kw_only=True)
    class Flags:
        search: SearchConfig = field(default_factory=SearchConfig)
        config: str | None = None  # YAML settings that override the preset: fixed values, or where the search starts
        plugins: tuple[str, ...] = ()  # your own modules to import first
        preset: bool = True  # start from the preset of the pair, if there is one
        trust: bool = False  # import the modules that the file names; this runs their code

    names = {each.name for kind in (Flags, SearchConfig) for each in fields(kind)}
    of_runs = settings_of(algorithm) | {each.name for each in fields(RunConfig)}
    check_names("drl search", algorithm, typed, names, filed=of_runs)
    flags = parse_flags(
        Flags,
        typed,
        prog=f"drl search {algorithm}",
        description=f"Search for settings of {algorithm}. The same command continues the search.",
    )
    if settings.pop("algorithm", algorithm) != algorithm:
        raise BadInput(f"{file} is for another algorithm than {algorithm}")
    config, env = flags.search, settings.pop("env", None)
    if env is not None and peek(typed, "--env") is None:
        if not isinstance(env, str):
            raise BadInput(f"{file}: env is {shown(env)}; expected the name of an environment, such as CartPole-v1")
        if not trust:
            check_trusted(env, (), str(file), again)
        config = replace(config, env=env)
    if not trust:
        check_trusted("", settings.get("wrappers") or (), str(file))
    settings |= {"plugins": list(flags.plugins)} if flags.plugins else {}
    command = shlex.join(["drl", "search", *arguments])
    result = search(algorithm, config, settings, use_preset=flags.preset, commands=Commands(command))
    if result.status != "finished":
        print(f"resume: {command}", flush=True)
    return EXIT_CODES[result.status]
