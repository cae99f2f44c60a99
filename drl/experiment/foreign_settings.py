"""Settings of Stable-Baselines3, CleanRL and RL Zoo: what each is called here. The migration pages in docs/ agree."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from drl.core.algorithms import ALGORITHMS, find_algorithm

GIVEN = object()  # the value that was given, unchanged


class Ours(NamedTuple):
    """Our setting for one of theirs."""

    setting: str  # "": there is none, and the note says why
    value: object = GIVEN  # what to type; None: what the note says
    note: str = ""


_FROM_STEPS = "theirs counts environment steps, ours updates"
_RUN_FOLDER = "every run has a folder with everything in it"
# Of several, the first one that the algorithm has.
FOREIGN: dict[str, tuple[Ours, ...]] = {
    # budget, environments, seeds
    "env_id": (Ours("env"),),
    "env_name": (Ours("env"),),
    "n_envs": (Ours("num_envs"),),
    "n_timesteps": (Ours("total_timesteps"),),
    "timesteps": (Ours("total_timesteps"),),
    "max_steps": (Ours("total_timesteps"),),
    "env_wrapper": (Ours("wrappers"),),
    "normalize": (Ours("normalize_obs", True, "and normalize_reward, if you want both"),),
    # rates
    "lr": (Ours("learning_rate"),),
    "q_lr": (Ours("learning_rate"),),
    "policy_lr": (Ours("actor_learning_rate"), Ours("learning_rate")),
    "anneal_lr": (Ours("learning_rate_schedule", "linear"),),
    "lr_schedule": (Ours("learning_rate_schedule"),),
    # rollouts
    "n_steps": (Ours("rollout_length"), Ours("n_step")),
    "num_steps": (Ours("rollout_length"),),
    "n_epochs": (Ours("epochs"),),
    "update_epochs": (Ours("epochs"),),
    "num_minibatches": (Ours("minibatches"),),
    "batch_size": (Ours("minibatches", None, "num_envs × rollout_length / batch_size"),),
    "clip_coef": (Ours("clip_range"),),
    "clip_range_vf": (Ours("value_clip"),),
    "clip_vloss": (Ours("value_clip", None, "its value is the range, such as 0.2"),),
    "norm_adv": (Ours("normalize_advantage", True),),
    "ent_coef": (Ours("entropy_coef"), Ours("temperature", GIVEN, "learn_temperature is their 'auto', the default")),
    "vf_coef": (Ours("value_coef", GIVEN, "half of the number in CleanRL, which halves the error first"),),
    "use_rms_prop": (Ours("optimizer", "rmsprop"),),
    "rms_prop_eps": (Ours("optimizer_eps"),),
    # replay
    "learning_starts": (Ours("warmup"),),
    "buffer_size": (Ours("capacity"),),
    "train_freq": (Ours("train_every", GIVEN, "in environment steps"),),
    "train_frequency": (Ours("train_every", GIVEN, "in environment steps"),),
    "target_update_interval": (Ours("target_every", None, _FROM_STEPS),),
    "target_network_frequency": (Ours("target_every", None, _FROM_STEPS),),
    "exploration_fraction": (Ours("epsilon_decay", None, "in environment steps: their share × total_timesteps"),),
    "exploration_initial_eps": (Ours("epsilon_start"),),
    "exploration_final_eps": (Ours("epsilon_end"),),
    "start_e": (Ours("epsilon_start"),),
    "end_e": (Ours("epsilon_end"),),
    "n_atoms": (Ours("num_atoms"),),
    "n_quantiles": (Ours("num_atoms"),),
    "n_critics": (Ours("num_critics"),),
    "top_quantiles_to_drop_per_net": (Ours("quantiles_to_drop"),),
    "replay_buffer_class": (Ours("her", "future", "for HerReplayBuffer; or prioritized"),),
    # actor-critics
    "alpha": (Ours("temperature"),),
    "autotune": (Ours("learn_temperature", True),),
    "policy_frequency": (Ours("policy_delay"),),
    "policy_noise": (Ours("target_noise"),),
    "target_policy_noise": (Ours("target_noise"),),
    "noise_clip": (Ours("target_noise_clip"),),
    "exploration_noise": (Ours("noise_sigma"),),
    "action_noise": (Ours("noise_sigma", None, "its standard deviation, and noise: gaussian or ou"),),
    # networks
    "policy": (Ours("backbone", None, "auto takes an MLP or a CNN by the observations"),),
    "policy_kwargs": (Ours("hidden_sizes", None, "and activation, each a setting of its own"),),
    "net_arch": (Ours("hidden_sizes"),),
    "activation_fn": (Ours("activation"),),
    "ortho_init": (Ours("init", "orthogonal"),),
    # what a run leaves
    "verbose": (Ours("quiet", True, "if it should print one line at the end only"),),
    "progress_bar": (Ours("", note="a progress bar is shown wherever the output is a terminal"),),
    "tensorboard_log": (Ours("", note=f"{_RUN_FOLDER}, TensorBoard's files too; tensorboard=False leaves them out"),),
    "log_folder": (Ours("results_dir"),),
    "exp_name": (Ours("name"),),
    "save_model": (Ours("", note=f"{_RUN_FOLDER}, the agent too"),),
    "save_freq": (Ours("checkpoint_every", None, "in environment steps of all environments"),),
    "eval_freq": (Ours("evaluate_every", None, "in environment steps of all environments"),),
    "eval_episodes": (Ours("evaluation_episodes"),),
    "n_eval_episodes": (Ours("evaluation_episodes"),),
    "stats_window_size": (Ours("window"),),
    "track": (Ours("wandb_project", None, "the name of the project"),),
    "wandb_project_name": (Ours("wandb_project"),),
    "capture_video": (Ours("video", True, "which is the default"),),
    "cuda": (Ours("device", None, "auto, cpu, cuda or mps"),),
    "torch_deterministic": (Ours("", note="a run with the same settings and versions repeats itself always"),),
}


def settings_of(algorithm: str) -> set[str]:
    """The names of the settings that an algorithm has for itself."""
    return {name for kind in find_algorithm(algorithm).parts.values() for name in kind.__dataclass_fields__}


def explain_unknown(name: str, value: object, algorithm: str, names: Collection[str], typed: bool) -> str | None:
    """What a setting that an algorithm does not have is called here, or which algorithms have it; None: nobody knows
    it. `names` are the settings that it has; `typed`: on a command line, and as text.

    >>> from drl.experiment.config import RunConfig
    >>> explain_unknown("learning_starts", "1000", "dqn", settings_of("dqn"), typed=True)
    'learning_starts is warmup here: --warmup 1000'
    >>> explain_unknown("n_steps", 5, "ppo", settings_of("ppo"), typed=False)
    'n_steps is rollout_length here: rollout_length=5'
    >>> explain_unknown("recurrent", "lstm", "sac", settings_of("sac"), typed=True)
    'recurrent is a setting of ppo, a2c and reinforce, not of sac'
    """
    theirs = FOREIGN.get(name, ())
    if any(not ours.setting for ours in theirs):
        return f"there is no {name} here: {theirs[0].note}"
    for ours in theirs:
        if ours.setting in names:
            return f"{name} is {ours.setting} here: {_typed(ours, value, typed)}"
    if having := [each for each in ALGORITHMS if name in settings_of(each)]:
        return f"{name} is a setting of {_listed(having)}, not of {algorithm}"
    for ours in theirs:
        having = [each for each in ALGORITHMS if ours.setting in settings_of(each)]
        return f"{name} is {ours.setting} here, a setting of {_listed(having)}, not of {algorithm}"
    return None


def _typed(ours: Ours, value: object, typed: bool) -> str:
    given = value if ours.value is GIVEN else ours.value
    if given is None:
        return ours.note
    flag = f"--{ours.setting.replace('_', '-')}"
    if typed:
        text = flag if given is True else f"{flag} {given}".strip()
    else:
        text = f"{ours.setting}={given!r:.80}"
    return f"{text} ({ours.note})" if ours.note else text


def _listed(names: Iterable[str]) -> str:
    """Names as a sentence has them.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
