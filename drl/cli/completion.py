"""`drl completion bash|zsh|fish`: print a shell script that completes commands, algorithms, flags and environments.

The script contains all words, so completion starts no process.
"""

import dataclasses

from drl.algorithms import ALGORITHMS
from drl.cli.entry import COMMANDS, load_command
from drl.cli.flags import Parser
from drl.cli.offers import SECTIONS
from drl.cli.studies import AblateFlags, search_parser
from drl.cli.train import train_parser
from drl.core.errors import BadInput, did_you_mean, html_text
from drl.core.network_parts import BACKBONES
from drl.settings.presets import list_presets

COMPLETION_USAGE = """usage: drl completion bash|zsh|fish

Install it once; it takes effect in a new shell:
  bash   mkdir -p ~/.local/share/bash-completion/completions
         drl completion bash > ~/.local/share/bash-completion/completions/drl
  zsh    drl completion zsh > ~/.drl-completion.zsh; echo 'source ~/.drl-completion.zsh' >> ~/.zshrc
  fish   mkdir -p ~/.config/fish/completions
         drl completion fish > ~/.config/fish/completions/drl.fish"""

Words = dict[str, tuple[str, ...]]

SETTINGS: Words = {
    "--engine": ("torch", "jax"),
    "--vectorization": ("auto", "sync", "async", "native", "envpool", "jax"),
    "--compile": ("auto", "on", "off"),
    "--device": ("auto", "cpu", "cuda", "mps"),
    "--backbone": ("auto", *BACKBONES),
}
VALUES: Words = SETTINGS | {
    "--which": ("final", "best", "best-evaluated"),
    "--to": ("onnx", "torch-export", "jax-export", "c"),
}


@dataclasses.dataclass(frozen=True, repr=False)
class CompletionScript:
    """The result of `completion`. Printed, it is the script; a notebook shows where to put it."""

    shell: str
    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"CompletionScript({self.shell!r}, {len(self.text.splitlines())} lines)"

    def _repr_html_(self) -> str:
        return html_text(f"{self!r}\n\n{COMPLETION_USAGE}")


def run_completion(arguments: list[str]) -> int:
    """Run `drl completion`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(COMPLETION_USAGE)
        return 0 if arguments else 2
    if len(arguments) > 1:
        raise BadInput(f"completion takes one shell, got {' '.join(arguments)!r:.80}; type: drl completion bash")
    completion(arguments[0], console=True)
    return 0


def completion(shell: str, *, console: bool = False) -> CompletionScript:
    """Return the completion script of `drl` for a shell (bash, zsh or fish)."""
    if shell not in SHELLS:
        raise BadInput(f"unknown shell {shell!r:.80}; {did_you_mean(shell, SHELLS)}")
    script = CompletionScript(shell, SHELLS[shell](_flags(), _positions(), VALUES | {"--env": _envs()}))
    if console:
        print(script)
    return script


def _flags() -> Words:
    """Return the flags per command, or per command and algorithm."""
    flags: Words = {}
    for name in COMMANDS:
        if isinstance(command := load_command(name), type):
            flags[name] = tuple(Parser("", "", {"": command}).flags)
    for algorithm, record in ALGORITHMS.items():
        flags[f"train {algorithm}"] = tuple(train_parser("", algorithm).flags)
        flags[f"search {algorithm}"] = tuple(search_parser(algorithm).flags)
        if record.switches:
            flags[f"ablate {algorithm}"] = tuple(train_parser("", algorithm, AblateFlags).flags)
    return flags


def _positions() -> Words:
    """Return the words that may follow a command: algorithms, sections or shells. Other commands take folders."""
    switched = tuple(name for name, record in ALGORITHMS.items() if record.switches)
    named = {"train": tuple(ALGORITHMS), "search": tuple(ALGORITHMS), "ablate": switched}
    presets = tuple(f"{algorithm}/{env}" for algorithm, env in list_presets() if not env.endswith("*"))
    return named | {"list": SECTIONS, "completion": tuple(SHELLS), "reproduce": presets}


def _envs() -> tuple[str, ...]:
    import gymnasium as gym

    return tuple(sorted(gym.registry))


def _bash(flags: Words, positions: Words, values: Words) -> str:
    def cases(words: Words) -> str:
        return "\n".join(f'    "{name}") words="{" ".join(each)}" ;;' for name, each in words.items())

    return f"""# drl completion bash
_drl() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  local command="${{COMP_WORDS[1]}}" pair="${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}"
  if [[ $COMP_CWORD -eq 1 ]]; then words="{" ".join(COMMANDS)} --help --version"
  elif [[ $word == -* ]]; then
    case "$pair" in
{cases({name: each for name, each in flags.items() if " " in name})}
    *) case "$command" in
{cases({name: each for name, each in flags.items() if " " not in name})}
    esac ;;
    esac
  else
    case "$before" in
{cases(values)}
    *) if [[ $COMP_CWORD -eq 2 || $command == list ]]; then case "$command" in
{cases(positions)}
    esac; fi ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _drl drl"""


def _zsh(flags: Words, positions: Words, values: Words) -> str:
    return "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" + _bash(
        flags, positions, values
    )


def _fish(flags: Words, positions: Words, values: Words) -> str:
    lines = ["# drl completion fish"]
    for name, (_, text) in COMMANDS.items():
        about = text.replace("'", "\\'")
        lines.append(f"complete -c drl -n __fish_use_subcommand -f -a {name} -d '{about}'")
    for command, words in positions.items():
        seen = f"__fish_seen_subcommand_from {command}"
        if command != "list":  # `list` takes several sections
            seen += f"; and not __fish_seen_subcommand_from {' '.join(words)}"
        lines.append(f"complete -c drl -n '{seen}' -f -a '{' '.join(words)}'")
    for name, words in flags.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        for flag in words:
            offers = f" -x -a '{' '.join(values[flag])}'" if flag in values else ""
            lines.append(f"complete -c drl -n '{seen}' -l {flag.removeprefix('--')}{offers}")
    return "\n".join(lines)


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
