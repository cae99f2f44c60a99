"""What every world of this room is: the core `World` contract plus a name for its engine and a `with` block."""

from abc import ABC, abstractmethod
from typing import Self

from drl.core.contracts import StateDict, WorldStep
from drl.core.specs import ActionSpec, Array, ObsSpec


class OpenWorld(ABC):
    """N worlds stepped together, closed at the end of a `with` block. `close` may be called twice."""

    engine: str  # sync · async · native · envpool
    env_id: str
    num_envs: int
    obs_spec: ObsSpec
    action_spec: ActionSpec

    @abstractmethod
    def reset(self) -> Array:
        """Begin a new episode in every world. The first call seeds; later ones continue the worlds' own streams."""

    @abstractmethod
    def step(self, action: Array) -> WorldStep:
        """One step of every world; `action` [N, …] in the world's units."""

    @abstractmethod
    def state_dict(self) -> StateDict: ...

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
