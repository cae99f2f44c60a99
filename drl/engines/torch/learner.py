"""What every algorithm of this engine offers besides `learn`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drl.core.errors import BadInput
from drl.core.schedules import ScaledRate
from drl.core.specs import Array
from drl.core.variants import require_variant
from drl.engines.torch.models import known_variant
from drl.engines.torch.ops import Obs, to_tensors
from drl.engines.torch.packing import one_step
from drl.engines.torch.recurrent import arrange

if TYPE_CHECKING:
    from drl.engines.torch.learner_group import LearnerGroup


class Learner(ScaledRate):
    """An algorithm and its model. `needs` is the variant that the model must have."""

    def __init__(self, model: nn.Module, needs: str):
        require_variant(type(self).__name__, needs, known_variant(model))
        self.model: nn.Module = model
        self.needs: str = needs

    def predict(self, obs: Array) -> Array:
        """What the agent chooses an action from, for encoded and normalized observations `[N, …]`: distribution
        parameters, or action values. `agent.act` is this with an encoder and a normalizer before it and the choice
        after it. A recurrent model answers as at an episode's begin."""
        answer = self._forward(obs)
        numbers: Array = (answer[0] if isinstance(answer, tuple) else answer).cpu().numpy()
        return numbers

    def _forward(self, obs: Array) -> Tensor | tuple[Tensor, Tensor]:
        device = next(self.model.parameters()).device
        with torch.no_grad():
            rows: Obs = to_tensors(obs, device)
            size = arrange(self.model)
            seen = one_step(rows, torch.zeros(len(obs), size, device=device)) if size else rows
            answer: Tensor | tuple[Tensor, Tensor] = self.model(seen)
            return answer

    def share(self, group: "LearnerGroup") -> None:
        """Compute every update together with the other processes of `group`."""
        raise BadInput(f"{type(self).__name__} has one learner; use --num-learners 1")

    def sync_target(self) -> None:
        """Copy the online network into the target network. Without a target network there is nothing to do."""
