"""The collectors of one run: opens them, and builds its environments and policy in their processes."""

import contextlib
import copy
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from drl.agents.agent_env import JAX_ONLY
from drl.algorithms import find_algorithm
from drl.cluster.env_blocks import Weights, agent_state
from drl.cluster.ray_cluster import open_cluster
from drl.cluster.ray_collectors import RayCollectors
from drl.core.contracts import Agent
from drl.core.errors import BadInput, plural
from drl.core.seeding import Seeds
from drl.envs.env_config import given_vector
from drl.envs.make_vec_env import has_several_agents, make_vec_env
from drl.runs.building import learner_maker, set_exploration, start_engine
from drl.runs.extras import Extras
from drl.runs.many_runs import PackedRun, pack
from drl.settings.experiment import Experiment
from drl.trainer.trainer import Collector

DEFAULT_BLOCKS = 8
ASYNC_STEPS = 8  # of each environment, that an asynchronous collector takes before it sends them


@contextlib.contextmanager
def open_collectors(experiment: Experiment, model: object = None) -> Iterator[RayCollectors]:
    """The collectors of a run, on its cluster. `model` is one of the user's own."""
    _check(experiment)
    run, scaling = experiment.run, experiment.scaling
    assert scaling.cluster is not None  # checked with the settings
    steps = getattr(experiment.learner, "rollout_length", ASYNC_STEPS if scaling.async_collectors else 1)
    make_blocks = functools.partial(make_run_blocks, pack(experiment, Extras(model)))
    with open_cluster(scaling.cluster, num_cpus=scaling.num_collectors + 1) as ray:
        collectors = RayCollectors(
            ray,
            make_blocks,
            block_sizes(experiment),
            scaling.num_collectors,
            steps=steps,
            asynchronous=scaling.async_collectors,
            restarts=scaling.collector_restarts,
            timeout=run.worker_timeout,
        )
        try:
            yield collectors
        finally:
            collectors.close()


def block_sizes(experiment: Experiment) -> list[int]:
    """The number of environments of each block.

    >>> block_sizes(Experiment.from_flat({"num_envs": 10, "cluster": "local", "num_collectors": 2}, ""))
    [2, 2, 1, 1, 1, 1, 1, 1]
    """
    envs, collectors = experiment.run.num_envs, experiment.scaling.num_collectors
    blocks = experiment.scaling.env_blocks or min(DEFAULT_BLOCKS, envs)
    if not collectors <= blocks <= envs:
        raise BadInput(
            f"num_envs is {envs}, in {plural(blocks, 'block')} for {plural(collectors, 'collector')}; expected at "
            "least as many blocks as collectors and no more than environments: see --env-blocks and --num-envs"
        )
    return [envs // blocks + (number < envs % blocks) for number in range(blocks)]


def _check(experiment: Experiment) -> None:
    """Raise for what collectors cannot do."""
    run, record = experiment.run, find_algorithm(experiment.algorithm)
    if record.buffer.whole_episodes:
        raise BadInput(f"{record.name} learns from whole episodes and takes no collectors; leave --num-collectors out")
    if experiment.scaling.async_collectors and not record.buffer.replays:
        raise BadInput(f"async_collectors is for algorithms with a replay buffer; {record.name} has none: leave it out")
    if run.vectorization not in ("auto", "sync"):
        raise BadInput(
            f"collectors step their environments one by one; vectorization is {run.vectorization!r}: use sync"
        )
    if given_vector(run.env) is not None or run.env.startswith(JAX_ONLY) or has_several_agents(run.env_config):
        raise BadInput(f"collectors need single Gymnasium environments; {run.env} is none: leave --num-collectors out")


class RunBlocks:
    """Makes the blocks of a run in this process. Their agents share one model."""

    def __init__(self, experiment: Experiment, model: object):
        run = replace(experiment.run, device="cpu", threads=1, from_agent=None)
        self.experiment: Experiment = replace(experiment, run=run)
        self.model: object = model
        self.sizes: list[int] = block_sizes(experiment)
        self.agent: Agent | None = None
        start_engine(self.experiment)

    def make(self, number: int) -> Collector:
        run, first = self.experiment.run, sum(self.sizes[:number])
        envs = make_vec_env(run.env_config, self.sizes[number], run.seed, vectorization="sync", first_index=first)
        if self.agent is None:
            make = learner_maker(self.experiment, envs, self.model)
            self.agent = make(compile_update=False)[0]
        agent: Any = copy.copy(self.agent)
        agent.rng = Seeds(run.seed).generator("exploration", number)
        set_exploration(self.experiment, agent)
        return Collector(envs, agent)

    def load(self, weights: Weights) -> None:
        assert self.agent is not None  # there is a block
        self.agent.load_state_dict(weights | agent_state(self.agent))


def make_run_blocks(packed: PackedRun) -> RunBlocks:
    """Make the blocks in a collector's process."""
    experiment, extras = packed.unpack()
    return RunBlocks(experiment, extras.model)
