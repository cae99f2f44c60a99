"""Names of settings in Stable-Baselines3, CleanRL and RL Zoo, with ours. The migration pages in docs/ agree."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from drl.algorithms import ALGORITHMS, find_algorithm
from drl.core.errors import shown

GIVEN = object()  # the user's value, unchanged


class Ours(NamedTuple):
    """Our setting for one of theirs."""

    setting: str  # "": there is none; the note explains
    value: object = GIVEN  # value to type; None: the note explains
    note: str = ""


_FROM_STEPS = "theirs counts environment steps, ours updates"
_RUN_FOLDER = "every run has a folder with everything in it"
# Of several, the first one that the algorithm has.
FOREIGN: dict[str, tuple[Ours, ...]] = {
    # budget, environments, seeds
    "env_id": (Ours("env"),),
    "env_name": (Ours("env"),),
    "n_envs": (Ours("num_envs"),),
    "total_timesteps": (Ours("num_timesteps_per_trial"),),  # of a search
    "n_timesteps": (Ours("total_timesteps"), Ours("num_timesteps_per_trial")),
    "timesteps": (Ours("total_timesteps"), Ours("num_timesteps_per_trial")),
    "max_steps": (Ours("total_timesteps"), Ours("num_timesteps_per_trial")),
    "env_wrapper": (Ours("wrappers"),),
    "vec_env": (Ours("vectorization", None, "sync is their dummy, async their subproc"),),
    "vec_env_cls": (Ours("vectorization", None, "sync is DummyVecEnv, async is SubprocVecEnv"),),
    "normalize": (Ours("normalize_obs", True, "and normalize_reward, if you want both"),),
    # rates
    "lr": (Ours("learning_rate"),),
    "q_lr": (Ours("learning_rate"),),
    "policy_lr": (Ours("actor_learning_rate"), Ours("learning_rate")),
    "anneal_lr": (Ours("learning_rate_schedule", "linear"),),
    "lr_schedule": (Ours("learning_rate_schedule"),),
    "optimizer_class": (Ours("optimizer"),),
    # rollouts
    "n_steps": (Ours("rollout_length"), Ours("n_step")),
    "num_steps": (Ours("rollout_length"),),
    "n_epochs": (Ours("epochs"),),
    "update_epochs": (Ours("epochs"),),
    "num_minibatches": (Ours("minibatches"),),
    "batch_size": (Ours("minibatches", None, "which is num_envs × rollout_length / batch_size"),),
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
    "rollout_buffer_class": (Ours("", note="make the parts by hand to use a buffer of your own"),),
    "rollout_buffer_kwargs": (Ours("", note="make the parts by hand to use a buffer of your own"),),
    "replay_buffer_class": (Ours("her", "future", "for HerReplayBuffer"),),
    "replay_buffer_kwargs": (Ours("her", None, "and her_ratio, each a setting of its own"),),
    "goal_selection_strategy": (Ours("her"),),
    "n_sampled_goal": (Ours("her_ratio", None, "the share of relabeled rows: 4 of theirs are 0.8"),),
    "optimize_memory_usage": (Ours("", note="the replay buffer stores each observation once"),),
    # actor-critics
    "alpha": (Ours("temperature"),),
    "autotune": (Ours("learn_temperature", True),),
    "policy_frequency": (Ours("policy_delay"),),
    "policy_noise": (Ours("target_noise"),),
    "target_policy_noise": (Ours("target_noise"),),
    "noise_clip": (Ours("target_noise_clip"),),
    "exploration_noise": (Ours("noise_sigma"),),
    "action_noise": (Ours("noise_sigma", None, "its standard deviation, and noise: gaussian or ou"),),
    "use_sde": (Ours("", note="exploration that depends on the state (gSDE) is not built in"),),
    "sde_sample_freq": (Ours("", note="exploration that depends on the state (gSDE) is not built in"),),
    "use_sde_at_warmup": (Ours("", note="exploration that depends on the state (gSDE) is not built in"),),
    # networks
    "policy": (Ours("backbone", None, "auto takes an MLP or a CNN by the observations"),),
    "policy_kwargs": (Ours("hidden_sizes", None, "and activation, each a setting of its own"),),
    "features_extractor_class": (Ours("backbone"),),
    "share_features_extractor": (Ours("shared"),),
    "lstm_hidden_size": (Ours("recurrent_size", GIVEN, "with recurrent: lstm or gru"),),
    "net_arch": (Ours("hidden_sizes"),),
    "activation_fn": (Ours("activation"),),
    "ortho_init": (Ours("init", "orthogonal"),),
    # files and output
    "verbose": (Ours("quiet", True, "if it should print one line at the end only"),),
    "progress_bar": (Ours("", note="a progress bar is shown wherever the output is a terminal"),),
    "tensorboard_log": (Ours("", note=f"{_RUN_FOLDER}, TensorBoard's files too; tensorboard=False leaves them out"),),
    "log_folder": (Ours("results_dir"),),
    "monitor_dir": (Ours("results_dir"),),
    "exp_name": (Ours("name"),),
    "run_name": (Ours("name"),),
    "callback": (Ours("", note="pass a function on_log=f, docs/inside_a_run.md"),),
    "reset_num_timesteps": (Ours("", note="drl.resume continues a run, drl.fork begins a new one in its middle"),),
    "log_interval": (Ours("", note="every learning step is in metrics.jsonl"),),
    "save_model": (Ours("", note=f"{_RUN_FOLDER}, the agent too"),),
    "save_freq": (Ours("checkpoint_every", None, "in environment steps of all environments"),),
    "eval_freq": (Ours("evaluate_every", None, "in environment steps of all environments"),),
    "eval_episodes": (Ours("evaluation_episodes"),),
    "n_eval_episodes": (Ours("evaluation_episodes"),),
    "stats_window_size": (Ours("window"),),
    "track": (Ours("wandb_project", None, "the name of the project"),),
    "wandb_project_name": (Ours("wandb_project"),),
    "capture_video": (Ours("video", True, "which is the default"),),
    "wandb_entity": (Ours("", note="set WANDB_ENTITY in the environment of the process"),),
    "cuda": (Ours("device", None, "auto, cpu, cuda or mps"),),
    "num_threads": (Ours("threads"),),
    "trained_agent": (Ours("from_agent"),),
    "conf_file": (Ours("", note="config takes a YAML file with settings"),),
    "hyperparams": (Ours("", note="each of them is a setting of its own, and config takes a YAML file with many"),),
    "optimize": (Ours("", note="`drl search ALGORITHM` searches for settings"),),
    "algo": (Ours("", note="the algorithm is the first argument, without a name"),),
    "torch_deterministic": (Ours("", note="a run with the same settings and versions always repeats itself"),),
}


def settings_of(algorithm: str) -> set[str]:
    """Return the names of an algorithm's own settings."""
    return {name for kind in find_algorithm(algorithm).parts.values() for name in kind.__dataclass_fields__}


def explain_unknown(
    name: str, value: object, algorithm: str, names: Collection[str], typed: bool, filed: Collection[str] = ()
) -> str | None:
    """Return our name of a setting that an algorithm lacks, or the algorithms that have it; None if it is unknown.
    `names` are the algorithm's settings. `typed`: on a command line. `filed`: settings that the command takes only in a
    file.

    >>> explain_unknown("learning_starts", "1000", "dqn", settings_of("dqn"), typed=True)
    'learning_starts is warmup here: --warmup 1000'
    >>> explain_unknown("n_steps", 5, "ppo", settings_of("ppo"), typed=False)
    'n_steps is rollout_length here: rollout_length=5'
    >>> explain_unknown("recurrent", "lstm", "sac", settings_of("sac"), typed=True)
    'recurrent is a setting of ppo, a2c and reinforce, not of sac'
    """
    refused = name.startswith("no_") and name.removeprefix("no_") in FOREIGN  # --no-cuda
    name = name.removeprefix("no_") if refused else name
    theirs = FOREIGN.get(name, ())
    if theirs and not theirs[0].setting:
        return f"there is no {name} here: {theirs[0].note}"
    for ours in theirs:
        if ours.setting in names:
            return f"{name} is {ours.setting} here{_how(ours, False if refused else value, typed)}"
    for ours in (Ours(name), *theirs):
        if ours.setting in filed:
            is_ours = "" if ours.setting == name else f" is {ours.setting} here,"
            return f"{name}{is_ours or ' is'} a setting of its runs: write it into a file, and add --config FILE.yaml"
    if having := _having(name):
        return f"{name} is a setting of {_listed(having)}, not of {algorithm}"
    for ours in theirs:
        if having := _having(ours.setting):
            return f"{name} is {ours.setting} here, a setting of {_listed(having)}, not of {algorithm}"
    return None


def _having(setting: str) -> list[str]:
    return [name for name in ALGORITHMS if setting in settings_of(name)]


def _how(ours: Ours, value: object, typed: bool) -> str:
    """Return the flag or keyword to type for their value, and the note."""
    given = value if ours.value is GIVEN else ours.value
    switched_off = value is False or str(value).lower() == "false"
    if given is None or (switched_off and ours.value is not GIVEN):
        return f" ({ours.note})" if ours.note else ""
    flag = f"--{ours.setting.replace('_', '-')}"
    flag_text = flag if given is True else f"{flag} {given}".strip()
    text = flag_text if typed else f"{ours.setting}={shown(given)}"
    return f": {text} ({ours.note})" if ours.note else f": {text}"


def _listed(names: Iterable[str]) -> str:
    """Join names with commas and "and".

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
