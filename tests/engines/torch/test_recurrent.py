"""Recurrence against a brute-force loop of torch's own cells, one environment and one step at a time."""

import numpy as np
import pytest
import torch

from drl.agents.load_agent import load_agent
from drl.algorithms.a2c import A2CConfig
from drl.algorithms.ppo import PPOConfig
from drl.algorithms.reinforce import ReinforceConfig
from drl.core.configs import ModelConfig
from drl.core.contracts import RolloutBatch
from drl.core.errors import BadInput
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, Distribution, EnvSpecs, ObsSpec
from drl.engines.torch import ops, recurrent
from drl.engines.torch.agents import PolicyAgent
from drl.engines.torch.algorithms.ppo import PPO
from drl.engines.torch.build import build_learner
from drl.engines.torch.models import make_policy_value_model
from drl.engines.torch.numpy_views import recurrent_views
from drl.engines.torch.on_policy import evaluate_rollout, minibatches_of_envs
from drl.engines.torch.recurrent import pack, sequences
from drl.testing import oracles

OBS, SPEC = ObsSpec("box", (3,)), ActionSpec("discrete", sizes=(4,))
SPECS, DIST = EnvSpecs(OBS, SPEC), Distribution.on(SPEC)
IMAGE, ROUNDS = ObsSpec("box", (2, 36, 40), "uint8"), ObsSpec("box", (10, 5))
GAUSSIAN = ActionSpec("box", shape=(2,), low=(-1, -1), high=(1, 1), dtype="float32")
KINDS = pytest.mark.parametrize("kind", ["gru", "lstm"])
SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
STEPS, ENVS = 9, 4


def make_model(kind, shared, obs_spec=OBS, spec=SPEC, **options):
    config = ModelConfig(hidden_sizes=(8,), recurrent=kind, recurrent_size=6, shared=shared, **options)
    generator = torch.Generator().manual_seed(0)
    model = make_policy_value_model(obs_spec, spec, config, generator)
    with torch.no_grad():
        for parameter in model.parameters():  # biases that matter, a policy with opinions
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def make_batch(rnn_state_size, seed=0):
    """All there is: ends of both kinds, also in the last row, reset rows, also the first and the last one."""
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((2, STEPS, ENVS), bool)
    valid = np.ones((STEPS, ENVS), bool)
    terminated[2, 0] = truncated[3, 0] = True  # an episode of one step; the environment resets at once
    truncated[4, 1], valid[5, 1] = True, False  # the environment resets itself one call later
    terminated[7, 1], valid[8, 1] = True, False
    valid[0, 2], truncated[8, 2] = False, True
    final_index = np.flatnonzero(terminated | truncated)
    numbers = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return RolloutBatch(
        obs=numbers(STEPS, ENVS, 3),
        action=rng.integers(4, size=(STEPS, ENVS)),
        reward=numbers(STEPS, ENVS) * valid,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        last_obs=numbers(ENVS, 3),
        final_index=final_index,
        final_obs=numbers(len(final_index), 3),
        rnn_state=numbers(ENVS, rnn_state_size),
    )


def cell_step(part, obs, rnn_state):
    """One step of one environment by torch's own cell: output and hidden state."""
    features = part.backbone(torch.from_numpy(obs)[None])
    if part.kind == "gru":
        out = part.cell(features, rnn_state[None])
        return out[0], out[0]
    out, content = part.cell(features, tuple(half[None] for half in rnn_state.chunk(2)))
    return out[0], torch.cat([out, content], dim=1)[0]


def brute_force(model, batch):
    """Per valid row (t, n): policy parameters, value, and the successor's value, by a loop over single steps."""
    answers = {}
    members = (model.actor, model.critic)
    for n in range(ENVS):
        both = torch.from_numpy(batch.rnn_state[n])
        start = [both[m.backbone.offset :][: m.backbone.rnn_state_size] for m in members]
        state = start
        for t in range(STEPS):
            if not batch.valid[t, n]:
                state = [torch.zeros_like(s) for s in start]
                continue
            steps = [cell_step(m.backbone, batch.obs[t, n], s) for m, s in zip(members, state, strict=True)]
            outs, state = zip(*steps, strict=True)
            ends = batch.terminated[t, n] or batch.truncated[t, n]
            following = batch.last_obs[n] if t == STEPS - 1 else batch.obs[t + 1, n]
            if ends:
                following = batch.final_obs[list(batch.final_index).index(t * ENVS + n)]
            peek, _ = cell_step(model.critic.backbone, following, state[1])
            answers[t, n] = model.actor.head(outs[0]), model.critic.head(outs[1]), model.critic.head(peek)
            if ends:
                state = [torch.zeros_like(s) for s in start]
    return answers


def positions(packing):
    return [(int(row) // ENVS, int(row) % ENVS) for row in packing.row]


def hidden_width(kind, shared):
    return 6 * (2 if kind == "lstm" else 1) * (1 if shared else 2)


@KINDS
@SHARED
def test_forward_and_gradient_equal_a_loop_of_cells(kind, shared):
    model, batch = make_model(kind, shared), make_batch(hidden_width(kind, shared))
    expected = brute_force(model, batch)
    seen = sequences(batch, torch.device("cpu"))
    where = positions(seen.packing)
    assert sorted(where) == sorted(expected)
    weights = torch.randn(len(where), 5, generator=torch.Generator().manual_seed(1))

    def gradients(params, value):
        model.zero_grad()
        (torch.cat([params, value[:, None]], dim=1) * weights).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    slow = torch.stack([expected[place][0] for place in where]), torch.stack([expected[place][1] for place in where])
    fast = model(seen)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradients(*fast), gradients(*slow), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@KINDS
@SHARED
def test_advantages_bootstrap_with_what_the_successor_would_be_seen_with(kind, shared):
    model, batch = make_model(kind, shared), make_batch(hidden_width(kind, shared))
    expected = brute_force(model, batch)
    rows = evaluate_rollout(model, DIST, batch, 0.9, 0.8)
    values, next_values = np.zeros((2, STEPS, ENVS))
    for (t, n), (_, value, successor) in expected.items():
        values[t, n], next_values[t, n] = value.item(), successor.item()
    ends = (batch.terminated, batch.truncated)
    advantage = oracles.gae(batch.reward, values, next_values, *ends, 0.9, 0.8)
    for i, place in enumerate(positions(rows.obs.packing)):
        params, value, _ = expected[place]
        log_prob, _ = ops.log_prob_and_entropy(DIST, params[None], torch.tensor([batch.action[place]]))
        numbers = (log_prob.item(), value.item(), advantage[place], advantage[place] + value.item())
        mine = (rows.log_prob[i], rows.value[i], rows.advantage[i], rows.target[i])
        np.testing.assert_allclose([float(x) for x in mine], numbers, rtol=1e-4, atol=1e-4)
        assert rows.action[i] == batch.action[place]


def test_nothing_leaks_from_one_episode_into_another():
    """Rows answer to what is before them in their own episode, and to nothing else."""
    model, batch = make_model("gru", True), make_batch(6)
    where = positions(pack(batch))
    batch.obs.setflags(write=True)
    before, _ = model(sequences(batch, torch.device("cpu")))

    def changed(change):
        kept = batch.obs.copy(), batch.rnn_state.copy()
        change()
        after, _ = model(sequences(batch, torch.device("cpu")))
        batch.obs[:], batch.rnn_state[:] = kept
        moved = (before != after).any(dim=1).tolist()
        return sorted(place for place, moves in zip(where, moved, strict=True) if moves)

    def obs_at(t, n):
        return lambda: batch.obs[t, n].__iadd__(1.0)

    assert changed(obs_at(1, 0)) == [(1, 0), (2, 0)]  # terminated at 2
    assert changed(obs_at(3, 0)) == [(3, 0)]  # truncated at once
    assert changed(obs_at(5, 1)) == []  # a reset row
    assert changed(obs_at(6, 1)) == [(6, 1), (7, 1)]
    assert changed(lambda: batch.rnn_state[0].__iadd__(1.0)) == [(0, 0), (1, 0), (2, 0)]
    assert changed(lambda: batch.rnn_state[2].__iadd__(1.0)) == []  # its first row only reset the environment


@pytest.mark.parametrize("count", [1, 2, 3])
def test_minibatches_are_whole_envs_and_cover_everything_once(count):
    model, batch = make_model("lstm", False), make_batch(24)
    seen, ppo = 0, PPO(model, SPEC)  # first, because it lays out the weights anew
    rows = evaluate_rollout(model, DIST, batch, 0.9, 0.8)
    for part in minibatches_of_envs(rows, np.random.default_rng(0), count):
        params, value = model(part.obs)
        torch.testing.assert_close(value, part.value, rtol=1e-5, atol=1e-5)
        log_prob, _ = ops.log_prob_and_entropy(DIST, params, part.action)
        torch.testing.assert_close(log_prob, part.log_prob, rtol=1e-5, atol=1e-5)
        metrics = ppo._minibatch_loss(model, part, ppo.rates_at(0.0)).metrics
        if count == 1:  # the very same computation: not a bit differs
            assert torch.equal(log_prob, part.log_prob)
            names = ("approx_kl", "clip_fraction", "mean_clipped_ratio")
            assert [float(metrics[name]) for name in names] == [0.0, 0.0, 1.0]
        seen += len(value)
    assert seen == batch.valid.sum()
    with pytest.raises(BadInput, match="split by environment and there are 4"):
        next(minibatches_of_envs(rows, np.random.default_rng(0), 5))


def test_ppo_and_a2c_learn_from_a_recurrent_batch():
    batch = make_batch(12)
    for algorithm, config in (("ppo", PPOConfig(minibatches=2)), ("a2c", A2CConfig())):
        model_config = ModelConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=6)
        _, learner = build_learner(algorithm, SPECS, (model_config, config), Seeds(0))
        assert np.isfinite(list(learner.learn(batch).log.values())).all()
    with pytest.raises(BadInput, match="sequences"):
        learner.learn(RolloutBatch(**{**vars(batch), "rnn_state": None}))


@KINDS
@SHARED
@pytest.mark.parametrize("spec", [SPEC, GAUSSIAN], ids=lambda s: s.kind)
def test_acting_in_numpy_equals_torch(kind, shared, spec):
    """Also the critic's memory moves on: the learner starts from it."""
    rng = np.random.default_rng(0)
    agent = PolicyAgent(make_model(kind, shared, spec=spec), EnvSpecs(OBS, spec))
    assert recurrent_views(agent.model) is not None
    slow = PolicyAgent(agent.model, EnvSpecs(OBS, spec))
    slow._memory.make = lambda model: None
    for _ in range(3):
        obs = rng.normal(size=(5, 3)).astype(np.float32)
        np.testing.assert_allclose(agent.dist_params(obs), slow.dist_params(obs), atol=2e-6)
        np.testing.assert_allclose(agent.decide(obs), slow.decide(obs), atol=2e-6)
        np.testing.assert_allclose(agent.rnn_state, slow.rnn_state, atol=2e-6)
    assert agent.rnn_state.shape == (5, hidden_width(kind, shared))


def test_playing_step_by_step_is_what_the_learner_sees():
    """Acting, with resets by mask, arrives at the very states that the packed pass works out anew."""
    model, batch = make_model("gru", False), make_batch(12)
    agent = PolicyAgent(model, SPECS)
    agent.rnn_state = batch.rnn_state
    played = {}
    for t in range(STEPS):
        params = agent.dist_params(batch.obs[t])
        agent.decide(batch.obs[t])
        agent.begin(batch.terminated[t] | batch.truncated[t] | ~batch.valid[t])
        played |= {(t, n): params[n] for n in range(ENVS) if batch.valid[t, n]}
    seen = sequences(batch, torch.device("cpu"))
    params, _ = model(seen)
    np.testing.assert_allclose(params.detach(), [played[place] for place in positions(seen.packing)], atol=1e-5)


def test_acting_remembers_until_an_episode_begins():
    agent = PolicyAgent(make_model("gru", True), SPECS)
    obs = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    fresh = agent.dist_params(obs)
    agent.act(obs)
    later = agent.dist_params(obs)
    assert (fresh != later).any(axis=1).all()
    np.testing.assert_array_equal(agent.explain(obs)["policy"], agent.explain(obs)["policy"])  # looking changes nothing
    agent.begin(np.array([True, False]))
    half = agent.dist_params(obs)
    np.testing.assert_array_equal(half, [fresh[0], later[1]])
    with pytest.raises(BadInput, match=r"middle of 2 episodes and got 1 observations; call agent\.begin"):
        agent.act(obs[0])
    agent.begin()
    np.testing.assert_array_equal(agent.dist_params(obs), fresh)
    agent.begin()
    assert agent.act(obs[0]).shape == ()


@pytest.mark.parametrize(
    ("obs_spec", "options"),
    [
        (OBS, {}),
        (OBS, {"shared": True}),
        (IMAGE, {"shared": True, "cnn_features": 16}),
        (ROUNDS, {"backbone": "conv1d"}),
    ],
    ids=["mlp", "shared", "cnn", "conv1d"],
)
@KINDS
def test_a_saved_agent_plays_the_same_when_loaded(tmp_path, kind, obs_spec, options):
    agent = PolicyAgent(make_model(kind, options.pop("shared", False), obs_spec, **options), EnvSpecs(obs_spec, SPEC))
    agent.save(tmp_path)
    loaded = load_agent(tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(4):
        obs = (100 * rng.normal(size=(3, *obs_spec.shape))).astype(obs_spec.dtype)
        np.testing.assert_array_equal(loaded.act(obs), agent.act(obs))
        np.testing.assert_array_equal(loaded.value(obs), agent.value(obs))
    np.testing.assert_array_equal(loaded.rnn_state, agent.rnn_state)


def test_state_goes_on_where_it_was():
    agents = [PolicyAgent(make_model("lstm", False), SPECS, rng=np.random.default_rng(i)) for i in range(2)]
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    agents[0].act(obs, explore=True)
    agents[1].load_state_dict(agents[0].state_dict())
    np.testing.assert_array_equal(agents[0].act(obs, explore=True), agents[1].act(obs, explore=True))
    np.testing.assert_array_equal(agents[0].rnn_state, agents[1].rnn_state)


def test_what_cannot_be_is_refused_by_name():
    recurrent = ModelConfig(recurrent="gru")
    with pytest.raises(BadInput, match="reinforce takes no recurrent"):
        build_learner("reinforce", SPECS, (recurrent, ReinforceConfig()), Seeds(0))
    with pytest.raises(BadInput, match="compile takes no recurrent"):
        build_learner("ppo", SPECS, (recurrent, PPOConfig()), Seeds(0), compile_update=True)
    with pytest.raises(BadInput, match="'none', 'gru' or 'lstm'"):
        ModelConfig(recurrent="rnn")
    with pytest.raises(BadInput, match="recurrent_size is 0"):
        ModelConfig(recurrent="gru", recurrent_size=0)
    with pytest.raises(BadInput, match="sequences"):
        make_model("gru", True)(torch.zeros(2, 3))


def test_only_the_critics_rate_reaches_the_critics_memory():
    model, batch = make_model("gru", False), make_batch(12)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    PPO(model, SPECS, PPOConfig(minibatches=1, critic_learning_rate=1e-12)).learn(batch)
    moved = {name for name, parameter in model.named_parameters() if (parameter - before[name]).abs().max() > 1e-6}
    assert moved == {name for name in before if name.startswith("actor")}


def test_many_pieces_go_through_the_library_and_few_through_our_gradient(monkeypatch):
    """Both give the same outputs, last states and gradients."""
    results = []
    for many in (10**9, 1):
        monkeypatch.setattr(recurrent, "MANY", many)
        torch.manual_seed(0)
        cell, features = torch.nn.GRUCell(5, 4), torch.randn(9, 5, requires_grad=True)
        out, last = recurrent.gru_scan(cell, features, [4, 3, 2], torch.randn(4, 4))
        (out.square().sum() + out.sum()).backward()
        results.append([out, last, features.grad, *(p.grad for p in cell.parameters())])
    for ours, library in zip(*results, strict=True):
        torch.testing.assert_close(ours, library, rtol=1e-5, atol=1e-6)
