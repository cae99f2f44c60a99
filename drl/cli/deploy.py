"""`drl convert`, `drl export`, `drl serve`, `drl push` and `drl pull`: agents outside their runs."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags


@dataclass(frozen=True)
class ConvertFlags:
    """Flags of `drl convert`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    engine: str  # torch or jax
    plugins: tuple[str, ...] = ()  # your own modules to import first
    out: str | None = None  # new folder; default: beside the agent, with the engine's name appended
    strict: bool = False  # fail, not only warn, if the agent acts differently from its golden pairs


def run_convert(arguments: list[str]) -> int:
    """Run `drl convert`."""
    flags = parse_flags(ConvertFlags, arguments, prog="drl convert", description="Write an agent for the other engine.")
    from drl.deploy.export_agent import convert

    print(convert(flags.agent, flags.engine, out=flags.out, plugins=flags.plugins, strict=flags.strict))
    return 0


@dataclass(frozen=True)
class ExportFlags:
    """Flags of `drl export`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    to: str  # onnx · torch-export · jax-export · c
    out: str | None = None  # new file; default: beside the agent, with the suffix of the format
    # Add an input for action masks: auto (if the training environment provides masks) · on · off.
    action_mask: str = "auto"
    plugins: tuple[str, ...] = ()  # your own modules to import first


def run_export(arguments: list[str]) -> int:
    """Run `drl export`."""
    flags = parse_flags(
        ExportFlags, arguments, prog="drl export", description="Write an agent as a file for another runtime."
    )
    from drl.deploy.export_agent import export

    print(export(flags.agent, flags.to, out=flags.out, action_mask=flags.action_mask, plugins=flags.plugins))
    return 0


@dataclass(frozen=True)
class ServeFlags:
    """Flags of `drl serve`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    port: int = 8000  # 0: any free port
    host: str = "127.0.0.1"  # address to listen on; with another address, other machines can send requests
    engine: str = "torch"  # torch · jax · numpy (MLPs only)
    sampled: bool = False  # sample actions from the policy instead of taking the most likely
    temperature: float = 1.0  # temperature of sampled actions
    max_batch: int = 256  # most observations in one forward pass, and in one request
    batch_window: float = 1.0  # milliseconds to collect requests for one forward pass
    max_bytes: int = 4 << 20  # largest body of a request
    plugins: tuple[str, ...] = ()  # your own modules to import first


def run_serve(arguments: list[str]) -> int:
    """Run `drl serve`."""
    flags = parse_flags(
        ServeFlags, arguments, prog="drl serve", description="Answer observations with actions over HTTP."
    )
    from drl.deploy.serve_call import serve

    serve(**vars(flags), wait=True, console=True)
    return 0


@dataclass(frozen=True)
class PushFlags:
    """Flags of `drl push`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    repository: Annotated[str, tyro.conf.Positional]  # owner/name; created if it does not exist
    which: str | None = None  # for a run: final (the newest), best (by training return) or best-evaluated
    private: bool = False  # make a new repository private


def run_push(arguments: list[str]) -> int:
    """Run `drl push`."""
    flags = parse_flags(
        PushFlags, arguments, prog="drl push", description="Upload an agent to the Hugging Face Hub, with HF_TOKEN."
    )
    from drl.agents.hub import push

    print(push(flags.agent, flags.repository, which=flags.which, private=flags.private))
    return 0


@dataclass(frozen=True)
class PullFlags:
    """Flags of `drl pull`."""

    repository: Annotated[str, tyro.conf.Positional]  # owner/name
    out: str | None = None  # new folder; default: the repository's name, here
    revision: str | None = None  # a branch, a tag or a commit; default: the newest commit


def run_pull(arguments: list[str]) -> int:
    """Run `drl pull`."""
    flags = parse_flags(
        PullFlags,
        arguments,
        prog="drl pull",
        description="Download an agent from the Hugging Face Hub; no code is run.",
    )
    from drl.agents.hub import pull

    print(pull(flags.repository, out=flags.out, revision=flags.revision))
    return 0
