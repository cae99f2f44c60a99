"""Whether a run fits into memory, from its settings, before anything is allocated."""

import itertools
import math

from drl.core.errors import plural
from drl.core.size_limits import check_memory
from drl.core.specs import ActionSpec, ObsSpec, Specs
from drl.settings.experiment import Experiment

COPIES = 4  # of every weight: itself, its gradient, two moments of the optimizer


def check_run_fits(experiment: Experiment, specs: Specs, programs: int = 1) -> None:
    """Raise if the buffer and the networks of a run need more memory than there is. `programs`: seeds trained together.

    The estimate counts only the largest arrays, so it is never more than what a run really takes.
    """
    needs = _buffer_needs(experiment, specs.obs_spec, specs.action_spec) | _network_needs(experiment, specs.obs_spec)
    check_memory({what: programs * size for what, size in needs.items()})


def _buffer_needs(experiment: Experiment, obs_spec: ObsSpec, action_spec: ActionSpec) -> dict[str, float]:
    run, buffer, learner = experiment.run, experiment.buffer, experiment.learner
    seen = math.prod(obs_spec.shape) * obs_spec.dtype.itemsize  # bytes of one observation
    acted = 4 * max(action_spec.entries, 1)
    needs: dict[str, float] = {f"num_envs {run.num_envs:,}": run.num_envs * seen}
    if (capacity := getattr(buffer, "capacity", None)) is not None:  # images of a stack are stored once
        row = (seen / run.frame_stack if obs_spec.is_image else 2 * seen) + acted + 12
        needs[f"capacity {capacity:,}"] = capacity * row
    if (batch := getattr(buffer, "batch_size", None)) is not None:
        needs[f"batch_size {batch:,}"] = batch * (2 * seen + acted + 12)
    if (length := getattr(learner, "rollout_length", None)) is not None:
        steps = f"rollout_length {length:,} with {plural(run.num_envs, 'environment')}"
        needs[steps] = length * run.num_envs * (seen + acted + 7)
    return needs


def _network_needs(experiment: Experiment, obs_spec: ObsSpec) -> dict[str, float]:
    model, entries = experiment.model, 1 if obs_spec.is_structured or obs_spec.is_image else math.prod(obs_spec.shape)
    actor = getattr(model, "hidden_sizes", ())
    needs = {f"hidden_sizes {list(actor)}": _bytes_of(entries, *actor)}
    if critics := getattr(model, "num_critics", 0):
        critic = model.critic_hidden_sizes or actor
        needs[f"num_critics {critics} with hidden sizes {list(critic)}"] = critics * _bytes_of(entries, *critic)
    if getattr(model, "recurrent", "none") != "none":
        size = model.recurrent_size
        needs[f"recurrent_size {size:,}"] = 3 * _bytes_of(size, size)
    return needs


def _bytes_of(*widths: int) -> float:
    """Of the weights between layers of these widths, in training."""
    return 4.0 * COPIES * sum(above * below for above, below in itertools.pairwise(widths))
