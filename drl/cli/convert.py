"""`drl convert RUN|AGENT --engine jax`: write an agent for the other engine, after checking that both act alike."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from drl.cli.flags import parse_flags
from drl.core.agent_files import read_agent
from drl.core.contracts import Agent
from drl.core.errors import BadInput, did_you_mean
from drl.core.golden_pairs import sample_obs
from drl.core.network_parts import import_plugins
from drl.core.safe_files import check_out
from drl.core.specs import Array
from drl.experiment.run_folder import find_agent_folder

CHECKED = 1000  # random observations on which both engines must act alike
MOST_NUMBERS = 30_000_000  # limit for all of them together, so fewer if they are large


@dataclass(frozen=True)
class Flags:
    """Flags of `drl convert`."""

    agent: Annotated[str, tyro.conf.Positional]  # a run, an experiment (its newest run) or an agent folder
    engine: str  # torch or jax
    plugins: tuple[str, ...] = ()  # your own modules to import first
    out: str | None = None  # new folder; default: beside the agent, with the engine's name appended
    strict: bool = False  # an agent that acts differently from its golden pairs is an error, not a warning


def main(arguments: list[str]) -> int:
    """Run `drl convert`."""
    flags = parse_flags(Flags, arguments, prog="drl convert", description="Write an agent for the other engine.")
    if flags.engine not in ("torch", "jax"):
        raise BadInput(f"unknown engine {flags.engine!r}; {did_you_mean(flags.engine, ['torch', 'jax'])}")
    import_plugins(flags.plugins)
    folder = find_agent_folder(flags.agent)
    out = Path(flags.out) if flags.out else folder.with_name(f"{folder.name}-{flags.engine}")
    check_out(out)
    print(convert(folder, flags.engine, out, flags.strict))
    return 0


def convert(folder: Path, engine: str, out: Path, strict: bool = False) -> Path:
    """Write the agent in `folder` to `out`, for `engine`."""
    from drl.experiment.load_agent import load_agent

    card, _ = read_agent(folder)
    before, after = (load_agent(folder, engine=each, strict=strict) for each in (card["engine"], engine))
    rows = max(1, min(CHECKED, MOST_NUMBERS // max(math.prod(before.obs_spec.shape), 1)))
    obs = sample_obs(before.obs_spec, rows)
    if not _same_actions(before, after, obs):
        raise BadInput(f"{folder} acts differently in {engine}; nothing was written")
    after.save(out)
    return out


def _same_actions(before: Agent, after: Agent, obs: Array) -> bool:
    one, two = before.decide(obs), after.decide(obs)
    return bool(np.allclose(one, two, rtol=1e-4, atol=1e-4) if one.dtype.kind == "f" else np.array_equal(one, two))
