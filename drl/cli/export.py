"""`drl export RUN|AGENT --to onnx|torch-export|jax-export|c`: write an agent as a file for another runtime."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.core.errors import BadInput
from drl.core.network_parts import import_plugins
from drl.experiment.run_folder import find_agent_folder

MASKS: dict[str, bool | None] = {"auto": None, "on": True, "off": False}


@dataclass(frozen=True)
class Flags:
    """Flags of `drl export`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    to: str  # onnx · torch-export · jax-export · c
    out: str | None = None  # new file; default: beside the agent, with the suffix of its kind
    # With an input for the legal actions: auto (if the environment of the training gives masks) · on · off.
    action_mask: str = "auto"
    plugins: tuple[str, ...] = ()  # your own modules to import first


def main(arguments: list[str]) -> int:
    """Run `drl export`."""
    flags = parse_flags(
        Flags, arguments, prog="drl export", description="Write an agent as a file for another runtime."
    )
    if flags.action_mask not in MASKS:
        raise BadInput(f"--action-mask is {flags.action_mask!r}; expected auto, on or off")
    import_plugins(flags.plugins)
    folder = find_agent_folder(flags.agent)

    from drl.deploy.export_agent import export_agent

    out = Path(flags.out) if flags.out else None
    exported = export_agent(folder, flags.to, out, MASKS[flags.action_mask])
    print(exported.path)
    for line in exported.interface:
        print(f"  {line}")
    print(f"  check  {exported.parity or 'not compared with the agent: there is no C compiler (cc) here'}")
    return 0
