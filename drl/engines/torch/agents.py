"""The agent: an observation in, an action out. It owns its model and its normalizer, no optimizer, no algorithm."""

import io
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from drl.core.agent_files import StoredAgent, open_agent, save_agent
from drl.core.errors import BadInput, UnusableFile
from drl.core.normalize import ObsNormalizer
from drl.core.safe_files import write_atomically
from drl.core.seeding import generator_state, restore_generator
from drl.core.specs import ActionSpec, Array, ObsSpec
from drl.core.variants import PROBES
from drl.engines.numpy.acting import Actor
from drl.engines.torch.models import MODEL_VARIANTS, architecture_of, load_parameters, parameters_by_name
from drl.engines.torch.packing import one_step
from drl.engines.torch.recurrent import arrange


class TorchAgent(Actor):
    """What all agents share: acting on raw observations, and files.

    `act` takes what the environment hands out, one observation or a batch, and returns what it accepts.
    `decide` is its inner half, for training: encoded observations in, actions in the policy's own units out.
    A recurrent agent remembers from one `act` to the next; call `begin` at the start of every episode.
    """

    variant: str  # of the model it acts with

    def __init__(
        self,
        model: nn.Module,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        normalizer: ObsNormalizer | None = None,
        rng: np.random.Generator | None = None,
    ):
        super().__init__(obs_spec, action_spec, normalizer, rng)
        self.model = model
        self._first_parameter = next(model.parameters())
        self.rnn_state_size = arrange(model)  # numbers it remembers of each environment
        self.recurrent = self.rnn_state_size > 0
        self.rnn_state: Array | None = None  # [N, S] what it remembers
        _refuse_modes(model)

    def _probe(self) -> Any:
        """The model's answer to observations of zeros: what kind of model is it?"""
        return self.forward(np.zeros((PROBES, *self.obs_spec.shape), self.obs_spec.dtype))

    def forward(self, obs: Array, part: nn.Module | None = None, after: Tensor | None = None) -> Any:
        """The answer of the model, or of a part of it, to encoded observations, without gradients.

        `after` is filled with what a recurrent model then remembers.
        """
        with torch.no_grad():
            rows: Any = torch.from_numpy(np.ascontiguousarray(self.normalize(obs))).to(self.device)
            if self.recurrent:
                rows = one_step(rows, torch.from_numpy(self.recall(len(obs))).to(self.device), after)
            return (part or self.model)(rows)

    def begin(self, envs: Array | None = None) -> None:
        """Episodes begin: everywhere, or where the mask `[N]` says so. A recurrent agent forgets what came before."""
        if envs is None:
            self.rnn_state = None
        elif self.rnn_state is not None and envs.any():
            self.rnn_state = np.where(envs[:, None], np.float32(0.0), self.rnn_state)

    def recall(self, num_envs: int) -> Array:
        """What a recurrent agent remembers of each environment `[N, S]`: zeros as long as there is nothing."""
        if self.rnn_state is None:
            return np.zeros((num_envs, self.rnn_state_size), np.float32)
        if len(self.rnn_state) != num_envs:
            raise BadInput(
                f"this recurrent agent is in the middle of {len(self.rnn_state)} episodes and got {num_envs} "
                "observations; call agent.begin() before it plays another number of environments"
            )
        return self.rnn_state

    @property
    def device(self) -> torch.device:
        return self._first_parameter.device

    def save(self, folder: str | Path, **notes: Any) -> None:
        """Write the deployable agent: safetensors weights and a JSON card. `notes` (plain data) go on the card."""
        params = {name: t.detach().cpu().numpy() for name, t in parameters_by_name(self.model).items()}
        architecture = architecture_of(self.model, self.obs_spec, self.action_spec)
        save_agent(folder, "torch", self.variant, architecture, self, params, notes)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None, device: str = "cpu") -> Self:
        """Read what `save` wrote: an agent folder or the run folder around it. A custom model has to be given."""
        stored = open_agent(path)
        if model is None:
            if stored.config is None:
                raise BadInput(f"{path} was saved with a model of your own; pass it: load(path, model=MyModel(...))")
            model = _rebuild(stored, path)
        load_parameters(model, stored.params, str(path))
        return cls(model.to(device), stored.obs_spec, stored.action_spec, stored.normalizer)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training changes about the agent, as plain data."""
        return {
            "model": {name: t.detach().cpu().numpy().copy() for name, t in parameters_by_name(self.model).items()},
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "rng": generator_state(self.rng),
            "rnn_state": None if self.rnn_state is None else self.rnn_state.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_parameters(self.model, state["model"], "the checkpoint")
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state["normalizer"])
        restore_generator(self.rng, state["rng"])
        self.rnn_state = None if state["rnn_state"] is None else np.array(state["rnn_state"], np.float32)

    def save_policy_net(self, path: str | Path) -> None:
        """What acts, as a plain state dict for PyTorch users; read it with `torch.load(path, weights_only=True)`."""
        write_state_dict(getattr(self.model, "actor", self.model), path)


def write_state_dict(module: nn.Module, path: str | Path) -> None:
    """A `.pth` file in one piece. Tensors own their memory: views would drag the whole flat tensor into the file."""
    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}, buffer)
    write_atomically(Path(path), buffer.getvalue())


def _rebuild(stored: StoredAgent, path: str | Path) -> nn.Module:
    """The model that a card describes, without its weights."""
    try:
        model: nn.Module = MODEL_VARIANTS[stored.variant](stored.obs_spec, stored.action_spec, stored.config)
    except Exception as error:  # the card may come from anybody
        raise UnusableFile(f"the card of {path} describes a model this drl cannot build ({error!r:.200})") from None
    return model


def _refuse_modes(model: nn.Module) -> None:
    """Dropout and batch norm act differently in training and evaluation: rollout and update would see two policies."""
    mode_dependent = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    for name, module in model.named_modules():
        if isinstance(module, mode_dependent):
            raise BadInput(
                f"the model's {name or 'root'} is a {type(module).__name__}, which acts differently in training and in "
                "evaluation; use LayerNorm, or no dropout"
            )
