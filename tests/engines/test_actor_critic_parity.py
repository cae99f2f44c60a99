"""Off-policy actor-critics: PyTorch and JAX make the same updates, and one program makes the same as the learner."""

import jax
import numpy as np
import pytest

from drl.algorithms import ALGORITHMS
from drl.core.contracts import ReplayBatch
from drl.core.seeding import Seeds
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.jax import off_policy
from drl.engines.jax.build import build_learner as build_jax
from drl.engines.jax.ops import replay_rows
from drl.engines.torch.build import build_learner as build_torch
from drl.engines.torch.flat_optimizer import STATE
from drl.engines.torch.models import parameters_by_name

OBS = ObsSpec("box", (3,))
BOX = ActionSpec("box", shape=(2,), low=(-2.0, 0.0), high=(2.0, 10.0), dtype="float32")
CHOICES = ActionSpec("discrete", sizes=(4,))
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}  # compiles in a third of the time
UPDATE = jax.jit(lambda pure, *inputs: pure.update(*inputs), static_argnums=0, compiler_options=QUICK)
MODELS = {
    "mlp": {},
    "layer_norm": {"layer_norm": True, "activation": "tanh"},
    "batch_renorm": {"batch_renorm": True, "renorm_warmup": 2},
    "simba": {"backbone": "simba"},
    "c51": {"distributional": "c51"},
    "qr": {"distributional": "qr"},
}
CASES = [
    ("ddpg", BOX, "mlp", {"optimizer": "adamw", "weight_decay": 0.1, "actor_learning_rate": 0.003}),
    ("td3", BOX, "layer_norm", {"target_every": 2}),
    ("td3", BOX, "c51", {"actor_q": "mean", "policy_delay": 1}),
    ("td3", BOX, "qr", {"loss": "huber", "max_grad_norm": 0.5}),
    ("sac", BOX, "mlp", {"num_critics": 5, "critic_subset": 2, "actor_q": "mean", "reward_scale": 0.3}),
    ("sac", BOX, "simba", {"target_q": "mean", "policy_delay": 2, "temperature_learning_rate": 0.1}),
    ("sac", BOX, "c51", {"learn_temperature": False, "temperature": 0.3}),
    ("sac", CHOICES, "layer_norm", {"num_critics": 3, "critic_subset": 2, "target_q": "mean", "weight_norm": True}),
    ("tqc", BOX, "qr", {"num_critics": 3}),
    ("crossq", BOX, "batch_renorm", {"weight_norm": True}),
    ("crossq", BOX, "batch_renorm", {"target_network": True, "target_every": 2, "policy_delay": 1}),
    ("crossq", CHOICES, "batch_renorm", {"policy_delay": 1}),
    ("normalized_sac", BOX, "mlp", {}),
]


def configs(algorithm, network, settings):
    record = ALGORITHMS[algorithm]
    sizes = {"hidden_sizes": (6, 6), "critic_hidden_sizes": (6, 6), "num_atoms": 5, "v_min": -3.0, "v_max": 3.0}
    of_model = {name: value for name, value in settings.items() if name == "num_critics"}
    of_learner = {name: value for name, value in settings.items() if name != "num_critics"}
    model = record.model_config(**sizes | MODELS[network] | of_model)
    return model, record.config(**{"learning_rate": 0.01, "adam_eps": 1e-4} | of_learner)


def draw_batch(spec, seed, rows=16):
    rng, f = np.random.default_rng(seed), np.float32
    action = rng.integers(4, size=rows) if spec is CHOICES else rng.uniform(-1, 1, (rows, 2)).astype(f)
    masks = rng.random((2, rows, 4)) < 0.6
    masks[:, :, 1] = True
    return ReplayBatch(
        obs=rng.standard_normal((rows, 3), f),
        action=action,
        reward=rng.standard_normal(rows, f),
        terminated=(rng.random(rows) < 0.3).astype(f),
        discount=rng.choice([0.9, 0.81], rows).astype(f),
        next_obs=rng.standard_normal((rows, 3), f),
        weight=rng.random(rows, f),
        index=np.arange(rows),
        next_action_mask=masks[0] if spec is CHOICES else None,
        action_mask=masks[1] if spec is CHOICES else None,
    )


def arrays(agent):
    return {name: part.detach().numpy().copy() for name, part in parameters_by_name(agent.model).items()}


def by_name(module, optimizer, values, prefix):
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    return {f"{prefix}.{name}": view.numpy() for name, view in zip(names, optimizer.views(values), strict=True)}


def assert_near(mine, theirs, share=1e-5):
    assert mine.keys() == theirs.keys()
    for name, array in theirs.items():
        limit = share * max(1.0, float(np.abs(array).max(initial=0.0)))
        np.testing.assert_allclose(mine[name], array, rtol=0, atol=limit, err_msg=name)


@pytest.mark.default("sac-box-mlp", "ddpg-box-mlp", "tqc-box-qr", "crossq*")
@pytest.mark.parametrize(
    ("algorithm", "spec", "network", "settings"), CASES, ids=[f"{c[0]}-{c[1].kind}-{c[2]}" for c in CASES]
)
def test_both_engines_make_the_same_updates(algorithm, spec, network, settings, monkeypatch):
    """Logs, priorities, gradients so far, parameters, running statistics, target networks; then the actions."""
    monkeypatch.setattr(off_policy, "_update", UPDATE)
    made = configs(algorithm, network, settings)
    (torch_agent, torch_learner), (jax_agent, jax_learner) = (
        build(algorithm, EnvSpecs(OBS, spec), made, Seeds(0)) for build in (build_torch, build_jax)
    )
    jax_agent.model_state.load(arrays(torch_agent), "the other engine")
    jax_learner.sync_target()
    for seed in range(5):
        batch = draw_batch(spec, seed)
        one, two = torch_learner.learn(batch), jax_learner.learn(batch)
        assert one.log.keys() == two.log.keys()
        assert_near(two.log, {name: np.float64(value) for name, value in one.log.items()}, 5e-5)
        np.testing.assert_allclose(two.priority, one.priority, rtol=1e-4, atol=1e-4)
    assert_near(jax_agent.model_state.host, arrays(torch_agent))
    state = jax_learner.state
    for module, optimizer, theirs, prefix in (
        (torch_learner.critics, torch_learner.critic_optimizer, state.critic_optimizer, "critics"),
        (torch_learner.actor, torch_learner.actor_optimizer, state.actor_optimizer, "actor"),
    ):
        for moment in ("exp_avg", "exp_avg_sq"):
            expected = by_name(module, optimizer, dict(zip(STATE, optimizer.rule.state, strict=True))[moment], prefix)
            found = getattr(theirs, moment)
            assert_near({name: found[name.removeprefix("actor.")] for name in expected}, expected)
    if torch_learner.target_critics is not None:
        copied = torch_learner.target_critics.module
        expected = {f"critics.{name}": part.numpy() for name, part in copied.named_parameters()}
        if torch_learner.target_actor is not None:
            expected |= {
                f"actor.{name}": part.numpy() for name, part in torch_learner.target_actor.module.named_parameters()
            }
        running = {name: part.numpy() for name, part in copied.named_buffers()}
        expected |= {f"critics.{name}": part for name, part in running.items() if not name.endswith("support")}
        assert_near(state.target, expected)
    obs = np.random.default_rng(9).standard_normal((7, 3), np.float32)
    np.testing.assert_allclose(jax_agent.dist_params(obs), torch_agent.dist_params(obs), atol=1e-5)
    np.testing.assert_allclose(torch_agent.forward(obs).numpy(), torch_agent.dist_params(obs), atol=1e-5)
    np.testing.assert_allclose(jax_agent.act(obs), torch_agent.act(obs), atol=1e-4)


@pytest.mark.default("sac-*")
@pytest.mark.parametrize(("algorithm", "spec", "settings"), [
    ("td3", BOX, {}), ("sac", BOX, {"num_critics": 3, "critic_subset": 2}),
])  # fmt: skip
def test_a_step_in_one_program_is_an_update_with_the_drawn_numbers(algorithm, spec, settings):
    """`step` is what fused programs call. Its draws, given to `update` and to PyTorch, lead to the same parameters."""
    made = configs(algorithm, "mlp", settings)
    (torch_agent, torch_learner), (jax_agent, learner) = (
        build(algorithm, EnvSpecs(OBS, spec), made, Seeds(0)) for build in (build_torch, build_jax)
    )
    jax_agent.model_state.load(arrays(torch_agent), "the other engine")
    learner.sync_target()
    pure, key, batch = learner.pure, jax.random.key(3), draw_batch(spec, 0)
    rate, rows = np.float32(learner.config.learning_rate), replay_rows(batch)
    start = learner.state._replace(params=jax_agent.model_state.params)
    draws = jax.jit(lambda key: pure.draw(key, len(batch.reward)), compiler_options=QUICK)(key)
    step = jax.jit(lambda state, key: pure.step(state, rows, key, rate), compiler_options=QUICK)
    results = step(start, key), UPDATE(pure, start, rows, draws, rate)
    assert_near(results[0][0].params, {name: np.asarray(a) for name, a in results[1][0].params.items()}, 1e-6)
    assert_near(results[0][0].target, {name: np.asarray(a) for name, a in results[1][0].target.items()}, 1e-6)
    np.testing.assert_allclose(results[0][2], results[1][2], atol=1e-6)

    class Given:
        """Hands PyTorch the numbers that JAX drew."""

        def standard_normal(self, shape, dtype):
            return np.stack([draws.next_noise, draws.noise])

        def permutation(self, count):
            chosen = np.asarray(draws.subset)
            return np.array([*chosen, *(set(range(count)) - set(chosen.tolist()))])

    torch_learner.rng = Given()
    learned = torch_learner.learn(batch)
    np.testing.assert_allclose(results[0][2], learned.priority, rtol=1e-4, atol=1e-4)
    assert_near({name: np.asarray(a) for name, a in results[0][0].params.items()}, arrays(torch_agent))


def test_draws_in_one_program_are_standard_normal_and_every_pair_of_critics():
    _, learner = build_jax(
        "sac", EnvSpecs(OBS, BOX), configs("sac", "mlp", {"num_critics": 4, "critic_subset": 2}), Seeds(0)
    )
    draw = jax.jit(jax.vmap(lambda key: learner.pure.draw(key, 8)), compiler_options=QUICK)
    draws = draw(jax.random.split(jax.random.key(0), 2000))
    for noise in (draws.noise, draws.next_noise):
        assert abs(float(noise.mean())) < 0.02
        assert float(noise.std()) == pytest.approx(1.0, abs=0.02)
    assert abs(np.corrcoef(np.ravel(draws.noise), np.ravel(draws.next_noise))[0, 1]) < 0.02
    pairs, counts = np.unique(np.sort(np.asarray(draws.subset), axis=1), axis=0, return_counts=True)
    assert len(pairs) == 6
    assert counts.min() > 250
