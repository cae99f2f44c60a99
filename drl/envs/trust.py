"""Which modules may be imported because a file names them: importing runs their code."""

import shlex

from drl.core.errors import BadInput
from drl.core.named_objects import is_given
from drl.core.size_limits import shown
from drl.envs.known_packages import is_installed
from drl.envs.parallel_games import PREFIX, game_module
from drl.envs.wrapper_names import split_wrapper


def check_trusted(env: str, wrappers: object, source: str, command: str | None = None) -> None:
    """Raise if a file names an environment or a wrapper whose module may only be imported when the user types it.

    `source` is the file; `command` is what to type in front of `--env` or `--wrapper`. None: only `--trust` helps.
    """
    if not isinstance(wrappers, list | tuple) or not all(isinstance(wrapper, str) for wrapper in wrappers):
        raise BadInput(f"{source}: wrappers is {shown(wrappers)}; expected a list of names")
    wanted = [("environment", "--env", env, env)]
    wanted += [("wrapper", "--wrapper", text, split_wrapper(text)[0]) for text in wrappers]
    for kind, flag, text, name in wanted:
        module = game_module(name) if name.startswith(PREFIX) else name.rpartition(":")[0]
        if not module or is_installed(module) or is_given(name):
            continue
        typed = f"name it yourself: {command} {flag} {shlex.quote(text)} (or add --trust)" if command else "add --trust"
        what = f"the {kind} {text!r}, and importing the module {module!r} runs its code"
        raise BadInput(f"{source} names {what}; if you trust it, {typed}")
