"""Whether an agent was trained with masks of legal actions, as far as its golden pairs tell."""

import numpy as np

from drl.core.golden_pairs import Acting, sample_obs


def masks_in_training(agent: Acting) -> bool | None:
    """Golden pairs of an evaluation have masks if the environment gives them. None: the agent has no pairs, or those of
    random observations, which never have masks."""
    golden = agent.golden_inputs
    if not agent.action_spec.num_choices:
        return False
    if golden is None:
        return None
    if golden.action_mask is not None:
        return True
    return None if np.array_equal(golden.obs, sample_obs(agent.obs_spec, len(golden.obs))) else False
