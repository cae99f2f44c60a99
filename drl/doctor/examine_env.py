"""`examine_env`: play an environment with random actions and report problems."""

import json
import time
from functools import partial

import numpy as np

from drl.agents.agent_env import JAX_ONLY
from drl.core.errors import BadInput, DrlError, EnvFailed, NonFinite
from drl.doctor.checked_env import Complaints
from drl.doctor.env_checks import LONGEST, SLOW_STEP, action_findings, may_be_endless, scale_findings
from drl.doctor.findings import PROBLEM, Diagnosis, Finding
from drl.doctor.random_play import RandomPlay, Trace, repetition_findings
from drl.envs.env_config import EnvConfig
from drl.envs.faults import close_anyway
from drl.envs.make_vec_env import make_env
from drl.envs.spaces import action_spec, obs_spec
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment

TIMED_STEPS = 128  # environment steps in the timed learning step
PATIENCE = 10.0  # seconds to wait for the end of an episode


def examine_env(config: EnvConfig, steps: int = 2000, seed: int = 0) -> Diagnosis:
    """Play `steps` random steps, repeat some of them, and report what is wrong or hard to learn."""
    if config.env.startswith(JAX_ONLY):
        raise BadInput(f"{config.env} is stepped by the JAX engine; `drl doctor` examines Gymnasium environments")
    fresh = partial(make_env, config)
    env = fresh()
    try:
        try:
            obs_spec(env.observation_space), action_spec(env.action_space)
        except BadInput as error:
            change = "use spaces that drl supports; see docs/environments.md"
            return Diagnosis(config.env, {}, (Finding("unusable-space", PROBLEM, str(error), change),))
        complaints, notes = Complaints(), list[str]()
        player = RandomPlay(env, complaints)
        trace = player.play(steps, seed)
        if len(trace.outcomes) == steps and may_be_endless(env, trace):
            player.go_on(LONGEST, PATIENCE)
        masked = bool(player.checked.masked)
        found = complaints.findings() or scale_findings(env, trace, masked)  # broken numbers would be reported twice
        if len(trace.outcomes) == steps:
            more = repetition_findings(env, trace, fresh, seed)
            if not any(finding.severity == PROBLEM for finding in more) and not masked:
                more += action_findings(env, seed, notes)
            known = {finding.name for finding in found}
            found += [finding for finding in more if finding.name not in known]
    finally:
        close_anyway(env.close, config.env)
    numbers = _numbers(trace)
    if not any(finding.severity == PROBLEM for finding in found):
        try:
            with np.errstate(all="ignore"):  # overflows are reported below
                numbers |= _training_share(config, trace.seconds[0])
        except (EnvFailed, NonFinite) as error:
            found.append(_training_fault(error))
    return Diagnosis(config.env, numbers, tuple(found), tuple(notes))


def _training_fault(error: DrlError) -> Finding:
    """Return a fault that appeared not in random play but in the first steps of training."""
    seen = f"two learning steps of PPO with its default settings ended with: {error}"
    change = "drl train ppo --env ENV fails in the same way; find the cause"
    if isinstance(error, EnvFailed):
        return Finding("raises", PROBLEM, seen, change)
    if "the observation is" in str(error) or "of the observation is" in str(error):
        return Finding("nan-observation", PROBLEM, seen, change)
    if "rewards must be finite" in str(error):
        return Finding("nan-reward", PROBLEM, seen, change)
    change = "--normalize-reward --normalize-obs, or smaller rewards and observations in the environment"
    return Finding("training-fails", PROBLEM, seen, change)


def _numbers(trace: Trace) -> dict[str, float | str]:
    numbers: dict[str, float | str] = {"steps": len(trace.outcomes), "episodes": len(trace.lengths)}
    if trace.lengths:
        numbers |= {"mean length": float(np.mean(trace.lengths)), "mean return": float(np.mean(trace.returns))}
    if trace.outcomes:
        numbers |= {"smallest reward": float(trace.rewards.min()), "largest reward": float(trace.rewards.max())}
        numbers["steps per second"] = 1.0 / max(trace.seconds[0], 1e-9)
    return numbers


def _training_share(config: EnvConfig, seconds: float) -> dict[str, float | str]:
    """Measure the environment's share of a training step of PPO with default settings."""
    if seconds > SLOW_STEP:
        return {"share of a training step": "nearly all"}
    pairs = [f"{name}={json.dumps(value, default=str)}" for name, value in config.env_kwargs.items()]
    settings = {"env": config.env, "env_kwargs": pairs, "wrappers": list(config.wrappers), "num_envs": 1}
    settings |= {"frame_stack": config.frame_stack, "rollout_length": TIMED_STEPS, "vectorization": "sync"}
    try:
        with open_trainer(
            Experiment.from_flat({"algorithm": "ppo", "compile": "off", **settings}, "doctor")
        ) as trainer:
            next(steps := iter(trainer()))  # the first step also loads and allocates
            started = time.perf_counter()
            next(steps)
            whole = (time.perf_counter() - started) / TIMED_STEPS
    except BadInput:
        return {}  # PPO has no default network for this environment
    return {"share of a training step": f"{min(seconds / whole, 1.0):.0%} (ppo, one environment)"}
