"""Variations of algorithms: own losses and metrics, a learner's state, optimizers, dropout, frozen layers."""

import sys
from dataclasses import dataclass
from functools import partial

import engine_twins as twins
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from engine_twins import quick_compilation  # noqa: F401 (a fixture)

from drl.algorithms import ALGORITHMS, find_algorithm, register_algorithm
from drl.algorithms.dqn import DQNConfig
from drl.algorithms.ppo import PPOConfig
from drl.core.configs import ActorCriticConfig, ModelConfig, QModelConfig
from drl.core.contracts import Learned, Loss
from drl.core.errors import BadInput, UnusableFile
from drl.core.schedules import settle_rates
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.jax import off_policy, ops
from drl.engines.jax.actor_critics import make_actor_critic, make_deterministic_actor_critic
from drl.engines.jax.algorithms.a2c import A2C
from drl.engines.jax.algorithms.dqn import DQN
from drl.engines.jax.algorithms.ppo import PPO
from drl.engines.jax.algorithms.reinforce import Reinforce
from drl.engines.jax.algorithms.sac import SAC
from drl.engines.jax.algorithms.td3 import TD3
from drl.engines.jax.fused import fused_trainer
from drl.engines.jax.layers import with_dropout
from drl.engines.jax.learner import Learner
from drl.engines.jax.model_state import ModelState
from drl.engines.jax.models import make_policy_model, make_policy_value_model, make_q_value_model
from drl.engines.jax.optimizer import optimizer_of
from drl.runs.building import in_one_program, open_trainer
from drl.settings.experiment import Experiment

CHOICES = EnvSpecs(ObsSpec("box", (3,)), twins.ACTIONS["categorical"], seed=1)
BOX = EnvSpecs(
    CHOICES.obs_spec, ActionSpec("box", shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2, dtype="float32"), seed=1
)
QUICK = twins.QUICK
pytestmark = pytest.mark.usefixtures("quick_compilation", "quickly")


@pytest.fixture
def quickly(monkeypatch):
    update = jax.jit(lambda pure, *inputs: pure.update(*inputs), static_argnums=0, compiler_options=QUICK)
    chunk = jax.jit(fused_trainer._one.__wrapped__, static_argnums=(0, 1), compiler_options=QUICK)
    monkeypatch.setattr(off_policy, "_update", update)
    monkeypatch.setattr(fused_trainer, "_one", chunk)


@pytest.fixture
def registered():
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


# ── own losses ────────────────────────────────────────────────────────────────────────────────────────────────────


class Flatter:
    """Any on-policy loss with a penalty on probabilities."""

    def loss(self, outputs, rows, rates):
        penalty = 0.5 * jnp.square(outputs.log_prob)  # [B]
        return super().loss(outputs, rows, rates).plus(ops.mean(penalty, rows.weight), flatness=penalty)


class MyPPO(Flatter, PPO):
    pass


class MyA2C(Flatter, A2C):
    pass


class MyReinforce(Flatter, Reinforce):
    pass


class MyDQN(DQN):
    """Conservative: the values of actions that were not taken fall."""

    def target(self, outputs, rows, rates):
        return 0.5 * super().target(outputs, rows, rates)

    def loss(self, outputs, rows, rates):
        gap = jax.nn.logsumexp(outputs.q, axis=1) - ops.of_action(outputs.q, rows.action)
        return super().loss(outputs, rows, rates).plus(gap.mean(), gap=gap)


class MySAC(SAC):
    def critic_loss(self, outputs, rows, rates):
        spread = outputs.q.std(axis=0).mean()
        return super().critic_loss(outputs, rows, rates).plus(spread, spread=spread, alpha=rates.temperature)


class MyTD3(TD3):
    def actor_loss(self, outputs, rows, rates):
        size = jnp.square(outputs.dist_params).mean()
        return super().actor_loss(outputs, rows, rates).plus(size, size=size)


ON = {"rollout_length": 16, "num_envs": 4}
OFF = {"num_envs": 2, "train_every": 2, "updates_per_log": 8, "warmup": 32, "batch_size": 16, "capacity": 500,
       "total_timesteps": 100}  # fmt: skip
CASES = {
    "ppo": (MyPPO, {"flatness"}, ON | {"minibatches": 3, "epochs": 2}),
    "a2c": (MyA2C, {"flatness"}, ON),
    "reinforce": (MyReinforce, {"flatness"}, {"episodes_per_step": 2, "num_envs": 2, "baseline": "value",
                                              "env_kwargs": ["max_episode_steps=20"]}),
    "dqn": (MyDQN, {"gap"}, OFF),
    "sac": (MySAC, {"spread", "alpha"}, OFF | {"env": "Pendulum-v1", "policy_delay": 2}),
    "td3": (MyTD3, {"size"}, OFF | {"env": "Pendulum-v1"}),
}  # fmt: skip


def trained(algorithm, settings, vectorization):
    small = {"algorithm": algorithm, "engine": "jax", "hidden_sizes": [6], "total_timesteps": 130, "seed": 3}
    made = Experiment.from_flat(small | settings | {"vectorization": vectorization}, "a test")
    assert in_one_program(made) == (vectorization == "jax")
    with open_trainer(made) as trainer:
        logs = [log.learn for log in trainer()]
        return logs, {name: array.copy() for name, array in trainer.agent.model_state.host.items()}


@pytest.mark.default("ppo-jax", "dqn-sync", "reinforce-sync")
@pytest.mark.parametrize("vectorization", ["sync", "jax"])
@pytest.mark.parametrize("algorithm", CASES)
def test_an_own_loss_trains_and_logs_its_metric(algorithm, vectorization, registered):
    mine, metrics, settings = CASES[algorithm]
    register_algorithm(f"my_{algorithm}", like=algorithm, jax=mine)
    logs, params = trained(f"my_{algorithm}", settings, vectorization)
    plain_logs, plain = trained(algorithm, settings, vectorization)
    assert logs[-1].keys() == plain_logs[-1].keys() | metrics
    assert all(np.isfinite(value) for value in logs[-1].values())
    assert not any(logs[-1][name] == 0 for name in metrics)
    assert params.keys() == plain.keys()
    assert any((params[name] != plain[name]).any() for name in params), "the penalty changes nothing"


def test_a_program_with_the_environment_does_not_know_an_own_learn(registered):
    class Slow(PPO):
        def learn(self, batch, progress=0.0):
            return super().learn(batch, progress)

    register_algorithm("slow", like="ppo", jax=Slow)
    register_algorithm("mine", like="ppo", jax=MyPPO)
    assert find_algorithm("slow").fused is None
    assert find_algorithm("mine").fused == find_algorithm("ppo").fused


def policy_state(**settings):
    model = make_policy_value_model(*CHOICES_SPECS, ModelConfig(hidden_sizes=(5,), **settings))
    return ModelState(model, model.init(np.random.default_rng(0)))


CHOICES_SPECS = (CHOICES.obs_spec, CHOICES.action_spec)
ROLLOUT = twins.draw_rollout(np.random.default_rng(0), *CHOICES_SPECS)


@dataclass(frozen=True, kw_only=True)
class BetaConfig(PPOConfig):
    beta: float = 0.5
    beta_end: float | None = None
    beta_schedule: str = "auto"

    def __post_init__(self):
        super().__post_init__()
        settle_rates(self, "beta")


class BetaPPO(PPO):
    RATES = (*PPO.RATES, "beta")
    SCALE = 2.0

    def loss(self, outputs, rows, rates):
        loss = super().loss(outputs, rows, rates)
        return loss.plus(0.0, seen=self.SCALE * rates.beta, spread=jnp.square(self.config.gamma * outputs.value))


def test_own_settings_and_their_schedule_reach_the_loss():
    constant = BetaPPO(policy_state(), CHOICES, BetaConfig()).learn(ROLLOUT, 0.5).log
    assert constant["seen"] == pytest.approx(1.0)
    assert "beta" not in constant
    changing = BetaPPO(policy_state(), CHOICES, BetaConfig(beta_end=0.0)).learn(ROLLOUT, 0.5).log
    assert changing["seen"] == pytest.approx(0.5)
    assert changing["beta"] == pytest.approx(0.25)


def test_the_mean_of_a_metric_omits_rows_that_do_not_count():
    class Counting(A2C):
        def loss(self, outputs, rows, rates):
            return super().loss(outputs, rows, rates).plus(0.0, counted=1.0 * rows.weight, all=rows.weight.mean())

    log = Counting(policy_state(), CHOICES).learn(ROLLOUT).log
    assert not ROLLOUT.valid.all()
    assert log["counted"] == pytest.approx(1.0)
    assert log["all"] == pytest.approx(ROLLOUT.valid.mean())


class Wrong(PPO):
    def loss(self, outputs, rows, rates):
        return super().loss(outputs, rows, rates).value


class Stateful(PPO):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.coef = 0.5

    def loss(self, outputs, rows, rates):
        return super().loss(outputs, rows, rates).plus(self.coef)


def test_a_loss_of_another_type_and_one_that_reads_state_are_refused_by_name():
    with pytest.raises(BadInput, match=r"a loss of Wrong returned .*; expected drl\.Loss\(value, metrics\)"):
        Wrong(policy_state(), CHOICES).learn(ROLLOUT)
    with pytest.raises(AttributeError, match="Stateful has no attribute 'coef'; a compiled loss sees only"):
        Stateful(policy_state(), CHOICES).learn(ROLLOUT)


# ── the state that a learner owns ─────────────────────────────────────────────────────────────────────────────────


def learner_of(algorithm, dropout=0.0, **settings):
    """A small learner and a function that draws its batches."""
    rng, record = np.random.default_rng(0), find_algorithm(algorithm)
    specs = BOX if algorithm in ("sac", "td3", "crossq") else CHOICES
    kinds = {"dqn": (make_q_value_model, QModelConfig), "reinforce": (make_policy_model, ModelConfig)}
    kinds |= dict.fromkeys(("ppo", "a2c"), (make_policy_value_model, ModelConfig))
    kinds |= {"td3": (make_deterministic_actor_critic, ActorCriticConfig)}
    make, kind = kinds.get(algorithm, (make_actor_critic, ActorCriticConfig))
    batch_norm = {"batch_renorm": True} if algorithm == "crossq" else {}
    model = make(specs.obs_spec, specs.action_spec, kind(hidden_sizes=(6, 6), dropout=dropout, **batch_norm))
    state = ModelState(model, model.init(np.random.default_rng(0)))
    classes = {"ppo": PPO, "a2c": A2C, "reinforce": Reinforce, "dqn": DQN, "td3": TD3}
    config = record.config(**{"baseline": "none"} | settings if algorithm == "reinforce" else settings)
    learner = classes.get(algorithm, SAC)(state, specs, config, np.random.default_rng(2))
    draw = {"ppo": twins.draw_rollout, "a2c": twins.draw_rollout, "reinforce": twins.draw_episodes}
    batch = draw.get(algorithm, twins.draw_replay)
    return learner, lambda: batch(rng, specs.obs_spec, specs.action_spec)


KEYS = {
    "ppo": {"optimizer", "rng"},
    "a2c": {"optimizer"},
    "reinforce": {"optimizer", "running_mean"},
    "dqn": {"optimizer", "target", "count", "rng"},
    "sac": {"state", "rng"},
    "td3": {"state", "rng"},
    "crossq": {"state", "rng"},
}


@pytest.mark.default("ppo", "dqn", "sac")
@pytest.mark.parametrize("algorithm", KEYS)
def test_a_learner_finds_its_state_and_continues_from_it(algorithm):
    learner, draw = learner_of(algorithm)
    batches = [draw() for _ in range(4)]
    for batch in batches[:2]:
        learner.learn(batch)
    state = learner.state_dict()
    assert state.keys() == KEYS[algorithm]
    if algorithm == "dqn":
        state["count"] = int(state["count"][""])  # as older checkpoints have it
    again, _ = learner_of(algorithm)
    again.model_state.params = learner.model_state.params
    again.load_state_dict(state)
    for batch in batches[2:]:
        assert again.learn(batch).log == learner.learn(batch).log
    for name, array in learner.model_state.host.items():
        np.testing.assert_array_equal(again.model_state.host[name], array)
    with pytest.raises(UnusableFile, match=r"the state has no '\w+' of \w+; another class has saved it"):
        again.load_state_dict({})


def test_further_arrays_objects_and_numbers_of_a_subclass_are_saved():
    class Curious(PPO):
        STATE = ("visits",)

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.visits, self.table = 0, {"a": np.zeros(3, np.float32)}
            self.other_rng = np.random.default_rng(7)

    one, two = (Curious(policy_state(), CHOICES) for _ in range(2))
    one.visits, one.table = 5, {"a": jnp.arange(3.0)}
    one.other_rng.random(9)
    state = one.state_dict()
    assert state.keys() == {"optimizer", "rng", "other_rng", "table", "visits"}
    two.load_state_dict(state)
    assert two.visits == 5
    np.testing.assert_array_equal(two.table["a"], [0, 1, 2])
    assert two.other_rng.random() == one.other_rng.random()


# ── an algorithm that is like no other ────────────────────────────────────────────────────────────────────────────


class OwnDDPG(Learner):
    """One optimizer for actor and critic; no hand-written state."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.opt_state = self.pure.begin(self.model_state.params).optimizer
        self.target_params = self.model_state.params

    def loss(self, params, target, rows):
        model, fixed = self.model, jax.lax.stop_gradient(params)
        next_q = model.q(target, rows.next_obs, jnp.tanh(model.apply(target, rows.next_obs)))[0].squeeze(1)
        error = rows.reward + rows.discount * next_q - model.q(params, rows.obs, rows.action)[0].squeeze(1)
        value = model.q(fixed, rows.obs, jnp.tanh(model.apply(params, rows.obs)))[0].mean()
        loss = (rows.weight * jnp.square(error)).mean()
        return Loss(loss - value, {"critic_loss": loss, "actor_loss": -value}, priority=jnp.abs(error))

    def learn(self, batch, progress=0.0):
        rate, now = self.learning_rate(progress), (self.model_state.params, self.target_params, self.opt_state)
        parts, logs, priority = own_update(self.pure, *now, ops.replay_rows(batch), np.float32(rate))
        self.model_state.params, self.target_params, self.opt_state = parts
        log = {name: float(value) for name, value in logs.items()}
        return Learned(log | {"learning_rate": rate}, np.asarray(priority))


@partial(jax.jit, static_argnums=0)
def own_update(pure, params, target, opt_state, rows, rate):
    def loss(params):
        return pure.hooks.loss(params, target, rows)

    params, opt_state, result, norm = pure.descend(loss, params, opt_state, rate)
    target = jax.tree.map(lambda old, new: old + pure.config.tau * (new - old), target, params)
    return (params, target, opt_state), result.metrics | {"grad_norm": norm}, result.priority


def test_an_own_algorithm_needs_a_loss_and_learn_and_no_state_dict(registered):
    register_algorithm("own_ddpg", like="ddpg", jax=OwnDDPG)
    assert find_algorithm("own_ddpg").fused is None
    settings = OFF | {"env": "Pendulum-v1", "prioritized": True}
    logs, params = trained("own_ddpg", settings, "sync")
    assert logs[-1].keys() == {"critic_loss", "actor_loss", "grad_norm"}
    assert all(np.isfinite(array).all() for array in params.values())
    model = make_deterministic_actor_critic(BOX.obs_spec, BOX.action_spec, ActorCriticConfig(hidden_sizes=(6,)))
    one, two = (OwnDDPG(ModelState(model, model.init(np.random.default_rng(0))), BOX) for _ in range(2))
    batch = twins.draw_replay(np.random.default_rng(0), BOX.obs_spec, BOX.action_spec)
    one.learn(batch)
    two.model_state.params = one.model_state.params
    assert one.state_dict().keys() == {"opt_state", "target_params", "rng"}
    two.load_state_dict(one.state_dict())
    assert one.learn(batch).log == two.learn(batch).log


# ── optimizers ────────────────────────────────────────────────────────────────────────────────────────────────────

TWINS = {
    "sgd": (torch.optim.SGD, {}),
    "sgd momentum": (torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.9, "eps": 1e-3, "momentum": 0.5, "weight_decay": 0.1}),
    "adam": (torch.optim.Adam, {"betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1, "amsgrad": False}),
    "adamw": (torch.optim.AdamW, {"betas": [0.8, 0.95], "amsgrad": False, "weight_decay": 0.1, "eps": 1e-3}),
    "muon": (getattr(torch.optim, "Muon", None), {"momentum": 0.9, "weight_decay": 0.0}),
}


@pytest.mark.default("rmsprop", "adam", "sgd momentum", "adamw")
@pytest.mark.parametrize("case", TWINS)
def test_optimizers_take_the_arguments_of_pytorch_and_make_its_steps(case):
    kind, kwargs = TWINS[case]
    if kind is None:
        pytest.skip("this PyTorch has no Muon")
    rng = np.random.default_rng(0)
    start = rng.standard_normal((4, 6)).astype(np.float32)
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs = kind([weight], lr=0.02, **kwargs | ({"adjust_lr_fn": "match_rms_adamw"} if case == "muon" else {}))
    config = DQNConfig(optimizer=case.split()[0], optimizer_kwargs=kwargs, max_grad_norm=None, weight_decay=0.5)
    ours = optimizer_of(config)
    params, state = {"weight": start}, ours.init({"weight": start})
    for _ in range(4):
        gradient = rng.standard_normal((4, 6)).astype(np.float32)
        weight.grad = torch.from_numpy(gradient)
        theirs.step()
        params, state, _ = ours.descend(params, state, {"weight": gradient}, 0.02)
    share = 2e-2 if case == "muon" else 1e-5  # PyTorch computes it in bfloat16
    twins.assert_near(params["weight"], weight.detach().numpy(), share)


@pytest.mark.default("dqn")
@pytest.mark.parametrize("algorithm", KEYS)
def test_every_algorithm_takes_every_optimizer_and_saves_its_state(algorithm):
    first, draw = learner_of(algorithm)
    batch, results = draw(), []
    for name in ("sgd", "muon", "optax.lion", lambda rate: optax.chain(optax.trace(0.9), optax.scale(-rate))):
        learner, _ = learner_of(algorithm, optimizer=name)
        learner.learn(batch)
        again, _ = learner_of(algorithm, optimizer=name)
        again.model_state.params = learner.model_state.params
        again.load_state_dict(learner.state_dict())
        assert again.learn(batch).log == learner.learn(batch).log
        results.append(np.concatenate([array.ravel() for array in learner.model_state.host.values()]))
    first.learn(batch)
    results.append(np.concatenate([array.ravel() for array in first.model_state.host.values()]))
    assert all(np.isfinite(result).all() for result in results)
    assert all((one != two).any() for i, one in enumerate(results) for two in results[:i])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": "adam", "optimizer_kwargs": {"beta": 1}},
            "'beta', which adam does not take; expected betas, eps",
        ),
        ({"optimizer": "optax.lyon"}, "'optax.lyon', which Optax does not have; .*lion"),
        ({"optimizer": "optax.lion", "optimizer_kwargs": {"c1": 1}}, "optimizer_kwargs does not fit optax.lion"),
        ({"optimizer": "torch.optim.Adagrad"}, "which is for the PyTorch engine; use --engine torch, or optax.NAME"),
        ({"optimizer": "optax.global_norm"}, "expected an Optax transformation"),
    ],
)
def test_an_optimizer_that_cannot_be_made_is_refused_by_name(settings, message):
    with pytest.raises(BadInput, match=message):
        PPO(policy_state(), CHOICES, PPOConfig(**settings))


def test_optimizers_of_optax_say_what_to_install_without_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    PPO(policy_state(), CHOICES, PPOConfig(optimizer="sgd"))
    with pytest.raises(BadInput, match=r"optimizer muon needs .*'optax'.*; install it with: pip install '.*\[jax\]'"):
        PPO(policy_state(), CHOICES, PPOConfig(optimizer="muon"))


def test_the_rate_of_the_critic_applies_to_an_optax_transformation_too():
    moved = {}
    for rate in (None, 1e-5):
        state = policy_state()
        config = PPOConfig(
            optimizer="optax.sgd", learning_rate=1e-2, critic_learning_rate=rate, epochs=1, minibatches=1
        )
        before = dict(state.host)
        PPO(state, CHOICES, config, np.random.default_rng(0)).learn(ROLLOUT)
        moved[rate] = {name: np.abs(state.host[name] - before[name]).max() for name in before}
    name = "critic.head.weight"
    assert moved[1e-5][name] == pytest.approx(1e-3 * moved[None][name], rel=1e-2)
    assert moved[1e-5]["actor.head.weight"] == pytest.approx(moved[None]["actor.head.weight"], rel=1e-3)


# ── dropout, frozen layers ────────────────────────────────────────────────────────────────────────────────────────


def test_dropout_is_on_with_a_key_only():
    model = make_policy_value_model(*CHOICES_SPECS, ModelConfig(hidden_sizes=(64,), dropout=0.25))
    params, obs = model.init(np.random.default_rng(0)), np.ones((1000, 3), np.float32)
    backbone = model.actor.backbone
    off = backbone.apply({name.removeprefix("actor.backbone."): a for name, a in params.items()}, obs)
    inside = {name.removeprefix("actor.backbone."): a for name, a in params.items()}
    on = np.asarray(backbone.apply(with_dropout(inside, jax.random.PRNGKey(0)), obs))
    assert (on == 0).mean() == pytest.approx(0.25, abs=0.01)
    np.testing.assert_allclose(on[on != 0], np.asarray(off)[on != 0] / 0.75, rtol=1e-5)
    np.testing.assert_allclose(on.mean(axis=0), off[0], atol=0.1)
    policy, value = model.apply(with_dropout(params, jax.random.PRNGKey(0)), obs)
    assert (np.asarray(policy).std(axis=0) > 0).all()  # rows drop other features
    assert np.asarray(value).std() > 0


@pytest.mark.default("dqn")
@pytest.mark.parametrize("algorithm", KEYS)
def test_dropout_changes_updates_but_not_actions(algorithm):
    learners = [learner_of(algorithm, dropout)[0] for dropout in (0.0, 0.5, 0.5)]
    batch = learner_of(algorithm)[1]()
    obs = batch.obs.reshape(-1, 3)
    np.testing.assert_array_equal(learners[0].predict(obs), learners[1].predict(obs))
    logs = [learner.learn(batch).log for learner in learners]
    assert logs[0] != logs[1] == logs[2]
    state = learners[1].state_dict()
    assert "rng" in state
    learners[2].learn(batch)
    learners[2].load_state_dict(state)
    learners[2].model_state.params = learners[1].model_state.params
    assert learners[2].learn(batch).log == learners[1].learn(batch).log


@pytest.mark.full
@pytest.mark.default("a2c")
@pytest.mark.parametrize("algorithm", CASES)
def test_dropout_in_one_program(algorithm):
    settings = CASES[algorithm][2]
    plain, dropped = (trained(algorithm, settings | {"dropout": share}, "jax")[0] for share in (0.0, 0.3))
    assert plain[-1].keys() == dropped[-1].keys()
    assert plain[-1] != dropped[-1]


@pytest.mark.default("ppo-jax", "dqn-sync")
@pytest.mark.parametrize("vectorization", ["sync", "jax"])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_frozen_parameters_stay_as_they_are(algorithm, vectorization):
    """Also under weight decay, which moves parameters without a gradient."""
    patterns = {"ppo": "critic.*", "dqn": "backbone.*.weight", "sac": "*.head.*"}
    settings = CASES[algorithm][2] | {"freeze": [patterns[algorithm]], "optimizer": "adamw"}
    small = {"algorithm": algorithm, "engine": "jax", "hidden_sizes": [6], "total_timesteps": 130, "seed": 3}
    made = Experiment.from_flat(small | settings | {"vectorization": vectorization}, "a test")
    with open_trainer(made) as trainer:
        before = {name: array.copy() for name, array in trainer.agent.model_state.host.items()}
        list(trainer())
        after = trainer.agent.model_state.host
    same = {name for name in before if (before[name] == after[name]).all()}
    beginnings = {"ppo": ("critic.",), "dqn": ("backbone.0.weight",)}
    frozen = {name for name in before if name.startswith(beginnings.get(algorithm, ())) or
              (algorithm == "sac" and ".head." in name)}  # fmt: skip
    assert frozen
    assert same == frozen


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(BadInput, match=r"freeze has 'actor.body.\*', which no parameter matches; there are actor"):
        PPO(policy_state(freeze=("actor.body.*",)), CHOICES)


def test_loss_plus_adds_a_term_and_metrics():
    loss = Loss(1.0, {"a": 1.0}, priority=(2.0,)).plus(0.5, b=3.0)
    assert loss == Loss(1.5, {"a": 1.0, "b": 3.0}, priority=(2.0,))
