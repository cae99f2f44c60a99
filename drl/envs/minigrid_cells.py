"""MiniGrid's observations as what they are: categories, which become one-hot, not pixels. An extra."""

import re

import numpy as np
from gymnasium import spaces

from drl.core.errors import BadInput
from drl.envs.spaces import GymEnv, GymWrapper

DIRECTIONS = 4  # of the agent, which are its state where all of the grid is seen


def usual_wrappers(env_id: str) -> tuple[str, ...]:
    """Wrappers where nothing else is said.

    >>> usual_wrappers("MiniGrid-Empty-5x5-v0"), usual_wrappers("CartPole-v1")
    (('OneHotCells',), ())
    """
    return (OneHotCells.__name__,) if re.match(r"(minigrid:)?(MiniGrid|BabyAI)-", env_id) else ()


class OneHotCells(GymWrapper):
    """Give the image of a MiniGrid environment its true space: an object, a color and a state for each cell. MiniGrid
    says that these are pixels from 0 to 255. Observations stay as they are."""

    def __init__(self, env: GymEnv):
        super().__init__(env)
        space = env.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {"image": space}
        image = parts.get("image")
        if not isinstance(image, spaces.Box) or len(image.shape) != 3 or image.shape[2] != 3:
            raise BadInput(f"its observations are {space}; expected MiniGrid's image of cells (width, height, 3)")
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        categories = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), max(len(STATE_TO_IDX), DIRECTIONS))
        cells = spaces.MultiDiscrete(np.broadcast_to(categories, image.shape), dtype=np.uint8)
        self.observation_space = cells if image is space else spaces.Dict({**parts, "image": cells})
