"""DDPG, TD3, SAC, TQC and CrossQ: every update against one in float64 that is written from the definitions."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import distributions as td
from torch import nn
from torch.nn import functional as F

from drl.algorithms import ALGORITHMS
from drl.core.contracts import ReplayBatch
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, Distribution, EnvSpecs, ObsSpec
from drl.engines.numpy.distributions import UpdateDraws, draw_update
from drl.engines.torch import ops
from drl.engines.torch.actor_critics import critic_errors, critic_target, reduced
from drl.engines.torch.build import build_learner
from drl.engines.torch.layers import BatchRenorm
from drl.testing import oracles

OBS = ObsSpec("box", (3,))
BOX = ActionSpec("box", shape=(2,), low=(-2.0, 0.0), high=(2.0, 10.0), dtype="float32")
CHOICES = ActionSpec("discrete", sizes=(4,))
ROWS = 16
ALL = ("ddpg", "td3", "sac", "tqc", "crossq")


def make(algorithm, spec=BOX, model=None, compiled=False, **config):
    """A learner with networks that have opinions, and steps that do not depend on the sign of a tiny gradient."""
    record = ALGORITHMS[algorithm]
    sizes = {"hidden_sizes": (8, 8), "critic_hidden_sizes": (8, 8), "num_atoms": 5, "v_min": -3.0, "v_max": 3.0}
    model_config = record.model_config(**sizes | (model or {}))
    configs = (model_config, record.config(**{"learning_rate": 0.01, "adam_eps": 1e-3} | config))
    agent, learner = build_learner(algorithm, EnvSpecs(OBS, spec), configs, Seeds(0), compile_update=compiled)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for optimizer in (learner.critic_optimizer, learner.actor_optimizer):
            optimizer.values.add_(0.2 * torch.randn(optimizer.values.shape, generator=generator))
    learner.sync_target()
    return agent, learner


def draw_batch(spec=BOX, seed=0, masked=False, rows=ROWS):
    rng, f = np.random.default_rng(seed), np.float32
    action = rng.integers(4, size=rows) if spec is CHOICES else rng.uniform(-1, 1, (rows, 2)).astype(f)
    masks = rng.random((2, rows, 4)) < 0.5
    masks[0, np.arange(rows), action if spec is CHOICES else 0] = masks[1, :, 2] = True
    return ReplayBatch(
        obs=rng.standard_normal((rows, 3), f),
        action=action,
        reward=rng.standard_normal(rows, f),
        terminated=(rng.random(rows) < 0.3).astype(f),
        discount=rng.choice([0.9, 0.81, 0.729], rows).astype(f),
        next_obs=rng.standard_normal((rows, 3), f),
        weight=rng.random(rows, f),
        index=np.arange(rows),
        next_action_mask=masks[1] if masked else None,
        action_mask=masks[0] if masked else None,
    )


# ── the reference ─────────────────────────────────────────────────────────────────────────────────────────────────


class PlainRenorm(nn.Module):
    """Batch normalization by PyTorch, with corrections from the oracle, that keeps its own statistics."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(p.detach().clone()) for p in (norm.weight, norm.bias))
        self.mean, self.var = norm.running_mean.clone(), norm.running_var.clone()
        self.count, self.warmup = 0, norm.warmup

    def forward(self, x, seen=None):
        if seen is None:
            return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, False, eps=1e-3)
        scale, shift = 1.0, 0.0
        if self.count >= self.warmup:
            corrections = oracles.renorm_corrections(x.detach().numpy(), self.mean.numpy(), self.var.numpy())
            scale, shift = (torch.tensor(part) for part in corrections)
        self.mean = 0.99 * self.mean + 0.01 * x.detach().mean(0)
        self.var = 0.99 * self.var + 0.01 * x.detach().var(0, correction=0)
        self.count += 1
        return (F.batch_norm(x, None, None, training=True, eps=1e-3) * scale + shift) * self.weight + self.bias


class Reference:
    """The learner's update in float64: targets and losses row by row, torch.optim and torch.distributions."""

    def __init__(self, learner, spec):
        self.config, self.spec = learner.config, spec
        self.soft = hasattr(learner, "temperature")
        self.actor, self.critics = (copy.deepcopy(part).double() for part in (learner.actor, learner.critics))
        for critic in self.critics:
            if hasattr(critic.backbone, "norms"):
                critic.backbone.norms = nn.ModuleList(PlainRenorm(norm) for norm in critic.backbone.norms)
        self.target, self.target_actor = copy.deepcopy(self.critics), copy.deepcopy(self.actor)
        config = self.config
        options = {"lr": config.learning_rate, "betas": (config.adam_beta1, 0.999), "eps": config.adam_eps}
        decays = {"weight_decay": config.weight_decay} if config.optimizer == "adamw" else {}
        kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
        self.critic_optimizer = kind(self.critics.parameters(), **options, **decays)
        rate = config.actor_learning_rate or config.learning_rate
        self.actor_optimizer = kind(self.actor.parameters(), **options | {"lr": rate}, **decays)
        self.updates = 0
        if self.soft:
            self.log_alpha = torch.tensor([math.log(config.temperature)], dtype=torch.float64, requires_grad=True)
            rate = config.temperature_learning_rate or config.learning_rate
            self.alpha_optimizer = torch.optim.Adam([self.log_alpha], rate, eps=config.adam_eps)

    @property
    def alpha(self):
        return self.log_alpha.exp().item() if self.soft else 0.0

    def policy(self, params, noise):
        """An action and its log-probability."""
        if not self.soft:
            return torch.tanh(params), torch.zeros(len(params))
        mean, log_std = params.chunk(2, dim=-1)
        normal = td.Independent(td.Normal(mean, log_std.exp()), 1)
        squashed = td.TransformedDistribution(normal, td.TanhTransform(cache_size=1))
        action = torch.tanh(mean + log_std.exp() * noise)
        return action, squashed.log_prob(action)

    def next_action(self, batch, noise):
        config, obs = self.config, torch.tensor(batch.next_obs).double()
        with torch.no_grad():
            if self.soft:
                return self.policy(self.actor(obs), noise)
            action, nothing = self.policy((self.target_actor if config.target_network else self.actor)(obs), noise)
            smooth = (config.target_noise * noise).clamp(-config.target_noise_clip, config.target_noise_clip)
            return (action + smooth).clamp(-1, 1), nothing

    def goal(self, batch, row, answers, log_prob, logits):
        """What the critics should answer in one row, from those of the next state [M, A] or [M, A, atoms]."""
        config, kind = self.config, self.critics.head.kind
        reward = config.reward_scale * float(batch.reward[row])
        continues = 0.0 if batch.terminated[row] else float(batch.discount[row])
        pick = np.mean if config.target_q == "mean" else np.min
        if self.spec is CHOICES:
            legal = None if batch.next_action_mask is None else batch.next_action_mask[row]
            return reward + continues * oracles.soft_value(pick(answers, axis=0), logits, self.alpha, legal)[0]
        answers, bonus = answers[:, 0], -self.alpha * float(log_prob)
        if kind == "qr":
            kept = oracles.pooled_quantiles(answers, getattr(config, "quantiles_to_drop", 0))
            return np.array([reward + continues * (sample + bonus) for sample in kept])
        if kind == "c51":
            support = self.critics.head.support.numpy()
            probs = np.exp(answers) / np.exp(answers).sum(axis=1, keepdims=True)
            lowest = min(range(len(probs)), key=lambda critic: float(probs[critic] @ support))
            chosen = probs.mean(axis=0) if config.target_q == "mean" else probs[lowest]
            return oracles.c51_projection(chosen, reward + continues * bonus, continues, support)
        return reward + continues * (pick(answers) + bonus)

    def loss(self, answer, goal):
        """Of one critic in one row, through which gradients flow; `oracles` gives the same number."""
        kind, penalty = self.critics.head.kind, F.huber_loss if self.config.loss == "huber" else F.mse_loss
        half = 1.0 if self.config.loss == "huber" else 0.5
        if kind == "c51":
            loss = F.cross_entropy(answer[None], torch.tensor(goal)[None])
            return loss, loss.item()
        goal = torch.tensor(goal, dtype=torch.float64)
        if kind == "none":
            return half * penalty(answer, goal), abs((goal - answer).item())
        total = 0.0
        for i, quantile in enumerate(answer):
            for sample in goal:
                share = abs((i + 0.5) / len(answer) - float(sample < quantile)) / len(goal)
                total = total + share * half * penalty(quantile, sample)
        expected = oracles.quantile_loss(answer.detach().numpy(), goal.numpy(), self.config.loss)
        assert total.item() == pytest.approx(expected)
        return total, expected

    def learn(self, batch, draws):
        config = self.config
        obs, next_obs = torch.tensor(batch.obs).double(), torch.tensor(batch.next_obs).double()
        noise, next_noise = (torch.tensor(part).double() for part in (draws.noise, draws.next_noise))
        action = next_action = log_prob = None
        if self.spec is BOX:
            action = torch.tensor(batch.action).double()
            next_action, log_prob = self.next_action(batch, next_noise)
        logits = self.actor(next_obs).detach().numpy()
        if config.target_network:
            there, here = self.target(next_obs, next_action), self.critics(obs, action, [])
        else:
            joined = None if action is None else torch.cat([action, next_action])
            here, there = self.critics(torch.cat([obs, next_obs]), joined, []).chunk(2, dim=1)
        there, losses, priority = there.detach().numpy()[draws.subset], [], []
        for row in range(len(batch.reward)):
            goal = self.goal(batch, row, there[:, row], None if log_prob is None else log_prob[row], logits[row])
            taken = int(batch.action[row]) if self.spec is CHOICES else 0
            each = [self.loss(answer[row, taken], goal) for answer in here]
            losses.append(float(batch.weight[row]) * sum(loss for loss, _ in each))
            priority.append(np.mean([size for _, size in each]))
        loss = sum(losses) / len(losses)
        self._descend(self.critic_optimizer, self.critics, loss)
        self.updates += 1
        log = {"critic_loss": loss.item(), "mean_error": np.mean(priority)}
        if self.updates % config.policy_delay == 0:
            log |= self.improve(obs, noise, batch.action_mask)
        if self.updates % config.target_every == 0:
            self._move(self.target, self.critics)
            self._move(self.target_actor, self.actor)
        return log, np.array(priority)

    def improve(self, obs, noise, legal):
        how, params = self.config.actor_q, self.actor(obs)
        pick = {"min": lambda q: q.amin(0), "mean": lambda q: q.mean(0), "first": lambda q: q[0]}[how]
        if self.spec is CHOICES:
            q = pick(self.critics(obs))
            mask = torch.ones_like(q, dtype=torch.bool) if legal is None else torch.tensor(legal)
            values, entropies = [], []
            for row in range(len(q)):
                policy = td.Categorical(logits=params[row, mask[row]])
                values.append(policy.probs @ q[row, mask[row]])
                entropies.append(policy.entropy())
            value, entropy = torch.stack(values), torch.stack(entropies)
        else:
            action, log_prob = self.policy(params, noise)
            answers, head = self.critics(obs, action)[:, :, 0], self.critics.head
            if head.kind == "c51":
                answers = (answers.softmax(-1) * head.support).sum(-1)
            value, entropy = pick(answers.mean(-1) if head.kind == "qr" else answers), -log_prob
        loss = -(value + self.alpha * entropy).mean()
        self._descend(self.actor_optimizer, self.actor, loss)
        log = {"actor_loss": loss.item()}
        if not self.soft:
            return log
        if self.config.learn_temperature:
            self.alpha_optimizer.zero_grad()
            goal = self.config.entropy_goal(self.spec)
            if legal is not None:  # per row, of what is legal there
                goal = np.mean([0.98 * math.log(count) for count in np.count_nonzero(legal, axis=1)])
            (self.log_alpha * (entropy.mean().item() - goal)).sum().backward()
            self.alpha_optimizer.step()
        return log | {"entropy": entropy.mean().item(), "temperature": self.alpha}

    def _descend(self, optimizer, module, loss):
        optimizer.zero_grad()
        loss.backward()
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), self.config.max_grad_norm)
        optimizer.step()

    def _move(self, target, online):
        for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
            mine.data += self.config.tau * (theirs.data - mine.data)
        for mine, theirs in zip(target.modules(), online.modules(), strict=True):
            if isinstance(mine, PlainRenorm):
                mine.mean, mine.var = theirs.mean, theirs.var


CASES = {
    "ddpg": ("ddpg", BOX, {}, {}),
    "ddpg without a target": ("ddpg", BOX, {}, {"target_network": False, "loss": "huber"}),
    "td3": ("td3", BOX, {}, {"target_noise_clip": 0.1, "target_noise": 0.8, "tau": 0.3}),
    "td3 of a large policy": ("td3", BOX, {"layer_norm": True}, {"actor_learning_rate": 0.003, "target_every": 2}),
    "td3 c51": ("td3", BOX, {"distributional": "c51"}, {"actor_q": "mean"}),
    "sac": ("sac", BOX, {}, {}),
    "sac, all settings": (
        "sac", BOX, {"num_critics": 5},
        {"critic_subset": 2, "actor_q": "mean", "reward_scale": 0.2, "policy_delay": 2, "tau": 0.4, "target_every": 3,
         "temperature": 0.3, "temperature_learning_rate": 0.05, "target_entropy": 1.0, "max_grad_norm": 0.5},
    ),
    "sac, mean": ("sac", BOX, {"num_critics": 3}, {"target_q": "mean", "actor_q": "first", "loss": "huber"}),
    "sac, fixed temperature": ("sac", BOX, {}, {"learn_temperature": False, "temperature": 0.7}),
    "sac, simba": ("sac", BOX, {"backbone": "simba"}, {"optimizer": "adamw", "weight_decay": 0.5}),
    "sac, c51, min": ("sac", BOX, {"distributional": "c51", "num_critics": 3}, {}),
    "sac, c51, mean": ("sac", BOX, {"distributional": "c51"}, {"target_q": "mean", "reward_scale": 3.0}),
    "sac, quantiles": ("sac", BOX, {"distributional": "qr"}, {"actor_q": "mean"}),
    "tqc": ("tqc", BOX, {"num_critics": 3}, {}),
    "tqc, a subset": ("tqc", BOX, {"num_critics": 3}, {"critic_subset": 2, "quantiles_to_drop": 1}),
    "discrete sac": ("sac", CHOICES, {}, {}),
    "discrete sac, masked": ("sac", CHOICES, {"num_critics": 3}, {"critic_subset": 2, "target_q": "mean"}),
    "discrete sac, no target, masked": ("sac", CHOICES, {}, {"target_network": False, "actor_q": "first"}),
    "crossq": ("crossq", BOX, {}, {"policy_delay": 2}),
    "crossq, corrected": ("crossq", BOX, {"renorm_warmup": 2}, {"policy_delay": 1}),
    "crossq, corrected from the start": ("crossq", BOX, {"renorm_warmup": 0}, {"policy_delay": 1}),
    "crossq with a target": ("crossq", BOX, {"renorm_warmup": 1}, {"target_network": True, "tau": 0.5}),
    "discrete crossq, masked": ("crossq", CHOICES, {}, {"policy_delay": 1}),
    "ddpg with batch renormalization": ("ddpg", BOX, {"batch_renorm": True, "renorm_warmup": 1}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_what_the_definitions_say(case):
    algorithm, spec, model, config = CASES[case]
    _, learner = make(algorithm, spec, model, **config)
    reference, rng = Reference(learner, spec), copy.deepcopy(learner.rng)
    count, subset = len(learner.critics), learner.config.critic_subset or len(learner.critics)
    for seed in range(4):
        batch = draw_batch(spec, seed, masked="masked" in case)
        draws = draw_update(rng, ROWS, learner.distribution.entries, count, subset)
        learned, (log, priority) = learner.learn(batch), reference.learn(batch, draws)
        assert {name: learned.log[name] for name in log} == pytest.approx(log, rel=1e-4, abs=1e-4)
        assert ("actor_loss" in learned.log) == ("actor_loss" in log)
        np.testing.assert_allclose(learned.priority, priority, rtol=1e-4, atol=1e-4)
    pairs = [(learner.critics, reference.critics), (learner.actor, reference.actor)]
    if learner.config.target_network:
        pairs.append((learner.target_critics.module, reference.target))
    if learner.target_actor is not None:
        pairs.append((learner.target_actor.module, reference.target_actor))
    for mine, theirs in pairs:
        for (name, one), two in zip(mine.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-4, msg=lambda text, n=name: f"{n} {text}")
    for norm, plain in zip(learner.critics.norms(), reference.critics.norms(), strict=True):
        assert norm.count.item() == plain.count == 4
        torch.testing.assert_close(norm.running_mean.double(), plain.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(norm.running_var.double(), plain.var, rtol=1e-4, atol=1e-5)


# ── the parts by themselves ───────────────────────────────────────────────────────────────────────────────────────


def test_targets_and_errors_of_single_rows():
    """One termination and one step of n = 2, by hand."""
    _, learner = make("sac", model={"num_critics": 3})
    head, config = learner.critics.head, learner.config
    rows = ops.replay_rows(draw_batch(rows=2), torch.device("cpu"))
    rows = rows._replace(reward=torch.tensor([1.0, 2.0]), discount=torch.tensor([0.0, 0.81]))
    answers, bonus = torch.tensor([[5.0, 3.0], [4.0, 9.0], [6.0, 6.0]]), torch.tensor([7.0, -1.0])
    goal = critic_target(head, answers, bonus, rows, config)
    torch.testing.assert_close(goal, torch.tensor([1.0, 2.0 + 0.81 * (3.0 - 1.0)]))
    mean = critic_target(head, answers, bonus, rows, replace(config, target_q="mean"))
    torch.testing.assert_close(mean, torch.tensor([1.0, 2.0 + 0.81 * (6.0 - 1.0)]))
    losses, errors = critic_errors(head, answers, goal, "huber")
    torch.testing.assert_close(errors, (goal - answers).abs())
    torch.testing.assert_close(losses[0, 0], torch.tensor(3.5))
    assert [reduced(answers, how).tolist() for how in ("min", "mean", "first")] == [[4, 3], [5, 6], [5, 3]]


def test_the_largest_quantiles_of_all_critics_together_are_dropped():
    """Not the largest of each: here one critic loses nothing, the other four of its five."""
    _, learner = make("tqc", model={"num_critics": 2})
    rows = ops.replay_rows(draw_batch(rows=1), torch.device("cpu"))
    rows = rows._replace(reward=torch.zeros(1), discount=torch.ones(1))
    answers = torch.tensor([[[0.0, 1.0, 2.0, 3.0, 4.0]], [[3.5, 40.0, 30.0, 20.0, 10.0]]])
    goal = critic_target(learner.critics.head, answers, torch.zeros(1), rows, learner.config, to_drop=2)
    assert goal.tolist() == [[0.0, 1.0, 2.0, 3.0, 3.5, 4.0]]


SQUASHED = Distribution("tanh_gaussian", (), 1)


def test_log_probabilities_equal_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    mean, log_std, noise = (torch.randn(200, 1, generator=generator, dtype=torch.float64) for _ in range(3))
    action, log_prob = ops.sample_with_log_prob(SQUASHED, torch.cat([mean, log_std], 1), noise)
    theirs = td.TransformedDistribution(td.Normal(mean, log_std.exp()), td.TanhTransform())
    inside = action.abs() < 1 - 1e-9  # beyond, atanh has lost its digits; the oracle has the value before tanh
    torch.testing.assert_close(log_prob[:, None][inside], theirs.log_prob(action)[inside], rtol=1e-5, atol=1e-5)
    for row in range(200):
        expected = oracles.squashed_gaussian(*(part[row].numpy() for part in (mean, log_std, noise)))
        np.testing.assert_allclose(action[row], expected[0])
        assert log_prob[row].item() == pytest.approx(expected[1], rel=1e-9)


@pytest.mark.parametrize("mean", [-100.0, -10.0, 0.0, 10.0, 100.0])
@pytest.mark.parametrize("noise", [-10.0, 0.0, 10.0])
@pytest.mark.parametrize("log_std", [-20.0, 0.0, 2.0])
def test_the_correction_for_tanh_stays_finite(mean, noise, log_std):
    """In value and gradient, in float32, where 1 − tanh² is 0; and it is exact there: log 4 − 2|x|."""
    params = torch.tensor([[mean, log_std]], requires_grad=True)
    action, log_prob = ops.sample_with_log_prob(SQUASHED, params, torch.tensor([[noise]]))
    gradient = torch.autograd.grad(action.sum() + log_prob.sum(), params)[0]
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(gradient).all()
    value = mean + math.exp(log_std) * noise
    slope = math.log(4) - 2 * abs(value) - 2 * math.log1p(math.exp(-2 * abs(value)))
    expected = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) - slope
    assert log_prob.item() == pytest.approx(expected, rel=1e-5, abs=1e-4)
    # d/dx of −log(1 − tanh²) is 2 tanh(x)
    assert gradient[0, 0].item() == pytest.approx(2 * math.tanh(value) + 1 - math.tanh(value) ** 2, abs=1e-5)


@pytest.mark.parametrize(("goal", "rises"), [(-50.0, False), (50.0, True)])
def test_the_temperature_follows_the_entropy(goal, rises):
    """Adam's first step is a whole learning rate in log α: down where there is more entropy than wanted."""
    _, learner = make("sac", target_entropy=goal, temperature=0.5, temperature_learning_rate=0.1, adam_eps=1e-8)
    log = learner.learn(draw_batch()).log
    step = 0.1 if rises else -0.1
    assert log["temperature"] == pytest.approx(0.5 * math.exp(step), rel=1e-5)
    # The second step by hand.
    gradients = [log["entropy"] - goal, learner.learn(draw_batch(seed=1)).log["entropy"] - goal]
    first = 0.9 * 0.1 * gradients[0] + 0.1 * gradients[1]
    second = 0.999 * 0.001 * gradients[0] ** 2 + 0.001 * gradients[1] ** 2
    step -= 0.1 * first / (1 - 0.9**2) / math.sqrt(second / (1 - 0.999**2))
    assert learner.temperature.log_alpha.item() == pytest.approx(math.log(0.5) + step, rel=1e-5)


def test_a_fixed_temperature_stays():
    _, learner = make("sac", learn_temperature=False, temperature=0.25)
    logs = [learner.learn(draw_batch(seed=seed)).log["temperature"] for seed in range(3)]
    assert logs == pytest.approx([0.25] * 3)


def test_the_default_goal_of_the_entropy():
    assert make("sac")[1].entropy_goal == -2.0
    assert make("sac", CHOICES)[1].entropy_goal == pytest.approx(0.98 * math.log(4))
    assert make("sac", target_entropy=0.0)[1].entropy_goal == 0.0


@pytest.mark.parametrize("algorithm", ALL)
def test_a_delayed_actor_stands_still_in_between(algorithm):
    _, learner = make(algorithm, policy_delay=3)
    moved = []
    for seed in range(6):
        before, log = learner.actor_optimizer.values.clone(), learner.learn(draw_batch(seed=seed)).log
        moved.append(not torch.equal(before, learner.actor_optimizer.values))
        assert ("actor_loss" in log) == moved[-1]
    assert moved == [False, False, True] * 2


def test_importance_weights_and_the_scale_of_rewards():
    _, learner = make("sac", reward_scale=0.5)
    _, other = make("sac")
    batch = draw_batch()
    halved = replace(batch, reward=0.5 * batch.reward)
    np.testing.assert_array_equal(learner.learn(batch).priority, other.learn(halved).priority)
    nothing = replace(batch, weight=np.zeros_like(batch.weight))
    assert make("sac")[1].learn(nothing).log["critic_grad_norm"] == 0.0


def test_a_subset_of_critics_makes_the_target_and_all_learn():
    _, learner = make("sac", model={"num_critics": 6}, critic_subset=2)
    before = [torch.cat([p.detach().flatten().clone() for p in critic.parameters()]) for critic in learner.critics]
    rng, batch = copy.deepcopy(learner.rng), draw_batch()
    chosen = draw_update(rng, ROWS, 2, 6, 2).subset
    for number, target in enumerate(learner.target_critics.module):  # whoever is not chosen may say anything
        if number not in chosen:
            with torch.no_grad():
                target.head.advantage.bias -= 1e6
    learned = learner.learn(batch)
    assert learned.log["mean_error"] < 1e3
    for critic, old in zip(learner.critics, before, strict=True):
        assert not torch.equal(old, torch.cat([p.detach().flatten() for p in critic.parameters()]))
    drawn = {tuple(draw_update(np.random.default_rng(seed), 1, 1, 6, 2).subset) for seed in range(200)}
    assert len(drawn) == 15  # every pair


@pytest.mark.parametrize("model", [{"batch_renorm": True}, {"layer_norm": True}])
def test_hidden_weights_are_scaled_to_norm_one_after_every_update(model):
    """Of every critic; everything else is as without the scaling."""
    _, plain = make("sac", model=model, learning_rate=0.1)
    _, normed = make("sac", model=model, learning_rate=0.1, weight_norm=True)
    hidden = [name for name, part in normed.critics.named_parameters() if part.ndim == 2 and "head" not in name]
    assert len(hidden) == 4
    plain.critic_optimizer.values.copy_(normed.critic_optimizer.values)
    plain.sync_target()
    batch = draw_batch()
    assert plain.learn(batch).log["critic_loss"] == normed.learn(batch).log["critic_loss"]
    after = dict(normed.critics.named_parameters())
    for name, part in plain.critics.named_parameters():
        expected = part / part.norm(dim=1, keepdim=True) if name in hidden else part
        np.testing.assert_allclose(after[name].detach(), expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "spec", "model", "config", "message"),
    [
        ("sac", BOX, {}, {"critic_subset": 3}, "use --num-critics 3"),
        ("sac", BOX, {}, {"quantiles_to_drop": 1}, "use --distributional qr"),
        ("tqc", BOX, {}, {"quantiles_to_drop": 5}, "drop fewer"),
        ("sac", CHOICES, {"distributional": "c51"}, {}, "needs Box actions"),
        ("sac", BOX, {"backbone": "simba", "layer_norm": True}, {}, "simba has layer normalization of its own"),
        ("crossq", BOX, {"layer_norm": True}, {}, "use one of them"),
        ("sac", BOX, {}, {"weight_norm": True}, "use --batch-renorm or --layer-norm"),
        ("sac", BOX, {"backbone": "simba", "hidden_sizes": (8, 4)}, {}, "all of the same width"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm, spec, model, config, message):
    with pytest.raises(BadInput, match=message):
        make(algorithm, spec, model, **config)


# ── batch renormalization ─────────────────────────────────────────────────────────────────────────────────────────


def random_norm(warmup, count=0, seed=0):
    norm, rng = BatchRenorm(5, warmup).double(), np.random.default_rng(seed)
    with torch.no_grad():
        for part, values in (
            (norm.weight, rng.normal(size=5)),
            (norm.bias, rng.normal(size=5)),
            (norm.running_mean, [0.0, 1.0, -9.0, 0.2, 9.0]),  # beyond the limits in both directions
            (norm.running_var, [1.0, 100.0, 0.5, 0.01, 1.0]),
            (norm.count, [count]),
        ):
            part.copy_(torch.tensor(values))
    return norm, torch.tensor(rng.normal(size=(12, 5)), requires_grad=True)


def test_the_warm_up_is_batch_normalization():
    norm, x = random_norm(warmup=3, count=2)
    theirs = nn.BatchNorm1d(5, eps=1e-3, momentum=0.01).double()
    theirs.load_state_dict({k: v for k, v in norm.state_dict().items() if k != "count"}, strict=False)
    seen, direction = [], torch.randn(12, 5, generator=torch.Generator().manual_seed(0)).double()
    gradients = [torch.autograd.grad((out * direction).sum(), x)[0] for out in (norm(x, seen), theirs(x))]
    torch.testing.assert_close(*gradients)
    norm.update(*seen)
    torch.testing.assert_close(norm.running_mean, theirs.running_mean)
    torch.testing.assert_close(norm.running_var - 0.01 * seen[1], theirs.running_var - 0.01 * seen[1] * 12 / 11)
    assert norm.count.item() == 3
    theirs.running_var.copy_(norm.running_var)  # PyTorch's is that of a sample; ours, as in CrossQ, of the batch
    torch.testing.assert_close(norm(x), theirs.eval()(x))


@pytest.mark.parametrize("count", [3, 100])
def test_corrections_lead_to_the_running_statistics_within_limits_and_without_gradients(count):
    norm, x = random_norm(warmup=3, count=count)
    scale, shift = (
        torch.tensor(part)
        for part in oracles.renorm_corrections(x.detach().numpy(), norm.running_mean.numpy(), norm.running_var.numpy())
    )
    assert {1 / 3, 3.0} <= {round(value, 12) if value == 3 else value for value in scale.tolist()}
    assert {-5.0, 5.0} <= set(shift.tolist())
    expected = (F.batch_norm(x, None, None, training=True, eps=1e-3) * scale + shift) * norm.weight + norm.bias
    direction = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)).double()
    answer = norm(x, [])
    torch.testing.assert_close(answer, expected)
    torch.testing.assert_close(*(torch.autograd.grad((out * direction).sum(), x)[0] for out in (answer, expected)))
    # Within the limits the answer is that of the running statistics, as in evaluation.
    torch.testing.assert_close(answer[:, 0], norm(x)[:, 0])


def test_critics_of_this_and_the_next_state_see_one_batch():
    """CrossQ: one forward pass over both halves; the target comes from the second, and no gradient goes there."""
    _, learner = make("crossq")
    batch = draw_batch()
    learner.learn(batch)
    norm = learner.critics[0].backbone.norms[0]
    obs = np.concatenate([batch.obs, batch.next_obs])
    np.testing.assert_allclose(norm.running_mean[:3], 0.01 * obs.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(norm.running_var[:3], 0.99 + 0.01 * obs.var(0), rtol=1e-5)
    np.testing.assert_allclose(learner.frozen_critics[0].backbone.norms[0].running_mean, norm.running_mean)
    assert learner.target_critics is None


# ── who gets a gradient from whom ─────────────────────────────────────────────────────────────────────────────────


def gradients(*modules):
    return torch.cat([p.grad.flatten() for module in modules for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    ("algorithm", "spec"), [*((algorithm, BOX) for algorithm in ALL), ("sac", CHOICES), ("crossq", CHOICES)]
)
def test_each_loss_moves_its_own_network(algorithm, spec):
    _, learner = make(algorithm, spec, policy_delay=1)
    rows = ops.replay_rows(draw_batch(spec), torch.device("cpu"))
    drawn = draw_update(np.random.default_rng(0), ROWS, learner.distribution.entries, *[len(learner.critics)] * 2)
    draws = UpdateDraws(*(torch.from_numpy(part) for part in drawn))
    copies, rates = [learner.frozen_critics, *(target.module for target in learner.targets)], learner.rates_at(0.0)
    for loss, mine, other in (
        (lambda: learner._critic_batch_loss(learner.critics, rows, draws, rates), learner.critics, learner.actor),
        (lambda: learner._actor_batch_loss(learner.actor, rows, draws, rates), learner.actor, learner.critics),
    ):  # fmt: skip
        for module in (learner.critics, learner.actor):
            module.zero_grad(set_to_none=False)
        loss().value.backward()
        assert gradients(mine).abs().max() > 1e-4
        assert gradients(other).abs().max() == 0
        assert not any(p.grad is not None or p.requires_grad for part in copies for p in part.parameters())


@pytest.mark.parametrize("algorithm", ALL)
def test_the_actors_step_leaves_the_critics_alone(algorithm):
    """With and without a step of the actor: the same critics, and the same targets of the critics."""
    one, two = make(algorithm, policy_delay=1)[1], make(algorithm, policy_delay=1000)[1]
    for learner in (one, two):
        learner.learn(draw_batch())
    assert torch.equal(one.critic_optimizer.values, two.critic_optimizer.values)
    assert not torch.equal(one.actor_optimizer.values, two.actor_optimizer.values)
    if one.target_critics is not None:
        assert torch.equal(one.targets[0].values, two.targets[0].values)
    for mine, other in zip(one.critics.buffers(), two.critics.buffers(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_the_target_moves_only_by_its_share(algorithm):
    _, learner = make(algorithm, tau=0.25, target_every=2, policy_delay=1)
    for seed in range(4):
        before = [target.values.clone() for target in learner.targets]
        learner.learn(draw_batch(seed=seed))
        share = 0.25 if seed % 2 else 0.0
        optimizers = (learner.critic_optimizer, learner.actor_optimizer)
        assert len(before) == (1 if learner.target_actor is None else 2)
        for old, new, optimizer in zip(before, learner.targets, optimizers, strict=False):
            torch.testing.assert_close(new.values, old + share * (optimizer.values - old))


# ── saving, compiling ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [("td3", {}), ("sac", {}), ("tqc", {}), ("crossq", {}), ("crossq", {"target_network": True, "target_every": 3})],
)
def test_a_loaded_learner_continues_exactly(algorithm, config):
    agent, learner = make(algorithm, **config)
    for seed in range(4):
        learner.learn(draw_batch(seed=seed))
    other_agent, other = make(algorithm, **config)
    other.load_state_dict(learner.state_dict())
    other_agent.load_state_dict(agent.state_dict())
    for seed in range(4, 8):
        one, two = learner.learn(draw_batch(seed=seed)), other.learn(draw_batch(seed=seed))
        assert one.log == two.log
        np.testing.assert_array_equal(one.priority, two.priority)


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_a_compiled_update_is_the_same_update(algorithm):
    torch._dynamo.reset()
    tiny = {"num_critics": 1, "hidden_sizes": (4,), "critic_hidden_sizes": (4,)}  # quick to compile
    learners = [make(algorithm, BOX, tiny, compiled, policy_delay=1)[1] for compiled in (False, True)]
    for seed in range(3):
        one, two = (learner.learn(draw_batch(seed=seed)) for learner in learners)
        assert two.log == pytest.approx(one.log, rel=1e-4, abs=1e-4)
        np.testing.assert_allclose(two.priority, one.priority, rtol=1e-4, atol=1e-4)
    for part in ("critic_optimizer", "actor_optimizer"):
        torch.testing.assert_close(*(getattr(learner, part).values for learner in learners), rtol=1e-4, atol=1e-5)
