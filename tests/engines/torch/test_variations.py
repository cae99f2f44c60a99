"""Variations of the algorithms: losses with new metrics, further state, any optimizer, dropout, frozen parameters."""

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import drl
from drl.algorithms import ALGORITHMS, find_algorithm
from drl.algorithms.ppo import PPOConfig
from drl.core.configs import ModelConfig
from drl.core.contracts import Loss, ReplayBatch
from drl.core.errors import BadInput, UnusableFile
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.torch.algorithms.dqn import DQN
from drl.engines.torch.algorithms.ppo import PPO
from drl.engines.torch.algorithms.sac import SAC
from drl.engines.torch.build import build_learner
from drl.engines.torch.flat_optimizer import FlatOptimizer
from drl.engines.torch.learner_group import SharedGradient, part_of_replay
from drl.runs.building import open_trainer
from drl.settings.experiment import Experiment

OBS, CHOICE, BOX = ObsSpec("box", (3,)), ActionSpec("discrete", sizes=(4,)), ActionSpec("box", low=(-1,), high=(1,))
# The keys of checkpoints that earlier versions have written.
KEYS = {
    "ppo": {"optimizer", "rng"},
    "a2c": {"optimizer"},
    "reinforce": {"optimizer", "running_mean"},
    "dqn": {"optimizer", "target", "rng"},
    "td3": {"critics", "actor", "targets", "target_statistics", "rng"},
    "sac": {"critics", "actor", "targets", "target_statistics", "rng", "temperature"},
    "crossq": {"critics", "actor", "targets", "target_statistics", "rng", "temperature"},
}


def learner_of(algorithm, action_spec=None, model=None, **settings):
    record = find_algorithm(algorithm)
    spec = action_spec or (CHOICE if "discrete" in record.action_spaces else BOX)
    configs = (record.model_config(hidden_sizes=(8, 8), **(model or {})), record.config(**settings))
    return build_learner(algorithm, EnvSpecs(OBS, spec), configs, Seeds(1))[1]


def replay_batch(seed=0, rows=8, box=False):
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, rows, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (rows, 1)).astype(np.float32) if box else rng.integers(4, size=rows)
    reward = rng.normal(size=rows).astype(np.float32)
    ones = np.ones(rows, np.float32)
    return ReplayBatch(obs, action, reward, 0 * ones, 0.9 * ones, next_obs, ones, np.arange(rows))


@dataclass(frozen=True, kw_only=True)
class PullConfig(PPOConfig):
    """PPO whose values are pulled to 0."""

    pull: float = 0.1  # weight of the penalty


class Pulled(PPO):
    """A penalty, and two metrics: one number, and one for each row."""

    def loss(self, outputs, rows, rates):
        penalty = outputs.value.square().mean()
        return (
            super().loss(outputs, rows, rates).plus(self.config.pull * penalty, pull=penalty, size=outputs.value.abs())
        )


@pytest.fixture
def pulled():
    drl.register_algorithm("pulled_ppo", like="ppo", torch=Pulled, config=PullConfig)
    yield "pulled_ppo"
    del ALGORITHMS["pulled_ppo"]


def test_a_variation_trains_logs_its_metrics_and_goes_on(pulled, tmp_path):
    settings = {"num_envs": 2, "rollout_length": 16, "preset": False, "results_dir": str(tmp_path), "seed": 1}
    settings |= {"video": False, "plots": False, "evaluation_episodes": 1, "console": False, "pull": 0.5}
    whole = drl.train(pulled, "CartPole-v1", total_timesteps=128, name="whole", **settings)
    lines = (whole.folder / "progress.csv").read_text().splitlines()
    last = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    assert float(last["learn/pull"]) > 0
    assert float(last["learn/size"]) > 0
    drl.evaluate(whole.folder, episodes=1)
    forked = drl.fork(whole.folder, {"total_timesteps": 192, "pull": 0.1}, console=False)
    assert "env_steps" in (forked.folder / "progress.csv").read_text()


def test_it_has_the_presets_of_its_algorithm_and_stands_in_the_list(pulled):
    from drl.settings.presets import load_preset

    assert load_preset(pulled, "CartPole-v1") == load_preset("ppo", "CartPole-v1") is not None
    assert pulled in drl.list("algorithms").algorithms


def test_an_algorithm_that_nobody_registered_says_what_to_do():
    with pytest.raises(BadInput, match="--plugins MODULE"):
        find_algorithm("pulled_ppo")


def test_wrong_registrations_are_named():
    with pytest.raises(BadInput, match="needs like="):
        drl.register_algorithm("x", torch=Pulled)
    with pytest.raises(BadInput, match="already"):
        drl.register_algorithm("dqn", like="ppo", torch=Pulled)
    with pytest.raises(BadInput, match="no method learn"):
        drl.register_algorithm("x", like="ppo", torch=nn.Linear)
    with pytest.raises(BadInput, match="subclass of DQNConfig"):
        drl.register_algorithm("x", like="dqn", torch=DQN, config=PullConfig)
    with pytest.raises(BadInput, match="summary"):
        drl.register_algorithm("x", like="dqn", torch=DQN, summery="")


def test_metrics_of_replayed_rows_and_a_target_of_ones_own():
    class Halved(DQN):
        def target(self, outputs, rows, rates):
            return 0.5 * super().target(outputs, rows, rates)

        def loss(self, outputs, rows, rates):
            return (
                super().loss(outputs, rows, rates).plus(0.0, mean_target=outputs.target, rows=float(len(rows.reward)))
            )

    plain = learner_of("dqn")
    halved = Halved(plain.model, EnvSpecs(OBS, CHOICE), plain.config)
    learned = halved.learn(replay_batch())
    assert learned.log["rows"] == 8.0
    assert learned.priority.shape == (8,)
    batch = replay_batch()
    with torch.no_grad():
        next_q = plain.target_network(torch.from_numpy(batch.next_obs)).amax(dim=1).numpy()
    assert learned.log["mean_target"] == pytest.approx(0.5 * (batch.reward + 0.9 * next_q).mean(), rel=1e-5)


def test_the_losses_of_an_actor_critic_are_overridden_one_by_one():
    class Small(SAC):
        def actor_loss(self, outputs, rows, rates):
            size = outputs.action.square().mean()
            return super().actor_loss(outputs, rows, rates).plus(size, action_size=size)

        def critic_loss(self, outputs, rows, rates):
            return super().critic_loss(outputs, rows, rates).plus(0.0, alpha=rates.temperature.squeeze())

    plain = learner_of("sac", BOX)
    log = Small(plain.model, EnvSpecs(OBS, BOX), plain.config).learn(replay_batch(box=True)).log
    assert log["action_size"] > 0
    assert log["alpha"] == pytest.approx(plain.config.temperature)


def test_metrics_that_change_are_an_error():
    count = []

    def loss(model, obs):
        count.append(1)
        value = model(obs).square().mean()
        return Loss(value, {"loss": value} if len(count) == 1 else {"other": value})

    optimizer = FlatOptimizer(nn.Linear(3, 1), loss)
    optimizer.step(0.1, torch.ones(2, 3))
    with pytest.raises(BadInput, match="metrics loss and now other"):
        optimizer.step(0.1, torch.ones(2, 3))


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_metrics_of_a_compiled_update_have_their_names():
    def loss(model, obs):
        value = model(obs).square().mean()
        return Loss(value, {"loss": value}, priority=model(obs)[:, 0]).plus(value, twice=2 * value)

    optimizer = FlatOptimizer(nn.Linear(3, 1), loss, compiled=True)
    step = optimizer.step(0.1, torch.ones(2, 3))
    assert step.metrics["twice"] == pytest.approx(2 * step.metrics["loss"])
    assert step.priority.shape == (2,)


def test_learners_share_metrics_that_a_variation_adds():
    """Two learners and one without rows: the sum of their messages is what one learner computes."""

    class Group:
        size, broken = 3, None

    class More(DQN):
        def loss(self, outputs, rows, rates):
            return super().loss(outputs, rows, rates).plus(0.0, best=outputs.q.amax(dim=1).mean())

    plain = learner_of("dqn")
    learners = [More(learner_of("dqn").model, EnvSpecs(OBS, CHOICE), plain.config) for _ in range(4)]
    from drl.engines.torch import ops

    rows = ops.replay_rows(replay_batch(rows=2), torch.device("cpu"))
    messages = []
    for rank, learner in enumerate(learners[:3]):
        shared = SharedGradient(Group, part_of_replay)
        inputs = (rows, learner.rates_at(0.0))
        messages.append(shared._message(learner.optimizer, part_of_replay(inputs, rank, 3), inputs))
    whole = learners[3].optimizer
    metrics, errors, _ = whole.gradient((rows, learners[3].rates_at(0.0)))
    numbers = [whole.gradients, metrics["loss"][None], metrics["best"][None], metrics["mean_q"], errors]
    torch.testing.assert_close(sum(messages), torch.cat(numbers))


# ── state ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("algorithm", KEYS)
def test_the_state_has_the_keys_of_earlier_versions(algorithm):
    assert learner_of(algorithm).state_dict().keys() == KEYS[algorithm]


class Curious(DQN):
    """With everything that a state can hold."""

    STATE = ("rounds",)

    def __init__(self, *parts, **options):
        super().__init__(*parts, **options)
        self.predictor = nn.Linear(3, 2)  # trained
        self.fixed = nn.Linear(3, 2)
        self.predictor_optimizer = self.make_optimizer(self.predictor, lambda net, obs: Loss(net(obs).mean(), {}))
        self.scale, self.draws, self.rounds = torch.zeros(2), torch.Generator().manual_seed(7), 0

    def learn(self, batch, progress=0.0):
        self.rounds += 1
        self.scale += torch.rand(2, generator=self.draws)
        self.predictor_optimizer.step(0.1, torch.from_numpy(batch.obs))
        return super().learn(batch, progress)


def test_the_base_class_finds_the_state():
    first, second = (Curious(learner_of("dqn").model, EnvSpecs(OBS, CHOICE)) for _ in range(2))
    first.learn(replay_batch())
    more = {"predictor_optimizer", "fixed", "scale", "draws", "rounds"}
    assert first.state_dict().keys() == KEYS["dqn"] | more
    second.load_state_dict(first.state_dict())
    second.model.load_state_dict(first.model.state_dict())
    for learner in (first, second):
        learner.learn(replay_batch(1))
    assert second.rounds == 2
    assert torch.equal(first.scale, second.scale)
    assert torch.equal(first.predictor.weight, second.predictor.weight)
    assert torch.equal(first.fixed.weight, second.fixed.weight)
    with pytest.raises(UnusableFile, match="no 'draws'"):
        second.load_state_dict(learner_of("dqn").state_dict())


# ── optimizers ────────────────────────────────────────────────────────────────────────────────────────────────────


def nadam(parameters, beta=0.9):
    return torch.optim.NAdam(parameters, betas=(beta, 0.99))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "muon", "torch.optim.NAdam", nadam])
@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_every_optimizer_learns_and_goes_on_where_it_was(algorithm, optimizer):
    box = algorithm == "sac"
    first, second = (learner_of(algorithm, BOX if box else CHOICE, optimizer=optimizer) for _ in range(2))
    before = first.predict(np.ones((1, 3), np.float32))
    first.learn(replay_batch(box=box))
    assert not np.array_equal(before, first.predict(np.ones((1, 3), np.float32)))
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(first.state_dict())
    for learner in (first, second):
        learner.learn(replay_batch(1, box=box))
    torch.testing.assert_close(first.model.state_dict(), second.model.state_dict(), rtol=0, atol=0)


def test_an_optimizer_of_torch_is_the_one_of_torch():
    learner = learner_of("dqn", optimizer=torch.optim.NAdam, optimizer_kwargs={"betas": [0.8, 0.9]}, max_grad_norm=None)
    assert (learner.config.optimizer, learner.config.optimizer_kwargs) == ("torch.optim.NAdam", ("betas=[0.8, 0.9]",))
    reference = nn.Linear(3, 1)
    flat = learner.make_optimizer(model := nn.Linear(3, 1), lambda net, obs: Loss(net(obs).square().mean(), {}))
    model.load_state_dict(reference.state_dict())
    theirs, obs = torch.optim.NAdam(reference.parameters(), lr=0.01, betas=(0.8, 0.9)), torch.ones(2, 3)
    for _ in range(3):
        flat.step(0.01, obs)
        theirs.zero_grad()
        reference(obs).square().mean().backward()
        theirs.step()
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_a_rate_of_the_critics_own_reaches_any_optimizer():
    learner = learner_of("ppo", optimizer="sgd", critic_learning_rate=0.1, learning_rate=0.01)
    groups = learner.optimizer.rule.made[0].param_groups
    learner.optimizer.rule.step(0.02, 1)
    assert sorted(group["lr"] for group in groups) == pytest.approx([0.02, 0.2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adma"}, "adam"),
        ({"optimizer": "torch.optim.NAdan"}, "NAdam"),
        ({"optimizer": "optax.lion"}, "JAX"),
        ({"optimizer": "torch.optim.LBFGS"}, "several times"),
        ({"optimizer": "os.system"}, "--plugins"),
        ({"optimizer": "sgd", "optimizer_kwargs": {"momentun": 0.9}}, "momentun"),
        ({"optimizer": lambda parameters: "x"}, "torch.optim.Optimizer"),
    ],
)
def test_wrong_optimizers_are_named(settings, message):
    with pytest.raises(BadInput, match=message):
        learner_of("dqn", **settings)


# ── dropout, frozen parameters ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_dropout_is_on_in_updates_and_off_in_acting(algorithm):
    box, ones = algorithm == "sac", np.ones((1, 3), np.float32)
    spec, shares = (BOX if box else CHOICE), (0.0, 0.5, 0.5)
    plain, dropping, again = (learner_of(algorithm, spec, {"dropout": share}) for share in shares)
    assert np.array_equal(plain.predict(ones), dropping.predict(ones))
    before = torch.random.get_rng_state()
    for learner in (plain, dropping, again):
        learner.learn(replay_batch(box=box))
    assert torch.equal(before, torch.random.get_rng_state())
    assert not np.array_equal(plain.predict(ones), dropping.predict(ones))
    assert np.array_equal(dropping.predict(ones), again.predict(ones))


def test_dropout_of_ones_own_model():
    class Own(nn.Sequential):
        variant = "q_value"

    torch.manual_seed(0)
    model = Own(nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    learner = DQN(model, EnvSpecs(OBS, CHOICE))
    seen = []
    model[1].register_forward_hook(lambda part, inputs, output: seen.append(part.training))
    learner.predict(np.ones((1, 3), np.float32))
    learner.learn(replay_batch())
    assert seen == [False, True]


def test_frozen_parameters_stay():
    learner = learner_of("ppo", model={"freeze": ("actor.backbone.*", "critic.*.bias")})
    moving = {name for name, parameter in learner.model.named_parameters() if parameter.requires_grad}
    assert any(name.startswith("critic") for name in moving)
    assert not any(name.startswith("actor.backbone.") for name in moving)
    assert not any(name.startswith("critic") and name.endswith("bias") for name in moving)
    with pytest.raises(BadInput, match="which no parameter matches"):
        learner_of("ppo", model={"freeze": ("nothing.*",)})
    with pytest.raises(BadInput, match="frozen"):
        learner_of("ppo", model={"freeze": ("*",)})


def test_a_run_with_dropout_and_frozen_layers_repeats(tmp_path):
    flat = {"algorithm": "ppo", "env": "CartPole-v1", "num_envs": 2, "rollout_length": 8, "total_timesteps": 48}
    flat |= {"dropout": 0.2, "freeze": ["critic.backbone.0.*"], "optimizer": "muon", "hidden_sizes": [8, 8]}
    results = []
    for _ in range(2):
        with open_trainer(Experiment.from_flat(flat, "test")) as trainer:
            results.append([log["policy_loss"] for log in trainer()])
    assert results[0] == results[1]
    assert ModelConfig(dropout=0.0).dropout == 0.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda loss, outputs: loss + 1, r"write loss\.plus\(term, name=metric\)"),
        (lambda loss, outputs: loss.plus(outputs.q.mean(dim=1)), r"has the shape \(8,\); expected a scalar"),
        (lambda loss, outputs: loss.value, r"a loss of Wrong returned tensor.*expected drl\.Loss\(value, metrics\)"),
    ],
)
def test_a_wrong_loss_is_explained(wrong, said):
    class Wrong(DQN):
        def loss(self, outputs, rows, rates):
            return wrong(super().loss(outputs, rows, rates), outputs)

    learner = Wrong(learner_of("dqn").model, EnvSpecs(OBS, CHOICE))
    with pytest.raises(BadInput, match=said):
        learner.learn(replay_batch())


def test_the_learning_rate_is_not_an_argument_of_an_optimizer():
    with pytest.raises(BadInput, match=r"optimizer_kwargs has lr.*use learning_rate"):
        PPOConfig(optimizer_kwargs={"lr": 0.1})


@pytest.mark.full
def test_a_run_names_the_module_of_its_algorithm(tmp_path, monkeypatch):
    """So that another process can resume it; and `drl list` can show it."""
    code = "import drl\nfrom drl.torch import A2C\nclass Mine(A2C): pass\n"
    (tmp_path / "mine_of_a_user.py").write_text(code + 'drl.register_algorithm("mine", like="a2c", torch=Mine)\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_of_a_user  # noqa: F401

    settings = {"num_envs": 2, "hidden_sizes": (8,), "total_timesteps": 64, "quiet": True, "console": False}
    run = drl.train("mine", "CartPole-v1", **settings, plots=False, video=False, evaluation_episodes=1)
    del ALGORITHMS["mine"]
    assert "plugins:\n- mine_of_a_user\n" in (run.folder / "config.yaml").read_text()
    listed = [sys.executable, "-m", "drl.cli.entry", "list", "algorithms", "--plugins", "mine_of_a_user"]
    assert "mine" in subprocess.run(listed, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
