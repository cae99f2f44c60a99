"""Every distribution in every engine against `torch.distributions` in float64, sums over all actions, and integrals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import distributions as td

from drl.core.errors import BadInput
from drl.core.specs import Distribution
from drl.engines.jax import ops as jax_ops
from drl.engines.numpy import distributions
from drl.engines.torch import ops as torch_ops

CATEGORICAL = Distribution("categorical", (4,), 1)
MULTI = Distribution("multi_categorical", (2, 3), 2)
BITS = Distribution("bernoulli", (), 2)
GAUSSIAN = Distribution("gaussian", (), 2)
SQUASHED = Distribution("tanh_gaussian", (), 2)
DETERMINISTIC = Distribution("deterministic", (), 2)
CHOICES, DENSITIES = (CATEGORICAL, MULTI, BITS), (GAUSSIAN, SQUASHED)
ROWS, DRAWS = 64, 40_000
JUST_BELOW_1 = np.nextafter(np.float32(1), np.float32(0))
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}  # compiles in a third of the time

each_engine = pytest.mark.parametrize("engine", ["numpy", "torch", "jax"])


def each(dists):
    return pytest.mark.parametrize("dist", dists, ids=lambda dist: dist.kind)


# ── one way to ask each engine ────────────────────────────────────────────────────────────────────────────────────


def compiled(function):
    return jax.jit(function, static_argnums=0, compiler_options=QUICK)


jax_log_prob_and_entropy = compiled(jax_ops.log_prob_and_entropy)
jax_mode, jax_sample = compiled(jax_ops.mode), compiled(jax_ops.sample)
jax_sample_with_log_prob = compiled(jax_ops.sample_with_log_prob)


def tensor(array):
    return None if array is None else torch.tensor(array)  # a copy: arrays of JAX cannot be written to


def evaluate(engine, dist, params, action, mask=None):
    """Log-probabilities and entropies, by an engine, of NumPy arrays."""
    if engine == "numpy":
        return distributions.log_prob(dist, params, action, mask), distributions.entropy(dist, params, mask)
    if engine == "torch":
        answer = torch_ops.log_prob_and_entropy(dist, tensor(params), tensor(action), tensor(mask))
    else:
        answer = jax_log_prob_and_entropy(dist, params, action, mask)
    return tuple(np.asarray(part) for part in answer)


def mode(engine, dist, params, mask=None):
    if engine == "numpy":
        return distributions.mode(dist, params, mask)
    if engine == "torch":
        return torch_ops.mode(dist, tensor(params), tensor(mask)).numpy()
    return np.asarray(jax_mode(dist, params, mask))


def draw(engine, dist, row, mask=None, count=DRAWS):
    """Many draws for one row of parameters. Torch has draws of its own only of Gaussians; else it acts in NumPy."""
    params = np.tile(np.asarray(row, np.float32), (count, 1))
    masks = None if mask is None else np.tile(mask, (count, 1))
    if engine == "numpy":
        return distributions.sample(dist, params, np.random.default_rng(0), 1.0, masks)
    if engine == "torch":
        noise = torch.randn(count, dist.entries, generator=torch.Generator().manual_seed(0))
        return torch_ops.sample_with_log_prob(dist, tensor(params), noise)[0].numpy()
    return np.asarray(jax_sample(dist, params, jax_ops.random_draws(dist, jax.random.key(0), (count,)), masks))


def draw_with_log_prob(engine, dist, params, noise):
    if engine == "torch":
        answer = torch_ops.sample_with_log_prob(dist, tensor(params), tensor(noise))
    else:
        answer = jax_sample_with_log_prob(dist, params, noise)
    return tuple(np.asarray(part) for part in answer)


# ── oracles ───────────────────────────────────────────────────────────────────────────────────────────────────────


def some_params(dist, rows=ROWS, seed=0):
    params = np.random.default_rng(seed).normal(size=(rows, dist.num_params)).astype(np.float32)
    if dist.kind.endswith("gaussian"):
        params[:, dist.entries :] *= 0.3
    return params


def some_actions(dist, rows=ROWS, seed=1):
    rng = np.random.default_rng(seed)
    if dist.kind == "gaussian":
        return rng.normal(size=(rows, dist.entries)).astype(np.float32)
    if dist.kind == "tanh_gaussian":
        return rng.uniform(-0.99, 0.99, (rows, dist.entries)).astype(np.float32)
    everything = all_actions(dist)
    return everything[rng.integers(len(everything), size=rows)]


def some_masks(dist, rows=ROWS, seed=2):
    """Half of the choices, at least one for each entry; some rows where nothing or all but one is forbidden."""
    rng = np.random.default_rng(seed)
    columns = []
    for size in sizes_of(dist):
        mask = rng.random((rows, size)) < 0.5
        mask[np.arange(rows), rng.integers(size, size=rows)] = True
        columns.append(mask)
    masks = np.concatenate(columns, axis=1)
    masks[0] = True
    return masks


def sizes_of(dist):
    return dist.sizes or (2,) * dist.entries


def all_actions(dist):
    """Every action there is, in the policy's units."""
    everything = np.array(list(itertools.product(*(range(size) for size in sizes_of(dist)))))
    return everything[:, 0] if dist.kind == "categorical" else everything


def true_distribution(dist, params):
    wide = tensor(params).double()
    if dist.kind == "categorical":
        return td.Categorical(logits=wide)
    if dist.kind == "bernoulli":
        return td.Independent(td.Bernoulli(logits=wide), 1)
    mean, log_std = wide.chunk(2, dim=-1)
    normal = td.Normal(mean, log_std.exp())
    if dist.kind == "tanh_gaussian":
        return td.Independent(td.TransformedDistribution(normal, td.TanhTransform()), 1)
    return td.Independent(normal, 1)


def true_log_prob(dist, params, action):
    if dist.kind == "multi_categorical":
        parts = np.split(params, np.cumsum(dist.sizes)[:-1], axis=1)
        return sum(true_log_prob(CATEGORICAL, part, action[:, i]) for i, part in enumerate(parts))
    value = tensor(action)
    value = value if dist.kind == "categorical" else value.double()
    return true_distribution(dist, params).log_prob(value).numpy()


def true_entropy(dist, params):
    if dist.kind == "multi_categorical":
        return sum(true_entropy(CATEGORICAL, part) for part in np.split(params, np.cumsum(dist.sizes)[:-1], axis=1))
    return true_distribution(dist, params).entropy().numpy()


def entry_probabilities(dist, params, masks):
    """Softmax over the legal choices, one array per entry of the action; a bit has the logits (0, x)."""
    logits = params.astype(np.float64)
    if dist.kind == "bernoulli":
        logits = np.stack([np.zeros_like(logits), logits], axis=-1).reshape(len(params), -1)
    weights = np.where(masks, np.exp(logits), 0.0)
    parts = np.split(weights, np.cumsum(sizes_of(dist))[:-1], axis=1)
    return [part / part.sum(axis=1, keepdims=True) for part in parts]


def action_probabilities(dist, params, masks):
    """`[rows, all actions]`: products of what its entries have."""
    parts = entry_probabilities(dist, params, masks)
    chosen = all_actions(dist).reshape(-1, len(parts))
    return np.prod([part[:, chosen[:, i]] for i, part in enumerate(parts)], axis=0)


def entropy_of(probabilities):
    logarithms = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return -(probabilities * logarithms).sum(axis=1)


def is_legal(dist, action, masks):
    """`[rows]`: whether every entry of each action is legal."""
    starts = np.cumsum([0, *sizes_of(dist)[:-1]])
    places = np.asarray(action).reshape(len(masks), -1) + starts
    return np.take_along_axis(masks, places, axis=1).all(axis=1)


def squashed_entropy(mean, log_std):
    """−∫ q(x) (log q(x) − log(1 − tanh²x)) dx on a fine grid in float64."""
    deviation = np.exp(log_std)
    x = np.linspace(mean - 12 * deviation, mean + 12 * deviation, 200_001)
    log_q = -0.5 * np.square((x - mean) / deviation) - log_std - 0.5 * np.log(2 * np.pi)
    log_slope = -2.0 * (np.logaddexp(x, -x) - np.log(2.0))  # of tanh: 1 / cosh²
    return -np.trapezoid(np.exp(log_q) * (log_q - log_slope), x)


# ── log-probabilities, entropies, modes ───────────────────────────────────────────────────────────────────────────


@each_engine
@each(CHOICES + DENSITIES)
def test_log_probabilities(engine, dist):
    params, action = some_params(dist), some_actions(dist)
    answer, _ = evaluate(engine, dist, params, action)
    assert answer.shape == (ROWS,)
    np.testing.assert_allclose(answer, true_log_prob(dist, params, action), rtol=1e-5, atol=2e-4)


@each_engine
@each((*CHOICES, GAUSSIAN))
def test_entropies(engine, dist):
    params = some_params(dist)
    _, answer = evaluate(engine, dist, params, some_actions(dist))
    assert answer.shape == (ROWS,)
    np.testing.assert_allclose(answer, true_entropy(dist, params), rtol=1e-5, atol=1e-5)


@each_engine
@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0])
@pytest.mark.parametrize(("log_std", "error"), [(-4.0, 1e-4), (-1.0, 1e-4), (0.5, 1e-4), (2.0, 0.1)])
def test_entropy_of_a_squashed_gaussian(engine, mean, log_std, error):
    one = Distribution("tanh_gaussian", (), 1)
    _, answer = evaluate(engine, one, np.array([[mean, log_std]], np.float32), np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(answer, squashed_entropy(mean, log_std), atol=error)


@each_engine
@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.8, -0.7), (-1.5, -2.0)])
def test_density_of_a_squashed_gaussian_integrates_to_1(engine, mean, log_std):
    action = np.tanh(np.linspace(-6.5, 6.5, 20_001)).astype(np.float32)
    params = np.tile(np.array([mean, log_std], np.float32), (len(action), 1))
    log_prob, _ = evaluate(engine, Distribution("tanh_gaussian", (), 1), params, action[:, None])
    assert np.trapezoid(np.exp(log_prob.astype(np.float64)), action.astype(np.float64)) == pytest.approx(1.0, abs=2e-3)


@each_engine
def test_a_squashed_action_on_its_bound_has_a_finite_log_probability(engine):
    action = np.array([[1.0, -1.0], [1.0, 1.0]], np.float32)
    log_prob, _ = evaluate(engine, SQUASHED, np.zeros((2, 4), np.float32), action)
    assert np.isfinite(log_prob).all()


@each_engine
@pytest.mark.parametrize("log_std", [-20.0, 2.0])
@pytest.mark.parametrize("mean", [-50.0, 50.0])
def test_extreme_squashed_gaussians_stay_finite(engine, log_std, mean):
    params = np.full((1, 4), mean, np.float32)
    params[:, 2:] = log_std
    _, entropy = evaluate(engine, SQUASHED, params, np.sign(params[:, :2]))
    np.testing.assert_allclose(entropy, 2 * squashed_entropy(mean, log_std), rtol=1e-3)


@each_engine
@each(CHOICES)
def test_extreme_logits_stay_finite(engine, dist):
    params = np.sign(some_params(dist)) * 300.0
    log_prob, entropy = evaluate(engine, dist, params, some_actions(dist))
    assert np.isfinite(log_prob).all()
    np.testing.assert_allclose(log_prob, true_log_prob(dist, params, some_actions(dist)), atol=1e-4)
    assert np.isfinite(entropy).all()
    assert (entropy >= 0).all()


@each_engine
def test_a_deterministic_policy_has_neither(engine):
    params = np.zeros((3, 2), np.float32)
    with pytest.raises(BadInput, match="deterministic"):
        evaluate(engine, DETERMINISTIC, params, params)


def test_numpy_refuses_the_entropy_of_a_deterministic_policy_too():
    with pytest.raises(BadInput, match="deterministic"):
        distributions.entropy(DETERMINISTIC, np.zeros((3, 2), np.float32))


@each_engine
@each(CHOICES)
def test_mode_of_choices_is_the_likeliest_action(engine, dist):
    params = some_params(dist)
    best = action_probabilities(dist, params, True).argmax(axis=1)
    np.testing.assert_array_equal(mode(engine, dist, params), all_actions(dist)[best])


@each_engine
@pytest.mark.parametrize(("dist", "expected"), [(GAUSSIAN, lambda x: x), (SQUASHED, np.tanh), (DETERMINISTIC, np.tanh)])
def test_mode_of_a_vector(engine, dist, expected):
    params = some_params(dist)
    np.testing.assert_allclose(mode(engine, dist, params), expected(params[:, :2]), rtol=1e-6)


# ── draws ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", ["numpy", "jax"])
@pytest.mark.parametrize("is_masked", [False, True])
@each(CHOICES)
def test_frequencies_are_the_probabilities(engine, dist, is_masked):
    row = some_params(dist, 1)
    mask = some_masks(dist)[5] if is_masked else np.ones(sum(sizes_of(dist)), bool)
    drawn = draw(engine, dist, row, mask if is_masked else None)
    assert drawn.shape == ((DRAWS,) if dist.kind == "categorical" else (DRAWS, 2))
    expected = action_probabilities(dist, row, mask)[0]
    same = drawn.reshape(DRAWS, 1, -1) == all_actions(dist).reshape(1, len(expected), -1)
    frequency = same.all(axis=2).mean(axis=0)
    np.testing.assert_allclose(frequency, expected, atol=0.012)
    assert (frequency[expected == 0] == 0).all()


@each_engine
@each(DENSITIES)
def test_draws_from_a_gaussian_have_its_distribution_function(engine, dist):
    """Also of the squashed one, whose moments have no closed form: P(a < t) = Φ((artanh t − μ) / σ)."""
    mean, deviation = np.array([0.5, -1.0]), np.array([0.4, 1.5])
    drawn = draw(engine, dist, np.concatenate([mean, np.log(deviation)]))
    assert drawn.dtype == np.float32
    for limit in (-0.9, -0.3, 0.2, 0.8):
        before = np.arctanh(limit) if dist is SQUASHED else limit
        expected = td.Normal(0.0, 1.0).cdf(torch.tensor((before - mean) / deviation)).numpy()
        np.testing.assert_allclose((drawn < limit).mean(axis=0), expected, atol=0.012)
    entries = (np.arctanh(np.clip(drawn, -0.999, 0.999)) if dist is SQUASHED else drawn).T
    assert abs(np.corrcoef(entries)[0, 1]) < 0.02  # each entry has noise of its own


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_draws_from_a_deterministic_policy_do_not_differ(engine):
    drawn = draw(engine, DETERMINISTIC, [0.5, -1.0], count=100)
    np.testing.assert_allclose(drawn, np.tile(np.tanh([0.5, -1.0]), (100, 1)), rtol=1e-6)


@pytest.mark.parametrize("engine", ["torch", "jax"])
@each(DENSITIES)
def test_draws_come_with_their_own_log_probability(engine, dist):
    params, noise = some_params(dist), np.random.default_rng(3).normal(size=(ROWS, 2)).astype(np.float32)
    action, log_prob = draw_with_log_prob(engine, dist, params, noise)
    np.testing.assert_allclose(log_prob, true_log_prob(dist, params, action), rtol=1e-3, atol=2e-3)
    at_zero, _ = draw_with_log_prob(engine, dist, params, np.zeros_like(noise))
    np.testing.assert_allclose(at_zero, mode(engine, dist, params), rtol=1e-6)


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────────────


def climbed(action, log_prob):
    """Some function of a draw and its log-probability."""
    return (action * action).sum() - 0.3 * log_prob.sum()


def torch_gradient(dist, params, noise):
    rows = tensor(params).requires_grad_()
    climbed(*torch_ops.sample_with_log_prob(dist, rows, tensor(noise))).backward()
    return rows.grad.numpy()


@compiled
def jax_gradient(dist, params, noise):
    return jax.grad(lambda rows: climbed(*jax_ops.sample_with_log_prob(dist, rows, noise)))(params)


@each(DENSITIES)
def test_gradients_flow_through_a_draw(dist):
    params, noise = some_params(dist), np.random.default_rng(3).normal(size=(ROWS, 2)).astype(np.float32)
    wide, fixed = tensor(params[:5]).double().requires_grad_(), tensor(noise[:5]).double()
    assert torch.autograd.gradcheck(lambda x: torch_ops.sample_with_log_prob(dist, x, fixed), wide)
    from_torch = torch_gradient(dist, params, noise)
    assert (np.abs(from_torch) > 0).all()
    np.testing.assert_allclose(jax_gradient(dist, params, noise), from_torch, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gradient", [torch_gradient, jax_gradient], ids=["torch", "jax"])
@each(DENSITIES)
def test_gradients_of_far_draws_stay_finite(dist, gradient):
    params, noise = np.tile(np.array([60.0, -60.0, 2.0, 2.0], np.float32), (ROWS, 1)), np.float32([[4.0, -4.0]] * ROWS)
    assert np.isfinite(gradient(dist, params, noise)).all()


def torch_masked_gradient(dist, params, action, mask):
    """Of log-probability plus half of the entropy, which is what a policy gradient climbs."""
    rows = tensor(params).requires_grad_()
    log_prob, entropy = torch_ops.log_prob_and_entropy(dist, rows, tensor(action), tensor(mask))
    (log_prob.sum() + 0.5 * entropy.sum()).backward()
    return rows.grad.numpy()


@compiled
def jax_masked_gradient(dist, params, action, mask):
    def both(rows):
        log_prob, entropy = jax_ops.log_prob_and_entropy(dist, rows, action, mask)
        return log_prob.sum() + 0.5 * entropy.sum()

    return jax.grad(both)(params)


def true_masked_gradient(dist, params, action, masks, step=1e-4):
    """The same by differences, from the probabilities of all actions."""
    everything, rows = all_actions(dist).reshape(1, -1, dist.entries), np.arange(len(params))
    chosen = (everything == action.reshape(len(action), 1, -1)).all(axis=-1).argmax(axis=1)
    gradient = np.zeros(params.shape)
    for column, sign in itertools.product(range(dist.num_params), (1, -1)):
        moved = params.astype(np.float64)
        moved[:, column] += sign * step
        p = action_probabilities(dist, moved, masks)
        gradient[:, column] += sign * (np.log(p[rows, chosen]) + 0.5 * entropy_of(p)) / (2 * step)
    return gradient


@pytest.mark.parametrize("gradient", [torch_masked_gradient, jax_masked_gradient], ids=["torch", "jax"])
@each(CHOICES)
def test_gradients_under_a_mask(dist, gradient):
    """Finite, 0 at logits that mean nothing, and the true ones elsewhere."""
    params, masks = some_params(dist), some_masks(dist)
    action = mode("numpy", dist, params, masks)
    answer = np.asarray(gradient(dist, params, action, masks))
    free = masks.reshape(ROWS, -1, 2).all(axis=-1) if dist is BITS else masks
    np.testing.assert_array_equal(answer[~free], 0.0)
    np.testing.assert_allclose(answer, true_masked_gradient(dist, params, action, masks), atol=1e-4)


# ── masks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@each_engine
@each(CHOICES)
def test_masked_probabilities(engine, dist):
    """Exactly 0 for an illegal action, the softmax over the legal ones for the others."""
    params, masks = some_params(dist), some_masks(dist)
    expected = action_probabilities(dist, params, masks)
    for number, action in enumerate(all_actions(dist)):
        log_prob, _ = evaluate(engine, dist, params, np.tile(action, (ROWS,) + (1,) * action.ndim), masks)
        probability = np.exp(log_prob)
        np.testing.assert_array_equal(probability[expected[:, number] == 0], 0.0)
        np.testing.assert_allclose(probability, expected[:, number], rtol=1e-4)


@each_engine
@each(CHOICES)
def test_masked_entropy_is_that_of_the_legal_actions(engine, dist):
    params, masks = some_params(dist), some_masks(dist)
    expected = entropy_of(action_probabilities(dist, params, masks))
    _, answer = evaluate(engine, dist, params, mode("numpy", dist, params, masks), masks)
    np.testing.assert_allclose(answer, expected, atol=1e-5)


@each_engine
@each(CHOICES)
def test_masked_mode_is_the_likeliest_legal_action(engine, dist):
    params, masks = some_params(dist), some_masks(dist)
    best = action_probabilities(dist, params, masks).argmax(axis=1)
    np.testing.assert_array_equal(mode(engine, dist, params, masks), all_actions(dist)[best])


@each_engine
@each(CHOICES)
def test_a_mask_that_allows_everything_changes_nothing(engine, dist):
    params, action = some_params(dist), some_actions(dist)
    everything = np.ones_like(some_masks(dist))
    for plain, masked in zip(
        evaluate(engine, dist, params, action), evaluate(engine, dist, params, action, everything), strict=True
    ):
        np.testing.assert_array_equal(plain, masked)


@each_engine
@each(DENSITIES)
def test_densities_have_nothing_to_mask(engine, dist):
    with pytest.raises(BadInput, match="no choices to mask"):
        evaluate_masked(engine, dist)


def evaluate_masked(engine, dist):
    params, mask = some_params(dist), np.ones((ROWS, 4), bool)
    if engine == "numpy":
        return distributions.masked(dist, params, mask)
    return evaluate(engine, dist, params, some_actions(dist), mask)


@each(CHOICES)
def test_probabilities_for_viewers_are_those_of_the_legal_actions(dist):
    params, masks = some_params(dist), some_masks(dist)
    shown = distributions.probabilities(dist, params, masks)
    expected = entry_probabilities(dist, params, masks)
    if dist is BITS:
        expected = [np.stack([part[:, 1] for part in expected], axis=1)]
    for got, true in zip(shown, expected, strict=True):
        np.testing.assert_allclose(got, true, rtol=1e-4)
        np.testing.assert_array_equal(got == 0, true == 0)


class EdgeDraws:
    """Stands in for a random generator at the ends of what it can draw."""

    def __init__(self, uniform, exponential):
        self.uniform, self.exponential = uniform, exponential

    def random(self, shape, dtype):
        return np.full(shape, self.uniform, dtype)

    def standard_exponential(self, shape, dtype):
        return np.full(shape, self.exponential, dtype)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("edge", [EdgeDraws(0.0, 0.0), EdgeDraws(JUST_BELOW_1, 17.0)], ids=["lowest", "highest"])
@each(CHOICES)
def test_numpy_draws_no_illegal_action_at_the_edges(dist, edge, temperature):
    masks = some_masks(dist)
    for scale in (1.0, 30.0):
        drawn = distributions.sample(dist, scale * some_params(dist), edge, temperature, masks)
        assert is_legal(dist, drawn, masks).all()


@pytest.mark.parametrize("uniform", [0.0, 0.5, JUST_BELOW_1])
@each(CHOICES)
def test_jax_draws_no_illegal_action_at_the_edges(dist, uniform):
    masks = some_masks(dist)
    for scale in (1.0, 30.0):
        drawn = jax_sample(dist, scale * some_params(dist), np.full((ROWS, 2), uniform, np.float32), masks)
        assert is_legal(dist, drawn, masks).all()


@jax.jit
def running_sums(logits):
    return jnp.cumsum(jax.nn.softmax(logits, axis=-1), axis=-1)


@pytest.mark.parametrize("count", [20, 600])
def test_jax_draws_no_illegal_action_where_one_choice_meets_the_next(count):
    """Draws that lie on the running sums of probabilities, whose rounding depends on how they are added up."""
    dist, rng = Distribution("categorical", (count,), 1), np.random.default_rng(0)
    sample = jax.jit(jax_ops.sample, static_argnums=0)
    for _ in range(5):
        logits, mask = rng.normal(size=count).astype(np.float32), rng.random(count) < 0.5
        sums = np.asarray(running_sums(np.where(mask, logits, distributions.ILLEGAL)))
        draws = np.minimum(np.concatenate([sums, np.nextafter(sums, np.float32(0))]), JUST_BELOW_1)
        masks = np.tile(mask, (len(draws), 1))
        drawn = sample(dist, np.tile(logits, (len(draws), 1)), draws[:, None], masks)
        assert is_legal(dist, drawn, masks).all()
