"""The PyTorch engine: what a script needs to put the parts of a run together. `drl.jax` exports the same names.

>>> import drl
>>> from drl.torch import QAgent, QModel
>>> with drl.make_vec_env("CartPole-v1", num_envs=2, seed=1) as envs:
...     agent = QAgent(QModel.build(envs, hidden_sizes=(32, 32), dueling=True), envs)
>>> agent.act([0.0, 0.1, 0.0, -0.1]).shape
()
"""

from drl.engines.torch import ops as ops
from drl.engines.torch.actor_critics import ActorCritic as ActorCritic
from drl.engines.torch.actor_critics import Critic as Critic
from drl.engines.torch.agents import PolicyAgent as PolicyAgent
from drl.engines.torch.agents import QAgent as QAgent
from drl.engines.torch.algorithms.a2c import A2C as A2C
from drl.engines.torch.algorithms.dqn import DQN as DQN
from drl.engines.torch.algorithms.ppo import PPO as PPO
from drl.engines.torch.algorithms.reinforce import Reinforce as Reinforce
from drl.engines.torch.algorithms.sac import SAC as SAC
from drl.engines.torch.algorithms.td3 import TD3 as TD3
from drl.engines.torch.backbones import MLP as MLP
from drl.engines.torch.backbones import Conv1d as Conv1d
from drl.engines.torch.backbones import NatureCNN as NatureCNN
from drl.engines.torch.backbones import Simba as Simba
from drl.engines.torch.backbones import SmallCNN as SmallCNN
from drl.engines.torch.backbones import make_backbone as make_backbone
from drl.engines.torch.build import build_model as build_model
from drl.engines.torch.flat_optimizer import Target as Target
from drl.engines.torch.learner import Learner as Learner
from drl.engines.torch.models import GaussianHead as GaussianHead
from drl.engines.torch.models import LogitsHead as LogitsHead
from drl.engines.torch.models import Model as Model
from drl.engines.torch.models import PolicyModel as PolicyModel
from drl.engines.torch.models import PolicyValueModel as PolicyValueModel
from drl.engines.torch.models import QHead as QHead
from drl.engines.torch.models import QModel as QModel
from drl.engines.torch.models import SquashedGaussianHead as SquashedGaussianHead
from drl.engines.torch.models import ValueHead as ValueHead
from drl.engines.torch.models import make_policy_head as make_policy_head
