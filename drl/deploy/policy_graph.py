"""An agent as one pure function of named arrays: raw observations in, actions in the environment's units out.

`ObsSpec`, `ObsNormalizer` and `ActionSpec` encode, scale and decode the arrays of any library. An engine adds its
network and the mode of its distributions. The action is the mode of the policy, as in evaluation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drl.core.errors import BadInput
from drl.core.golden_pairs import Acting, sample_obs
from drl.core.normalize import ObsNormalizer
from drl.core.specs import MASK_KEY, ActionSpec, AnyArray, ArrayLibrary, Distribution, ObsSpec
from drl.engines.numpy.acting import Actor, PolicyActor, QActor
from drl.engines.numpy.distributions import masked_argmax

Named = dict[str, AnyArray]
Mode = Callable[[Distribution, AnyArray, AnyArray | None], AnyArray]  # an engine's `mode`
# (encoded observations, rnn_state or None) → (distribution parameters or action values, the new rnn_state or None)
Answer = Callable[[AnyArray, AnyArray | None], tuple[AnyArray, AnyArray | None]]
RAW = {"discrete": "int64", "multi_discrete": "int64", "multi_binary": "int8"}  # as Gymnasium samples them
TENSORS = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")


class Port(NamedTuple):
    """An input or output; its arrays have one more axis in front, the batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{', '.join(map(str, ('batch', *self.shape)))}]"


@dataclass(frozen=True)
class PolicyGraph:
    """Everything of an agent but its network."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    normalizer: ObsNormalizer | None
    distribution: Distribution | None  # of its policy; None: it acts by action values
    masked: bool = False  # whether `action_mask` is an input
    rnn_state_size: int = 0  # of a recurrent agent: numbers that it carries from step to step

    @classmethod
    def of(cls, agent: Actor, masked: bool = False, rnn_state_size: int = 0) -> "PolicyGraph":
        """The graph of a loaded agent."""
        if not isinstance(agent, PolicyActor | QActor):
            raise BadInput(f"{type(agent).__name__} acts neither by a policy nor by action values; it has no export")
        if masked and not agent.action_spec.num_choices:
            raise BadInput("--action-mask on is for actions with choices; this agent's actions are a Box")
        return cls(agent.obs_spec, agent.action_spec, agent.normalizer, agent.distribution, masked, rnn_state_size)

    @property
    def inputs(self) -> list[Port]:
        """What the graph takes."""
        ports = [Port(port_name(path), raw_dtype(leaf), leaf.box_shape) for path, leaf in self.obs_spec.leaves.items()]
        if self.masked:
            ports.append(Port(MASK_KEY, "bool", (self.action_spec.num_choices,)))
        if self.rnn_state_size:
            ports += [Port("rnn_state", "float32", (self.rnn_state_size,)), Port("reset", "bool", ())]
        return ports

    @property
    def outputs(self) -> list[Port]:
        """What the graph gives."""
        spec, params = (
            self.action_spec,
            self.distribution.num_params if self.distribution else self.action_spec.sizes[0],
        )
        ports = [Port("action", "int64" if spec.kind == "discrete" else spec.dtype, spec.shape)]
        ports.append(Port(self.answer_name, "float32", (params,)))
        return ports + ([Port("new_rnn_state", "float32", (self.rnn_state_size,))] if self.rnn_state_size else [])

    @property
    def answer_name(self) -> str:
        """What the network's outputs are called."""
        return "dist_params" if self.distribution else "q_values"

    def act(self, arrays: ArrayLibrary, mode: Mode, inputs: Named, answer: Answer) -> Named:
        """The outputs by name. Where `reset` is True an episode begins with a zero rnn_state."""
        rnn_state = None
        if self.rnn_state_size:
            rnn_state = arrays.xp.where(inputs["reset"][:, None], 0.0, inputs["rnn_state"])
        answered, after = answer(self._encoded(arrays, inputs), rnn_state)
        mask = inputs[MASK_KEY] if self.masked else None
        if self.distribution is None:
            best = masked_argmax(answered, mask, arrays.xp)
        else:
            best = mode(self.distribution, answered, mask)
        action = arrays.cast(self.action_spec.to_env(best, arrays), self.outputs[0].dtype)
        outputs = {"action": action, self.answer_name: answered}
        return outputs | ({} if after is None else {"new_rnn_state": after})

    def _encoded(self, arrays: ArrayLibrary, inputs: Named) -> AnyArray:
        """Observations as the network takes them: encoded and normalized."""
        leaves, normalizer = self.obs_spec.leaves, self.normalizer
        encoded = self.obs_spec.encode_leaves({path: inputs[port_name(path)] for path in leaves}, arrays)
        if not self.obs_spec.is_structured:
            return encoded if normalizer is None else normalizer.scaled(encoded, "", arrays)
        parts = {
            path: encoded[path] if leaf.is_image else arrays.cast(encoded[path], "float32")
            for path, leaf in leaves.items()
        }
        if normalizer is not None:
            parts |= {path: normalizer.scaled(parts[path], path, arrays) for path in normalizer.scales}
        return parts


def port_name(path: str) -> str:
    """The input for a part of the observation: `obs`, or `obs.camera.left` in a Dict."""
    return f"obs.{path}" if path else "obs"


def raw_dtype(leaf: ObsSpec) -> str:
    """The type of a part of the observation as the environment gives it; unsigned types beyond uint8 are int64."""
    return RAW.get(leaf.kind, leaf.box_dtype if leaf.box_dtype in TENSORS else "int64")


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
