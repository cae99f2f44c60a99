"""Small untrained agents of every kind, as folders. Weights are large enough for actions to differ."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from drl.core.configs import ActorCriticConfig, ModelConfig, QModelConfig
from drl.core.normalize import ObsNormalizer
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.core.variants import VARIANTS, agent_in, maker_in

VECTOR = ObsSpec("box", box_shape=(4,))
IMAGE = ObsSpec("box", box_shape=(40, 44, 3), box_dtype="uint8", channels_last=True)
PARTS = ObsSpec(
    "dict",
    keys=("far", "flags", "kind", "pixels"),
    parts=(
        ObsSpec("box", box_shape=(2, 2), box_dtype="float64"),
        ObsSpec("tuple", parts=(ObsSpec("multi_binary", box_shape=(3,)), ObsSpec("box", box_dtype="int32"))),
        ObsSpec("multi_discrete", box_shape=(2,), sizes=(3, 2), starts=(1, -1)),
        ObsSpec("box", box_shape=(5,), box_dtype="uint8"),
    ),
)
SEEING = ObsSpec(
    "dict",
    keys=("camera", "goal", "speed"),
    parts=(
        ObsSpec("box", box_shape=(12, 11, 3), box_dtype="uint8", channels_last=True),
        ObsSpec("discrete", sizes=(4,), starts=(2,)),
        ObsSpec("box", box_shape=(2,)),
    ),
)
CHOICE = ActionSpec("discrete", sizes=(5,))
SHIFTED = ActionSpec("discrete", sizes=(3,), starts=(-1,))
CHOICES = ActionSpec("multi_discrete", sizes=(3, 4), starts=(1, 0), shape=(2,))
BITS = ActionSpec("multi_binary", shape=(3,), dtype="int8")
BOX = ActionSpec("box", shape=(2,), low=(-2.0, 0.0), high=(3.0, 400.0), dtype="float32")
HALF_OPEN = ActionSpec("box", shape=(2,), low=(-0.1, -np.inf), high=(np.inf, np.inf), dtype="float64")


@dataclass(frozen=True)
class Kind:
    variant: str
    obs: ObsSpec
    action: ActionSpec
    config: object
    normalized: bool = False
    masked: bool = False
    not_c: str = field(default="", compare=False)  # what a C file refuses it for


MLP = {"hidden_sizes": (16, 12)}
KINDS = {
    "q": Kind("q_value", ObsSpec("discrete", sizes=(6,)), CHOICE, QModelConfig(**MLP)),
    "q_vector": Kind("q_value", VECTOR, CHOICE, QModelConfig(**MLP)),
    "q_rainbow": Kind(
        "q_value", VECTOR, SHIFTED,
        QModelConfig(**MLP, dueling=True, noisy=True, distributional="c51", num_atoms=11), normalized=True,
    ),
    "q_quantiles": Kind(
        "q_value", VECTOR, CHOICE, QModelConfig(**MLP, distributional="qr", num_atoms=5, activation="mish"), masked=True
    ),
    "q_cnn": Kind("q_value", IMAGE, CHOICE, QModelConfig(cnn_features=16, dueling=True), not_c="cnn"),
    "ppo": Kind("policy_value", VECTOR, BOX, ModelConfig(**MLP), normalized=True),
    "ppo_parts": Kind("policy_value", PARTS, CHOICES, ModelConfig(**MLP, shared=True), normalized=True, masked=True),
    "ppo_seeing": Kind(
        "policy_value", SEEING, CHOICE, ModelConfig(**MLP, cnn_features=8), normalized=True, not_c="encoder"
    ),
    "ppo_gru": Kind(
        "policy_value", VECTOR, CHOICE, ModelConfig(**MLP, recurrent="gru", recurrent_size=6), masked=True, not_c="gru"
    ),
    "ppo_lstm": Kind(
        "policy_value", VECTOR, BOX, ModelConfig(**MLP, recurrent="lstm", recurrent_size=6, shared=True),
        normalized=True, not_c="lstm",
    ),
    "policy_bits": Kind("policy_only", VECTOR, BITS, ModelConfig(**MLP, activation="gelu"), masked=True),
    "policy_half_open": Kind("policy_only", VECTOR, HALF_OPEN, ModelConfig(**MLP, activation="elu")),
    "policy_conv1d": Kind(
        "policy_only", ObsSpec("box", box_shape=(7, 3)), CHOICE, ModelConfig(**MLP, backbone="conv1d"), not_c="conv1d"
    ),
    "sac": Kind(
        "actor_critic", VECTOR, BOX, ActorCriticConfig(hidden_sizes=(8, 8), backbone="simba"), normalized=True
    ),
    "sac_discrete": Kind("actor_critic", VECTOR, CHOICE, ActorCriticConfig(**MLP, batch_renorm=True), masked=True),
    "td3": Kind("deterministic_actor_critic", VECTOR, BOX, ActorCriticConfig(**MLP, layer_norm=True)),
}  # fmt: skip


def make_agent(name: str, engine: str = "torch"):
    kind, generator = KINDS[name], torch.Generator().manual_seed(3)
    normalizer = None
    if kind.normalized:
        normalizer, rng = ObsNormalizer(kind.obs.shape, kind.obs.dtype), np.random.default_rng(1)
        for stats in normalizer.running_stats.values():
            stats.update(rng.normal(2.0, 3.0, size=(50, *stats.mean.shape)))
        normalizer.load_state_dict(normalizer.state_dict())
    variant = VARIANTS[kind.variant]
    if engine == "torch":
        model = maker_in(variant, "torch")(kind.obs, kind.action, kind.config, generator)
        with torch.no_grad():
            for parameter in model.parameters():
                scale = 0.5 / max(1.0, parameter[0].numel() ** 0.5)
                parameter += scale * torch.randn(parameter.shape, generator=generator)
    else:
        from drl.engines.jax.model_state import ModelState

        made = maker_in(variant, "jax")(kind.obs, kind.action, kind.config)
        model = ModelState(made, made.init(np.random.default_rng(3)), "cpu")
    return agent_in(variant, engine)(model, EnvSpecs(kind.obs, kind.action), normalizer)


def save_tiny(name: str, folder: Path, engine: str = "torch", **notes: object) -> Path:
    make_agent(name, engine).save(folder / "agent", **notes)
    return folder / "agent"
