"""drl: modular deep reinforcement learning. Environment, model, agent, algorithm and trainer are swapped one by one.

Importing `drl` registers its environments with Gymnasium and loads neither torch nor jax: a name is imported from its
module when it is first used. `drl.torch` and `drl.jax` export models, agents and algorithms of each engine.

>>> import drl
>>> drl.__version__
'0.1.0'
"""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from drl.games.registry import register_envs

if TYPE_CHECKING:  # what a type checker and an editor read; the table below is what runs, and a test compares them
    from drl import jax as jax
    from drl import torch as torch
    from drl.agents.evaluation import Evaluation as Evaluation
    from drl.agents.evaluation import evaluate as evaluate
    from drl.agents.hub import Pulled as Pulled
    from drl.agents.hub import Pushed as Pushed
    from drl.agents.hub import pull as pull
    from drl.agents.hub import push as push
    from drl.agents.load_agent import load_agent as load_agent
    from drl.agents.watch import film as film
    from drl.algorithms import register_algorithm as register_algorithm
    from drl.algorithms.a2c import A2CConfig as A2CConfig
    from drl.algorithms.algorithm_record import AlgorithmRecord as AlgorithmRecord
    from drl.algorithms.algorithm_record import BufferRecord as BufferRecord
    from drl.algorithms.dqn import DQNConfig as DQNConfig
    from drl.algorithms.ppo import PPOConfig as PPOConfig
    from drl.algorithms.reinforce import ReinforceConfig as ReinforceConfig
    from drl.algorithms.sac import CrossQConfig as CrossQConfig
    from drl.algorithms.sac import NormalizedSACConfig as NormalizedSACConfig
    from drl.algorithms.sac import SACConfig as SACConfig
    from drl.algorithms.sac import TQCConfig as TQCConfig
    from drl.algorithms.search_dimensions import Choice as Choice
    from drl.algorithms.search_dimensions import Real as Real
    from drl.algorithms.td3 import DDPGConfig as DDPGConfig
    from drl.algorithms.td3 import TD3Config as TD3Config
    from drl.analysis.ablation import Ablation as Ablation
    from drl.analysis.ablation import ablate as ablate
    from drl.analysis.comparison import Comparison as Comparison
    from drl.analysis.comparison import compare as compare
    from drl.analysis.reproduction import Reproduction as Reproduction
    from drl.analysis.reproduction import reproduce as reproduce
    from drl.buffers.hindsight_buffer import HindsightBuffer as HindsightBuffer
    from drl.buffers.replay_buffer import ReplayBuffer as ReplayBuffer
    from drl.buffers.rollout_buffer import EpisodeBuffer as EpisodeBuffer
    from drl.buffers.rollout_buffer import RolloutBuffer as RolloutBuffer
    from drl.cli.completion import CompletionScript as CompletionScript
    from drl.cli.completion import completion as completion
    from drl.cli.entry import run_script as run_script
    from drl.cli.offers import Offers as Offers
    from drl.cli.offers import list as list
    from drl.core.configs import ActionNoiseConfig as ActionNoiseConfig
    from drl.core.configs import ActorCriticConfig as ActorCriticConfig
    from drl.core.configs import EpsilonGreedyConfig as EpsilonGreedyConfig
    from drl.core.configs import ModelConfig as ModelConfig
    from drl.core.configs import QModelConfig as QModelConfig
    from drl.core.configs import RandomStartConfig as RandomStartConfig
    from drl.core.configs import ReplayConfig as ReplayConfig
    from drl.core.contracts import Agent as Agent
    from drl.core.contracts import Algorithm as Algorithm
    from drl.core.contracts import Buffer as Buffer
    from drl.core.contracts import Learned as Learned
    from drl.core.contracts import Loss as Loss
    from drl.core.contracts import ReplayBatch as ReplayBatch
    from drl.core.contracts import RolloutBatch as RolloutBatch
    from drl.core.contracts import Tracker as Tracker
    from drl.core.contracts import VecEnv as VecEnv
    from drl.core.contracts import VecStep as VecStep
    from drl.core.errors import BadInput as BadInput
    from drl.core.errors import DrlError as DrlError
    from drl.core.log import Episode as Episode
    from drl.core.log import Log as Log
    from drl.core.network_parts import register_activation as register_activation
    from drl.core.network_parts import register_backbone as register_backbone
    from drl.core.network_parts import register_head as register_head
    from drl.core.network_parts import register_initialization as register_initialization
    from drl.core.normalize import ObsNormalizer as ObsNormalizer
    from drl.core.normalize import RewardScaler as RewardScaler
    from drl.core.normalize import obs_normalizer as obs_normalizer
    from drl.core.processes import RunningServer as RunningServer
    from drl.core.schedules import register_schedule as register_schedule
    from drl.core.settings import Settings as Settings
    from drl.core.specs import ActionSpec as ActionSpec
    from drl.core.specs import Distribution as Distribution
    from drl.core.specs import EnvSpecs as EnvSpecs
    from drl.core.specs import ObsSpec as ObsSpec
    from drl.core.variants import ModelVariant as ModelVariant
    from drl.core.variants import register_variant as register_variant
    from drl.deploy.export_agent import Converted as Converted
    from drl.deploy.export_agent import Exported as Exported
    from drl.deploy.export_agent import convert as convert
    from drl.deploy.export_agent import export as export
    from drl.deploy.serve_call import serve as serve
    from drl.doctor.diagnose import doctor as doctor
    from drl.doctor.findings import Diagnosis as Diagnosis
    from drl.doctor.findings import Finding as Finding
    from drl.envs.env_config import EnvConfig as EnvConfig
    from drl.envs.goals import goal_functions as goal_functions
    from drl.envs.make_vec_env import make_vec_env as make_vec_env
    from drl.games import ipd as ipd
    from drl.report.board import board as board
    from drl.report.plot_call import Plots as Plots
    from drl.report.plot_call import plot as plot
    from drl.report.report_page import ReportPage as ReportPage
    from drl.report.report_page import report as report
    from drl.runs.extras import Context as Context
    from drl.runs.folder.finished import Finished as Finished
    from drl.runs.folder.run_folder import Run as Run
    from drl.runs.launch import fork as fork
    from drl.runs.launch import resume as resume
    from drl.runs.one_call import finish_run as finish_run
    from drl.runs.one_call import make_trainer as make_trainer
    from drl.runs.one_call import train as train
    from drl.runs.one_call import train_seeds as train_seeds
    from drl.runs.play_again import Replay as Replay
    from drl.runs.play_again import replay as replay
    from drl.runs.stages import checkpoint_every as checkpoint_every
    from drl.runs.stages import evaluate_every as evaluate_every
    from drl.runs.stages import progress as progress
    from drl.runs.stages import stop_at as stop_at
    from drl.runs.stages import track as track
    from drl.search.run_search import SearchResult as SearchResult
    from drl.search.run_search import search as search
    from drl.testing.environment_check import check_environment as check_environment
    from drl.tracking.files import CsvTracker as CsvTracker
    from drl.tracking.files import JsonlTracker as JsonlTracker
    from drl.tracking.plots import plot_run as plot_run
    from drl.trainer.trainer import Trainer as Trainer
    from drl.trainer.trainer import TrainerConfig as TrainerConfig

__version__ = "0.1.0"

# Module → the public names that it defines.
_PUBLIC = {
    "drl.analysis.comparison": "Comparison compare",
    "drl.analysis.reproduction": "Reproduction reproduce",
    "drl.buffers.hindsight_buffer": "HindsightBuffer",
    "drl.buffers.replay_buffer": "ReplayBuffer",
    "drl.buffers.rollout_buffer": "EpisodeBuffer RolloutBuffer",
    "drl.cli.completion": "CompletionScript completion",
    "drl.cli.entry": "run_script",
    "drl.algorithms": "register_algorithm",
    "drl.algorithms.a2c": "A2CConfig",
    "drl.algorithms.algorithm_record": "AlgorithmRecord BufferRecord",
    "drl.algorithms.dqn": "DQNConfig",
    "drl.algorithms.ppo": "PPOConfig",
    "drl.algorithms.reinforce": "ReinforceConfig",
    "drl.algorithms.sac": "CrossQConfig NormalizedSACConfig SACConfig TQCConfig",
    "drl.algorithms.td3": "DDPGConfig TD3Config",
    "drl.core.configs": "ActionNoiseConfig ActorCriticConfig EpsilonGreedyConfig ModelConfig QModelConfig "
    "RandomStartConfig ReplayConfig",
    "drl.core.contracts": "Agent Algorithm Buffer Learned Loss ReplayBatch RolloutBatch Tracker VecEnv VecStep",
    "drl.core.errors": "BadInput DrlError",
    "drl.core.processes": "RunningServer",
    "drl.core.log": "Episode Log",
    "drl.core.network_parts": "register_activation register_backbone register_head register_initialization",
    "drl.core.normalize": "ObsNormalizer RewardScaler obs_normalizer",
    "drl.core.schedules": "register_schedule",
    "drl.algorithms.search_dimensions": "Choice Real",
    "drl.core.settings": "Settings",
    "drl.core.specs": "ActionSpec Distribution EnvSpecs ObsSpec",
    "drl.core.variants": "ModelVariant register_variant",
    "drl.deploy.export_agent": "Converted Exported convert export",
    "drl.deploy.serve_call": "serve",
    "drl.doctor.diagnose": "doctor",
    "drl.doctor.findings": "Diagnosis Finding",
    "drl.envs.env_config": "EnvConfig",
    "drl.envs.goals": "goal_functions",
    "drl.envs.make_vec_env": "make_vec_env",
    "drl.analysis.ablation": "Ablation ablate",
    "drl.agents.evaluation": "Evaluation evaluate",
    "drl.runs.extras": "Context",
    "drl.runs.folder.finished": "Finished",
    "drl.agents.hub": "Pulled Pushed pull push",
    "drl.runs.launch": "fork resume",
    "drl.agents.load_agent": "load_agent",
    "drl.cli.offers": "Offers list",
    "drl.runs.one_call": "finish_run make_trainer train train_seeds",
    "drl.runs.play_again": "Replay replay",
    "drl.runs.folder.run_folder": "Run",
    "drl.runs.stages": "checkpoint_every evaluate_every progress stop_at track",
    "drl.agents.watch": "film",
    "drl.report.board": "board",
    "drl.report.report_page": "ReportPage report",
    "drl.report.plot_call": "Plots plot",
    "drl.search.run_search": "SearchResult search",
    "drl.testing.environment_check": "check_environment",
    "drl.tracking.files": "CsvTracker JsonlTracker",
    "drl.tracking.plots": "plot_run",
    "drl.trainer.trainer": "Trainer TrainerConfig",
}
_MODULES = {"ipd": "drl.games.ipd", "jax": "drl.jax", "torch": "drl.torch"}  # of their own
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}

register_envs()

if not TYPE_CHECKING:  # a type checker would take any name from a `__getattr__`
    # `from drl import *` must not hide Python's own `list`.
    __all__ = [*(name for name in _MODULE_OF if name != "list"), "__version__", "engine"]

    def __getattr__(name):
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name in _MODULE_OF:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'drl' has no attribute {name!r}; it offers {', '.join(sorted(_MODULE_OF))}")


def __dir__() -> Sequence[str]:
    return sorted([*_MODULE_OF, *_MODULES, "__version__", "engine"])


def engine(name: str) -> ModuleType:
    """`drl.torch` or `drl.jax`, for a script that runs in both.

    >>> engine("torch").PPO.__name__
    'PPO'
    """
    if name not in ("torch", "jax"):
        from drl.core.errors import BadInput

        raise BadInput(f"engine is {name!r}; expected 'torch' or 'jax'")
    return importlib.import_module(f"drl.{name}")
