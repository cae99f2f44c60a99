"""The settings of `drl.train` and its like, and of parts built by hand, for editors and type checkers.

Written by `make settings` from the configs that state them; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from drl.core.configs import AnyPath, Number, Rate, Switch, Whole
from drl.core.network_parts import Factory

if TYPE_CHECKING:
    import torch

AlgorithmName = (
    Literal["ppo", "a2c", "reinforce", "dqn", "ddpg", "td3", "sac", "tqc", "crossq", "normalized_sac"] | str
)  # also one that a plugin registers


class TrainerSettings(TypedDict, total=False):
    """Of `drl.make_trainer`; defaults without a preset."""

    num_envs: Whole
    """environments stepped together. Default: 8."""
    engine: Literal["torch", "jax"]
    """torch · jax. Default: 'torch'."""
    vectorization: Literal["auto", "sync", "async", "native", "envpool", "jax"]
    """auto · sync · async · native · envpool · jax (the environment is compiled too). Default: 'auto'."""
    worker_timeout: Number
    """seconds that a worker process (async, video) may take to start, reset or step. Default: 60.0."""
    frame_stack: Whole
    """observations the agent sees at once; 0: 4 for Atari games as in the DQN papers, else 1. Default: 0."""
    normalize_obs: Switch | None
    """By running mean and standard deviation, saved with the agent; None: if the network expects it, as simba does."""
    normalize_reward: Switch | None
    """Divide by the standard deviation of the running discounted return; None: if the algorithm expects it."""
    total_timesteps: Whole | None
    """The budget in environment steps (default 100 000) or in episodes. DQN ends there; ppo and a2c finish the rollout
    that reaches it, and reinforce its batch of episodes."""
    num_episodes: Whole | None
    """the budget in episodes. Default: None."""
    seed: Whole
    """root of every random stream. Default: 0."""
    from_agent: AnyPath | None
    """begin with the weights of this agent or run, as far as they fit; also --from. Default: None."""
    plugins: list[str] | tuple[str, ...]
    """your modules to import first; they register algorithms and network parts."""
    window: Whole
    """episodes in the statistics of recent episodes. Default: 100."""
    info_keys: list[str] | tuple[str, ...]
    """Numbers in the last info of each episode whose means are logged; default: all numbers."""
    device: Literal["auto", "cpu", "cuda", "mps"] | str | torch.device
    """auto · cpu · cuda · mps. Default: 'auto'."""
    compile: Literal["auto", "on", "off"]
    """auto · on · off: torch.compile the update; auto: where it saves more than it costs. Default: 'auto'."""
    threads: Whole | None
    """of the tensor library; default 1 for vector observations, all cores for images."""
    cluster: Literal["local", "auto"] | str | None
    """Where the processes run: local (Ray, started for this command) · auto (the Ray cluster that this machine is in) ·
    ADDRESS of a Ray cluster; None: on this machine without Ray."""
    num_collectors: Whole
    """processes of the cluster that step the environments of one run; 0: the learner does. Default: 0."""
    env_blocks: Whole | None
    """Groups of environments that are stepped and decided on together. The numbers of a run depend on them, not on how
    many collectors share them. Default: 8, or num_envs if that is less."""
    async_collectors: Switch
    """off-policy only: collectors do not wait for the learner; not reproducible. Default: False."""
    collector_restarts: Whole
    """how often all collectors together may be started again. Default: 3."""
    num_learners: Whole
    """processes of the cluster that share every update; experimental. Default: 1."""
    backbone: Literal["auto", "mlp", "simba", "cnn", "conv1d"] | str
    """auto · mlp · simba · cnn · conv1d, or one registered by a plugin. Default: 'auto'."""
    backbone_kwargs: list[str] | tuple[str, ...] | Mapping[str, object]
    """NAME=VALUE pairs for a plugin's backbone; values are read as YAML."""
    head: str
    """auto, or a policy head registered by a plugin. auto, or a head of action values registered by a plugin (dqn).
    Default: 'auto'."""
    hidden_sizes: Sequence[Whole]
    """widths of the actor's MLP; of simba: one residual block per entry. widths of the MLP; the last one is the feature
    width of conv1d (ppo, a2c, reinforce, dqn). Default: (256, 256); (64, 64) (ppo, a2c, reinforce); (128, 128)
    (dqn)."""
    cnn_features: Whole
    """feature width of the cnn. Default: 512."""
    activation: (
        Literal["tanh", "relu", "gelu", "silu", "elu", "leaky_relu", "selu", "mish", "softplus", "sigmoid"]
        | str
        | Factory
    )
    """Of the MLP: tanh · relu · gelu (its tanh form) · silu · elu · leaky_relu · selu · mish · softplus · sigmoid, or a
    function. Default: 'relu'; 'tanh' (ppo, a2c, reinforce)."""
    init: (
        Literal["auto", "orthogonal", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"]
        | str
        | Factory
    )
    """Of weights: auto (uniform) · orthogonal · xavier_uniform · xavier_normal · kaiming_uniform · kaiming_normal, or a
    function. Gains are √2 in hidden layers, 1 in heads of values and 0.01 in policy heads; biases are 0. Of weights:
    auto (orthogonal) · orthogonal · xavier_uniform · xavier_normal · kaiming_uniform · kaiming_normal, or a function.
    Gains are √2 in hidden layers, 1 in heads of values and 0.01 in policy heads; biases are 0 (ppo, a2c, reinforce).
    Default: 'auto'."""
    dropout: Number
    """Share of the features behind each hidden layer that an update sets to 0; acting and evaluation use all of them.
    Default: 0.0."""
    freeze: list[str] | tuple[str, ...]
    """names of parameters that stay as they are; `*` stands for any part: backbone.*."""
    shared: Switch
    """one backbone for actor and critic, recurrent layer included. Default: False. Of ppo, a2c, reinforce."""
    recurrent: Literal["none", "gru", "lstm"]
    """none · gru · lstm: a recurrent layer between backbone and head, for ppo and a2c. Default: 'none'. Of ppo, a2c,
    reinforce."""
    recurrent_size: Whole
    """width of the recurrent layer. Default: 64. Of ppo, a2c, reinforce."""
    distribution: Literal["auto", "gaussian", "tanh_gaussian"]
    """auto · gaussian · tanh_gaussian (state-dependent deviation): of Box actions. Default: 'auto'. Of ppo, a2c,
    reinforce."""
    log_std_init: Number
    """first log standard deviation of a Gaussian policy. Default: 0.0. Of ppo, a2c, reinforce."""
    rollout_length: Whole
    """steps of every environment per learning step. Default: 128; 8 (a2c). Of ppo, a2c."""
    gamma: Number
    """discount per step. Default: 0.99."""
    gae_lambda: Number
    """0: one-step advantages, 1: Monte Carlo. 1: n-step returns up to the rollout's end (a2c). Default: 0.95; 1.0
    (a2c). Of ppo, a2c."""
    learning_rate: Rate
    """at the beginning. Default: 0.0003; 0.001 (reinforce, ddpg, td3, crossq); 0.0007 (a2c); 0.0001 (dqn)."""
    learning_rate_end: Number | None
    """at the end of the budget; None: constant, or 0 with a schedule."""
    learning_rate_schedule: Literal["auto", "constant", "linear", "cosine"] | str | Callable[[float], float]
    """constant · linear · cosine, or a function; auto: linear if there is an end. Default: 'auto'."""
    critic_learning_rate: Number | None
    """own rate for the critic, scheduled alike; None: the same. Of ppo."""
    clip_range: Rate
    """how far the probability ratio may leave 1. Default: 0.2. Of ppo."""
    clip_range_end: Number | None
    """at the end of the budget; None: constant, or 0 with a schedule. Of ppo."""
    clip_range_schedule: Literal["auto", "constant", "linear", "cosine"] | str | Callable[[float], float]
    """constant · linear · cosine, or a function; auto: linear if there is an end. Default: 'auto'. Of ppo."""
    value_clip: Number | None
    """how far a value may leave the old one; None: no value clipping. Of ppo."""
    epochs: Whole
    """passes over the rollout. Default: 4. Of ppo."""
    minibatches: Whole
    """per epoch. Default: 4. Of ppo."""
    entropy_coef: Rate
    """weight of the entropy bonus. Default: 0.0. Of ppo, a2c, reinforce."""
    entropy_coef_end: Number | None
    """at the end of the budget; None: constant, or 0 with a schedule. Of ppo, a2c, reinforce."""
    entropy_coef_schedule: Literal["auto", "constant", "linear", "cosine"] | str | Callable[[float], float]
    """constant · linear · cosine, or a function; auto: linear if there is an end. Default: 'auto'. Of ppo, a2c,
    reinforce."""
    value_coef: Number
    """weight of the value loss. weight of the value loss, with baseline value (reinforce). Default: 0.5. Of ppo, a2c,
    reinforce."""
    normalize_advantage: Switch
    """per minibatch, to mean 0 and deviation 1. over the rollout, to mean 0 and deviation 1 (a2c). over the batch, to
    mean 0 and deviation 1 (reinforce). Default: True; False (a2c). Of ppo, a2c, reinforce."""
    max_grad_norm: Number | None
    """global norm, of the critics together and of the actor; None: no clipping. global norm; None: no clipping (ppo,
    a2c, reinforce, dqn). Default: None; 0.5 (ppo, a2c, reinforce); 10.0 (dqn)."""
    target_kl: Number | None
    """no further epoch once approx_kl of the last minibatch exceeds 1.5 times this. Default: None. Of ppo."""
    optimizer: Literal["sgd", "adam", "adamw", "rmsprop", "muon"] | str | Factory
    """sgd · adam · adamw · rmsprop · muon, torch.optim.NAME or optax.NAME, or in Python a function that makes one.
    Default: 'adam'; 'rmsprop' (a2c); 'adamw' (dqn)."""
    optimizer_kwargs: Mapping[str, object] | list[str] | tuple[str, ...]
    """NAME=VALUE pairs for it, in Python also a dict; values are read as YAML."""
    adam_eps: Number
    """of adam, adamw and rmsprop: added to the denominator of the step. Default: 1e-08; 1e-05 (ppo, reinforce). Not of
    a2c."""
    optimizer_eps: Number
    """of rmsprop, adam and adamw: added to the denominator of the step. Default: 1e-05. Of a2c."""
    episodes_per_step: Whole
    """complete episodes per learning step. Default: 8. Of reinforce."""
    baseline: Literal["none", "mean", "value"]
    """none · mean (running mean of returns) · value (a critic). Default: 'value'. Of reinforce."""
    mean_momentum: Number
    """of the running mean: share of the old mean that is kept. Default: 0.9. Of reinforce."""
    dueling: Switch
    """separate value and advantage: Q = V + A − mean A. Default: False. Of dqn."""
    noisy: Switch
    """noisy layers in place of linear ones; their noise is the exploration. Default: False. Of dqn."""
    noisy_sigma: Number
    """initial scale of the noise, relative to the scale of the weights. Default: 0.5. Of dqn."""
    distributional: Literal["none", "c51", "qr"]
    """of the critics: none · c51 (a fixed support, cross-entropy) · qr (quantiles). none · c51 (a fixed support) · qr
    (quantiles) (dqn). Default: 'none'; 'qr' (tqc); 'c51' (normalized_sac). Not of ppo, a2c, reinforce."""
    num_atoms: Whole
    """atoms of the support, or quantiles. Default: 101; 51 (dqn, normalized_sac); 25 (tqc). Not of ppo, a2c,
    reinforce."""
    v_min: Number
    """c51: smallest return of the support. Default: -10.0. Not of ppo, a2c, reinforce."""
    v_max: Number
    """c51: largest return of the support. Default: 10.0. Not of ppo, a2c, reinforce."""
    double: Switch
    """the online network chooses the action that the target network values. Default: False. Of dqn."""
    tau: Number
    """share of the online networks that moves into the target networks; 1: a full copy. share of the online network
    that moves into the target network; 1: a full copy (dqn). Default: 0.005. Not of ppo, a2c, reinforce."""
    target_every: Whole
    """updates between two such moves. updates between two moves of the target networks (td3). Default: 1; 2 (td3). Not
    of ppo, a2c, reinforce."""
    loss: Literal["huber", "squared"]
    """huber · squared (half of it); of the TD error, or within the quantile loss; c51 has its own. Default: 'squared';
    'huber' (dqn, tqc). Not of ppo, a2c, reinforce."""
    amsgrad: Switch
    """of adam and adamw: divide by the largest second moment so far. Default: True. Of dqn."""
    weight_decay: Number
    """of adamw. Default: 0.01. Not of ppo, a2c, reinforce."""
    max_grad_value: Number | None
    """of each entry; None: no clipping. Of dqn."""
    batch_size: Whole
    """transitions per update. Default: 128; 256 (normalized_sac). Not of ppo, a2c, reinforce."""
    capacity: Whole
    """transitions the buffer holds. Default: 100000. Not of ppo, a2c, reinforce."""
    warmup: Whole
    """environment steps before the first update, which also needs a whole batch. Default: 1000; 5000 (normalized_sac).
    Not of ppo, a2c, reinforce."""
    train_every: Whole
    """environment steps per round of updates, whatever the number of environments. Default: 1. Not of ppo, a2c,
    reinforce."""
    gradient_steps: Whole
    """updates per round. Default: 1; 2 (normalized_sac). Not of ppo, a2c, reinforce."""
    updates_per_log: Whole
    """updates per learning step, which is one line in the log. Default: 100. Not of ppo, a2c, reinforce."""
    n_step: Whole
    """steps of the n-step return. Default: 1. Not of ppo, a2c, reinforce."""
    prioritized: Switch
    """sample transitions in proportion to their last error. Default: False. Not of ppo, a2c, reinforce."""
    priority_alpha: Number
    """0: uniform, 1: in full proportion. Default: 0.6. Not of ppo, a2c, reinforce."""
    priority_beta: Number
    """initial strength of the correction by importance weights. Default: 0.4. Not of ppo, a2c, reinforce."""
    priority_beta_step: Number
    """added at every batch, up to 1. Default: 0.001. Not of ppo, a2c, reinforce."""
    priority_eps: Number
    """added to every error, so that every transition can still be sampled. Default: 0.01. Not of ppo, a2c,
    reinforce."""
    her: Literal["none", "future", "final", "episode"]
    """Hindsight: pretend that a goal was wanted which the same episode achieved. future: at this step or later · final:
    at its last step · episode: at any step · none: off. Default: 'none'. Not of ppo, a2c, reinforce."""
    her_ratio: Number
    """share of the sampled transitions that get such a goal. Default: 0.8. Not of ppo, a2c, reinforce."""
    checkpoint_rows: Whole | None
    """Newest transitions that a checkpoint stores; None: all. With fewer than there are, a resumed run is inexact. Not
    of ppo, a2c, reinforce."""
    epsilon_start: Rate
    """probability of a random action. Default: 0.9. Of dqn."""
    epsilon_end: Number
    """its last value. Default: 0.05. Of dqn."""
    epsilon_decay: Number
    """environment steps: time constant (exponential) or length (all others). Default: 1000.0. Of dqn."""
    epsilon_schedule: Literal["exponential", "linear", "cosine", "constant"] | str | Callable[[float], float]
    """exponential · linear · cosine · constant, or a function. Default: 'exponential'. Of dqn."""
    critic_hidden_sizes: Sequence[Whole] | None
    """the same for each critic; None: as the actor's. Default: None; (1024, 1024) (crossq). Not of ppo, a2c, reinforce,
    dqn."""
    layer_norm: Switch
    """layer normalization before every activation of an MLP. Default: False. Not of ppo, a2c, reinforce, dqn."""
    batch_renorm: Switch
    """batch renormalization in the critics' MLPs. Default: False; True (crossq, normalized_sac). Not of ppo, a2c,
    reinforce, dqn."""
    renorm_warmup: Whole
    """updates in which batch renormalization is plain batch normalization. Default: 100000. Not of ppo, a2c, reinforce,
    dqn."""
    num_critics: Whole
    """in the ensemble. Default: 2; 1 (ddpg); 5 (tqc). Not of ppo, a2c, reinforce, dqn."""
    actor_learning_rate: Number | None
    """of the actor, at the start; None: the same as the critics'. Not of ppo, a2c, reinforce, dqn."""
    target_network: Switch
    """False: the online critics value the next state, in the same batch as this one. Default: True; False (crossq,
    normalized_sac). Not of ppo, a2c, reinforce, dqn."""
    policy_delay: Whole
    """updates of the critics per update of the actor. Default: 1; 3 (crossq, normalized_sac); 2 (td3). Not of ppo, a2c,
    reinforce, dqn."""
    critic_subset: Whole | None
    """critics, chosen anew at every update, whose values make the target; None: all. Not of ppo, a2c, reinforce,
    dqn."""
    target_q: Literal["min", "mean"]
    """min · mean: which of these values the target takes. Default: 'min'. Not of ppo, a2c, reinforce, dqn."""
    actor_q: Literal["min", "mean", "first"]
    """min · mean · first: which critics' value the actor climbs. Default: 'min'; 'first' (ddpg, td3); 'mean' (tqc). Not
    of ppo, a2c, reinforce, dqn."""
    reward_scale: Number
    """factor on every reward. Default: 1.0. Not of ppo, a2c, reinforce, dqn."""
    weight_norm: Switch
    """scale the critics' hidden weights to norm 1 per feature, after every update. Default: False; True
    (normalized_sac). Not of ppo, a2c, reinforce, dqn."""
    adam_beta1: Number
    """of adam and adamw: decay of the mean of the gradients. Default: 0.9; 0.5 (crossq, normalized_sac). Not of ppo,
    a2c, reinforce, dqn."""
    target_noise: Number
    """standard deviation of the noise on the target policy's actions; 0: none. Default: 0.0; 0.2 (td3). Of ddpg,
    td3."""
    target_noise_clip: Number
    """limit of this noise. Default: 0.5. Of ddpg, td3."""
    random_steps: Whole | None
    """environment steps with uniformly random actions; None: until the first update. Not of ppo, a2c, reinforce,
    dqn."""
    noise: Literal["gaussian", "ornstein_uhlenbeck"]
    """gaussian · ornstein_uhlenbeck (correlated in time). Default: 'gaussian'. Not of ppo, a2c, reinforce, dqn."""
    noise_sigma: Rate
    """standard deviation of each draw. Default: 0.0; 0.1 (ddpg, td3). Not of ppo, a2c, reinforce, dqn."""
    noise_sigma_end: Number | None
    """after `noise_decay`; None: constant, or 0 with a schedule. Not of ppo, a2c, reinforce, dqn."""
    noise_sigma_schedule: Literal["auto", "constant", "linear", "cosine"] | str | Callable[[float], float]
    """constant · linear · cosine, or a function; auto: linear if there is an end. Default: 'auto'. Not of ppo, a2c,
    reinforce, dqn."""
    noise_decay: Number
    """environment steps. Default: 100000.0. Not of ppo, a2c, reinforce, dqn."""
    noise_theta: Number
    """ornstein_uhlenbeck: share of the noise that decays per step. Default: 0.15. Not of ppo, a2c, reinforce, dqn."""
    temperature: Number
    """α, the weight of the entropy; the initial one if it is learned. Default: 1.0; 0.01 (normalized_sac). Of sac, tqc,
    crossq, normalized_sac."""
    learn_temperature: Switch
    """keep the entropy near `target_entropy`. Default: True. Of sac, tqc, crossq, normalized_sac."""
    temperature_learning_rate: Number | None
    """at the start; None: the same as the critics'. Of sac, tqc, crossq, normalized_sac."""
    target_entropy: Number | None
    """None: −1 per entry of a Box action; 0.98 · log(legal actions). Of sac, tqc, crossq, normalized_sac."""
    quantiles_to_drop: Whole
    """qr: the largest quantiles of the target that are dropped, per critic. Default: 0; 2 (tqc). Of sac, tqc, crossq,
    normalized_sac."""


class Settings(TrainerSettings, total=False):
    """Of `drl.train`: of a trainer and of its run."""

    stop_at_return: Number | None
    """stop early when the mean return of the last window reaches this. Default: None."""
    max_minutes: Number | None
    """stop early after this wall time. Default: None."""
    name: str | None
    """experiment folder; default <env>_<algorithm>."""
    license: str | None
    """of the agent, on its card: an identifier such as mit; default: none stated."""
    results_dir: AnyPath
    """where the folders of runs go. Default: 'results'."""
    fallback_dir: AnyPath | None
    """where a run goes on whose own folder cannot be written; default: into memory."""
    record_episodes: Switch
    """keep the actions of finished episodes, for `drl replay`. Default: True."""
    best_after: Whole
    """a best model is saved after more episodes than this. Default: 0."""
    wandb_project: str | None
    """Weights & Biases project; None: off."""
    mlflow_experiment: str | None
    """MLflow experiment; None: off. Runs go to MLFLOW_TRACKING_URI, or into mlflow.db in results_dir."""
    group: str | None
    """of runs that belong together at W&B and MLflow; default: one for num_seeds and ablate."""
    evaluate_every: Whole | None
    """Environment steps between evaluations and between checkpoints; 0: never. The default is a tenth and a fifth of
    the budget, or 10 000 if the budget is in episodes. Evaluations by default are left out while all of them together
    would take more than a tenth of the steps of training; the one at the end is always made."""
    evaluation_episodes: Whole
    """per evaluation. Default: 10."""
    eval_max_steps: Whole | None
    """Environment steps that one evaluation may take, all environments together; default: 100 000 for each episode. One
    that takes more is given up, and the run has no evaluation."""
    checkpoint_every: Whole | None
    """environment steps; see evaluate_every. Default: None."""
    checkpoint_minutes: Number
    """wall time after which a checkpoint is due as well. Default: 5.0."""
    keep_checkpoints: Whole
    """newest checkpoints to keep; 0: none. Default: 2."""
    num_checkpoints: Whole
    """policies saved as models/pi_ckpt1.pth … at equal fractions of the budget. Default: 3."""
    tensorboard: Switch
    """write events for TensorBoard. Default: True."""
    plots: Switch
    """pictures at the end. Default: True."""
    video: Switch
    """film one evaluation episode at the end if the environment can be rendered. Default: True."""
    quiet: Switch
    """print one line at the end. Default: False."""
    log_every: Whole
    """Into a file or pipe, print all blocks of the log every this many learning steps; 0: a line every five seconds.
    Default: 0."""
    cpus_per_run: Number
    """cores that a cluster reserves for each run, of several seeds, trials or ablations. Default: 1.0."""
    gpus_per_run: Number
    """the same for GPUs. Default: 0.0."""
    results_url: str | None
    """Where a second copy of every run's folder goes as it grows, such as s3://bucket/runs: any URL of fsspec. Default:
    None."""


class SeedsSettings(Settings, total=False):
    """Of `drl.train_seeds`: of runs that differ in their seed."""

    num_seeds: Whole
    """Several runs that differ in the seed only: this many from `seed` on, or those in the list. They are one program
    if the environment is compiled (engine jax), else processes. Default: 1."""
    seeds: Sequence[Whole]
    """these seeds, in place of num_seeds."""
    workers: Whole | None
    """processes at a time for several seeds; default: one for each core."""


class SearchSettings(Settings, total=False):
    """Of `drl.search`: of the search and of its trials."""

    n_trials: Whole
    """finished trials in total; the same command runs only the missing ones. Default: 100."""
    num_timesteps_per_trial: Whole | None
    """environment steps; default: the preset's budget, else 50 000."""
    num_episodes_per_trial: Whole | None
    """or episodes. Default: None."""
    mode: Literal["base", "all"]
    """base: a few settings · all: also switches, batch sizes and network width. Default: 'base'."""
    pruner: Literal["median", "hyperband", "none"]
    """stops weak trials early: median · hyperband · none. Default: 'median'."""
    storage: AnyPath | None
    """URL, or a file ending in .db or .log; default: results/<name>/study.db."""
    n_jobs: Whole
    """trials in parallel, each in its own process; 0: one after another in this process. Default: 1."""
    trial_timeout: Number
    """minutes without a sign of life after which a trial is ended and counts as failed. Default: 60.0."""
    reports: Whole
    """evaluations in a trial; the last one is of the final agent. Default: 10."""
    rerun_best: Whole
    """how many of the best trials are re-run. Default: 3."""
    rerun_seeds: Whole
    """fresh seeds per re-run trial; 0: no re-runs. Default: 2."""


class ModelSettings(TypedDict, total=False):
    """Of a policy model, with or without a value: the fields of `ModelConfig`."""

    backbone: Literal["auto", "mlp", "simba", "cnn", "conv1d"] | str
    """auto · mlp · simba · cnn · conv1d, or one registered by a plugin. Default: 'auto'."""
    backbone_kwargs: list[str] | tuple[str, ...] | Mapping[str, object]
    """NAME=VALUE pairs for a plugin's backbone; values are read as YAML."""
    head: str
    """auto, or a policy head registered by a plugin. Default: 'auto'."""
    hidden_sizes: Sequence[Whole]
    """widths of the MLP; the last one is the feature width of conv1d. Default: (64, 64)."""
    cnn_features: Whole
    """feature width of the cnn. Default: 512."""
    activation: (
        Literal["tanh", "relu", "gelu", "silu", "elu", "leaky_relu", "selu", "mish", "softplus", "sigmoid"]
        | str
        | Factory
    )
    """Of the MLP: tanh · relu · gelu (its tanh form) · silu · elu · leaky_relu · selu · mish · softplus · sigmoid, or a
    function. Default: 'tanh'."""
    init: (
        Literal["auto", "orthogonal", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"]
        | str
        | Factory
    )
    """Of weights: auto (orthogonal) · orthogonal · xavier_uniform · xavier_normal · kaiming_uniform · kaiming_normal,
    or a function. Gains are √2 in hidden layers, 1 in heads of values and 0.01 in policy heads; biases are 0. Default:
    'auto'."""
    dropout: Number
    """Share of the features behind each hidden layer that an update sets to 0; acting and evaluation use all of them.
    Default: 0.0."""
    freeze: list[str] | tuple[str, ...]
    """names of parameters that stay as they are; `*` stands for any part: backbone.*."""
    shared: Switch
    """one backbone for actor and critic, recurrent layer included. Default: False."""
    recurrent: Literal["none", "gru", "lstm"]
    """none · gru · lstm: a recurrent layer between backbone and head, for ppo and a2c. Default: 'none'."""
    recurrent_size: Whole
    """width of the recurrent layer. Default: 64."""
    distribution: Literal["auto", "gaussian", "tanh_gaussian"]
    """auto · gaussian · tanh_gaussian (state-dependent deviation): of Box actions. Default: 'auto'."""
    log_std_init: Number
    """first log standard deviation of a Gaussian policy. Default: 0.0."""


class QModelSettings(TypedDict, total=False):
    """Of a model of action values: the fields of `QModelConfig`."""

    backbone: Literal["auto", "mlp", "simba", "cnn", "conv1d"] | str
    """auto · mlp · simba · cnn · conv1d, or one registered by a plugin. Default: 'auto'."""
    backbone_kwargs: list[str] | tuple[str, ...] | Mapping[str, object]
    """NAME=VALUE pairs for a plugin's backbone; values are read as YAML."""
    head: str
    """auto, or a head of action values registered by a plugin. Default: 'auto'."""
    hidden_sizes: Sequence[Whole]
    """widths of the MLP; the last one is the feature width of conv1d. Default: (128, 128)."""
    cnn_features: Whole
    """feature width of the cnn. Default: 512."""
    activation: (
        Literal["tanh", "relu", "gelu", "silu", "elu", "leaky_relu", "selu", "mish", "softplus", "sigmoid"]
        | str
        | Factory
    )
    """Of the MLP: tanh · relu · gelu (its tanh form) · silu · elu · leaky_relu · selu · mish · softplus · sigmoid, or a
    function. Default: 'relu'."""
    init: (
        Literal["auto", "orthogonal", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"]
        | str
        | Factory
    )
    """Of weights: auto (uniform) · orthogonal · xavier_uniform · xavier_normal · kaiming_uniform · kaiming_normal, or a
    function. Gains are √2 in hidden layers, 1 in heads of values and 0.01 in policy heads; biases are 0. Default:
    'auto'."""
    dropout: Number
    """Share of the features behind each hidden layer that an update sets to 0; acting and evaluation use all of them.
    Default: 0.0."""
    freeze: list[str] | tuple[str, ...]
    """names of parameters that stay as they are; `*` stands for any part: backbone.*."""
    dueling: Switch
    """separate value and advantage: Q = V + A − mean A. Default: False."""
    noisy: Switch
    """noisy layers in place of linear ones; their noise is the exploration. Default: False."""
    noisy_sigma: Number
    """initial scale of the noise, relative to the scale of the weights. Default: 0.5."""
    distributional: Literal["none", "c51", "qr"]
    """none · c51 (a fixed support) · qr (quantiles). Default: 'none'."""
    num_atoms: Whole
    """atoms of the support, or quantiles. Default: 51."""
    v_min: Number
    """c51: smallest return of the support. Default: -10.0."""
    v_max: Number
    """c51: largest return of the support. Default: 10.0."""


class ActorCriticSettings(TypedDict, total=False):
    """Of an actor with critics: the fields of `ActorCriticConfig`."""

    backbone: Literal["auto", "mlp", "simba", "cnn", "conv1d"] | str
    """auto · mlp · simba · cnn · conv1d, or one registered by a plugin. Default: 'auto'."""
    backbone_kwargs: list[str] | tuple[str, ...] | Mapping[str, object]
    """NAME=VALUE pairs for a plugin's backbone; values are read as YAML."""
    head: str
    """auto, or a policy head registered by a plugin. Default: 'auto'."""
    hidden_sizes: Sequence[Whole]
    """widths of the actor's MLP; of simba: one residual block per entry. Default: (256, 256)."""
    critic_hidden_sizes: Sequence[Whole] | None
    """the same for each critic; None: as the actor's."""
    cnn_features: Whole
    """feature width of the cnn. Default: 512."""
    activation: (
        Literal["tanh", "relu", "gelu", "silu", "elu", "leaky_relu", "selu", "mish", "softplus", "sigmoid"]
        | str
        | Factory
    )
    """Of the MLP: tanh · relu · gelu (its tanh form) · silu · elu · leaky_relu · selu · mish · softplus · sigmoid, or a
    function. Default: 'relu'."""
    init: (
        Literal["auto", "orthogonal", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"]
        | str
        | Factory
    )
    """Of weights: auto (uniform) · orthogonal · xavier_uniform · xavier_normal · kaiming_uniform · kaiming_normal, or a
    function. Gains are √2 in hidden layers, 1 in heads of values and 0.01 in policy heads; biases are 0. Default:
    'auto'."""
    dropout: Number
    """Share of the features behind each hidden layer that an update sets to 0; acting and evaluation use all of them.
    Default: 0.0."""
    freeze: list[str] | tuple[str, ...]
    """names of parameters that stay as they are; `*` stands for any part: backbone.*."""
    layer_norm: Switch
    """layer normalization before every activation of an MLP. Default: False."""
    batch_renorm: Switch
    """batch renormalization in the critics' MLPs. Default: False."""
    renorm_warmup: Whole
    """updates in which batch renormalization is plain batch normalization. Default: 100000."""
    num_critics: Whole
    """in the ensemble. Default: 2."""
    distributional: Literal["none", "c51", "qr"]
    """of the critics: none · c51 (a fixed support, cross-entropy) · qr (quantiles). Default: 'none'."""
    num_atoms: Whole
    """atoms of the support, or quantiles. Default: 101."""
    v_min: Number
    """c51: smallest return of the support. Default: -10.0."""
    v_max: Number
    """c51: largest return of the support. Default: 10.0."""


class ReplaySettings(TypedDict, total=False):
    """Of a replay buffer: the fields of `ReplayConfig`."""

    batch_size: Whole
    """transitions per update. Default: 128."""
    capacity: Whole
    """transitions the buffer holds. Default: 100000."""
    warmup: Whole
    """environment steps before the first update, which also needs a whole batch. Default: 1000."""
    train_every: Whole
    """environment steps per round of updates, whatever the number of environments. Default: 1."""
    gradient_steps: Whole
    """updates per round. Default: 1."""
    updates_per_log: Whole
    """updates per learning step, which is one line in the log. Default: 100."""
    n_step: Whole
    """steps of the n-step return. Default: 1."""
    prioritized: Switch
    """sample transitions in proportion to their last error. Default: False."""
    priority_alpha: Number
    """0: uniform, 1: in full proportion. Default: 0.6."""
    priority_beta: Number
    """initial strength of the correction by importance weights. Default: 0.4."""
    priority_beta_step: Number
    """added at every batch, up to 1. Default: 0.001."""
    priority_eps: Number
    """added to every error, so that every transition can still be sampled. Default: 0.01."""
    her: Literal["none", "future", "final", "episode"]
    """Hindsight: pretend that a goal was wanted which the same episode achieved. future: at this step or later · final:
    at its last step · episode: at any step · none: off. Default: 'none'."""
    her_ratio: Number
    """share of the sampled transitions that get such a goal. Default: 0.8."""
    checkpoint_rows: Whole | None
    """Newest transitions that a checkpoint stores; None: all. With fewer than there are, a resumed run is inexact."""
