"""The JAX engine: what a script needs to put the parts of a run together. `drl.torch` exports the same names.

A model is configuration; `build` returns it with its parameters, a `ModelState`, which agent and algorithm share.
Importing this module configures JAX as `drl train --engine jax` does: see `start_jax`.

>>> import drl
>>> from drl.jax import QAgent, QModel
>>> with drl.make_vec_env("CartPole-v1", num_envs=2, seed=1) as envs:
...     agent = QAgent(QModel.build(envs, hidden_sizes=(32, 32), dueling=True), envs)
>>> agent.act([0.0, 0.1, 0.0, -0.1]).shape
()
"""

try:
    from drl.engines.jax.devices import start_jax as _start_jax
except ImportError as _error:
    from drl.core.errors import MissingExtra

    raise MissingExtra("drl.jax", "jax", _error) from None

from drl.engines.jax import ops as ops
from drl.engines.jax.actor_critics import ActorCritic as ActorCritic
from drl.engines.jax.actor_critics import Critic as Critic
from drl.engines.jax.agents import PolicyAgent as PolicyAgent
from drl.engines.jax.agents import QAgent as QAgent
from drl.engines.jax.algorithms.a2c import A2C as A2C
from drl.engines.jax.algorithms.dqn import DQN as DQN
from drl.engines.jax.algorithms.ppo import PPO as PPO
from drl.engines.jax.algorithms.reinforce import Reinforce as Reinforce
from drl.engines.jax.algorithms.sac import SAC as SAC
from drl.engines.jax.algorithms.td3 import TD3 as TD3
from drl.engines.jax.backbones import MLP as MLP
from drl.engines.jax.backbones import Conv1d as Conv1d
from drl.engines.jax.backbones import NatureCNN as NatureCNN
from drl.engines.jax.backbones import Simba as Simba
from drl.engines.jax.backbones import SmallCNN as SmallCNN
from drl.engines.jax.backbones import make_backbone as make_backbone
from drl.engines.jax.build import build_model as build_model
from drl.engines.jax.envs import make_jax_env as make_jax_env
from drl.engines.jax.fused.fused_trainer import compile_trainer as compile_trainer
from drl.engines.jax.learner import Learner as Learner
from drl.engines.jax.model_state import ModelState as ModelState
from drl.engines.jax.models import FlaxModel as FlaxModel
from drl.engines.jax.models import GaussianHead as GaussianHead
from drl.engines.jax.models import LogitsHead as LogitsHead
from drl.engines.jax.models import Model as Model
from drl.engines.jax.models import PolicyModel as PolicyModel
from drl.engines.jax.models import PolicyValueModel as PolicyValueModel
from drl.engines.jax.models import QHead as QHead
from drl.engines.jax.models import QModel as QModel
from drl.engines.jax.models import SquashedGaussianHead as SquashedGaussianHead
from drl.engines.jax.models import ValueHead as ValueHead
from drl.engines.jax.models import make_policy_head as make_policy_head

_start_jax()
