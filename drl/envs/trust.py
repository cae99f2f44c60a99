"""What may be imported and called because a file names it: environments and wrappers of well-known packages only."""

import shlex

import gymnasium as gym

from drl.core.errors import BadInput
from drl.core.named_objects import is_given
from drl.core.size_limits import shown
from drl.envs.known_packages import is_installed
from drl.envs.parallel_games import PREFIX, game_module
from drl.envs.user_objects import find_object
from drl.envs.wrapper_names import split_wrapper

COMPATIBILITY = ("GymV21Environment", "GymV26Environment")  # make what their arguments name
WRITING = ("RecordVideo",)  # wrappers that write where their arguments say


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
