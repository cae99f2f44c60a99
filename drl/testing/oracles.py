"""Reference math: slow float64 loops written from the definitions. They check every engine's `ops`."""

import numpy as np

from drl.core.specs import Array


def gae(
    reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array, gamma: float, lam: float
) -> Array:
    """A_t = Σ_k (γλ)^k δ_{t+k}, summed forward until the episode or the window ends. Arrays [T, N]."""
    length, envs = reward.shape
    advantage = np.zeros((length, envs), np.float64)
    for t in range(length):
        for n in range(envs):
            for k in range(t, length):
                future = 0.0 if terminated[k, n] else gamma * float(next_value[k, n])
                delta = float(reward[k, n]) + future - float(value[k, n])
                advantage[t, n] += (gamma * lam) ** (k - t) * delta
                if terminated[k, n] or truncated[k, n]:
                    break
    return advantage


def n_step_return(
    reward: Array, next_value: Array, terminated: Array, truncated: Array, gamma: float, n_steps: int
) -> Array:
    """Up to n rewards, then the value of the state reached unless that was a termination. Arrays [T, N]."""
    length, envs = reward.shape
    target = np.zeros((length, envs), np.float64)
    for t in range(length):
        for n in range(envs):
            for k in range(n_steps):
                row = t + k
                target[t, n] += gamma**k * float(reward[row, n])
                ended = terminated[row, n] or truncated[row, n]
                if ended or k == n_steps - 1 or row == length - 1:
                    if not terminated[row, n]:
                        target[t, n] += gamma ** (k + 1) * float(next_value[row, n])
                    break
    return target


def discounted_return(reward: Array, next_value: Array, terminated: Array, truncated: Array, gamma: float) -> Array:
    """The n-step return with no limit on n."""
    return n_step_return(reward, next_value, terminated, truncated, gamma, n_steps=len(reward))


def categorical_log_prob(logits: Array, action: int) -> float:
    """log softmax(logits)[action] for one row."""
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return float(np.log(weights[action] / weights.sum()))


def categorical_entropy(logits: Array) -> float:
    """−Σ p log p, of one state's logits."""
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    probabilities = weights / weights.sum()
    return float(-sum(p * np.log(p) for p in probabilities if p > 0))


def gaussian_log_prob(mean: Array, log_std: Array, action: Array) -> float:
    """log density of independent normals, summed."""
    total = 0.0
    for m, s, a in zip(np.ravel(mean), np.ravel(log_std), np.ravel(action), strict=True):
        deviation = float(np.exp(float(s)))
        total += -0.5 * ((float(a) - float(m)) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi))
    return float(total)


def ppo_loss_terms(
    old_log_prob: Array, log_prob: Array, advantage: Array, clip_range: float
) -> tuple[float, float, float, float]:
    """Policy loss, clip fraction, approximate KL and mean clipped ratio, one sample at a time."""
    objective, clipped_count, kl, clipped_sum = 0.0, 0, 0.0, 0.0
    for old, new, a in zip(old_log_prob, log_prob, advantage, strict=True):
        ratio = float(np.exp(float(new) - float(old)))
        clipped = min(max(ratio, 1 - clip_range), 1 + clip_range)
        objective += min(ratio * float(a), clipped * float(a))
        clipped_count += ratio != clipped
        kl += (ratio - 1) - (float(new) - float(old))
        clipped_sum += clipped
    count = len(advantage)
    return -objective / count, clipped_count / count, kl / count, clipped_sum / count


def c51_projection(probs: Array, reward: float, continues: float, support: Array) -> Array:
    """Where the mass of r + γ^k Z goes, atom by atom, for one sample."""
    target = np.zeros(len(support), np.float64)
    step = (float(support[-1]) - float(support[0])) / (len(support) - 1)
    for mass, atom in zip(probs, support, strict=True):
        moved = min(max(float(reward) + float(continues) * float(atom), float(support[0])), float(support[-1]))
        for i, place in enumerate(support):  # a triangle of half-width Δz over each atom
            target[i] += float(mass) * max(0.0, 1.0 - abs(moved - float(place)) / step)
    return target


def huber(error: float) -> float:
    """Half the square up to 1, linear beyond."""
    return 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5


def quantile_huber(quantiles: Array, target: Array) -> float:
    """QR-DQN's loss of one sample: mean over targets, sum over quantiles."""
    total = 0.0
    for i, quantile in enumerate(quantiles):
        level = (i + 0.5) / len(quantiles)
        for sample in target:
            error = float(sample) - float(quantile)
            total += abs(level - (error < 0)) * huber(error) / len(target)
    return total


def prioritized_sampling(errors: Array, alpha: float, beta: float, eps: float) -> tuple[Array, Array]:
    """Probabilities of all transitions, and importance weights before they are divided by the largest."""
    priorities = np.array([(abs(float(error)) + eps) ** alpha for error in errors])
    probabilities = priorities / priorities.sum()
    return probabilities, (len(errors) * probabilities) ** -beta


# ── actor-critics ─────────────────────────────────────────────────────────────────────────────────────────────────


def squashed_gaussian(mean: Array, log_std: Array, noise: Array) -> tuple[Array, float]:
    """tanh(mean + σ · noise) of one row, and the log density of that action."""
    action, log_prob = np.zeros(len(mean)), 0.0
    for i, (m, s, e) in enumerate(zip(mean, log_std, noise, strict=True)):
        value = float(m) + float(np.exp(float(s))) * float(e)
        action[i] = np.tanh(value)
        log_prob += gaussian_log_prob(m, s, np.asarray(value)) - np.log(1.0 / np.cosh(value) ** 2)
    return action, float(log_prob)


def soft_value(q_values: Array, logits: Array, alpha: float, legal: Array | None = None) -> tuple[float, float]:
    """Σ π(a) (Q(a) − α log π(a)) over the legal actions of one row, and the entropy of π."""
    actions = [a for a in range(len(logits)) if legal is None or legal[a]]
    logs = [categorical_log_prob(np.asarray(logits)[actions], i) for i in range(len(actions))]
    value = sum(np.exp(p) * (float(q_values[a]) - alpha * p) for a, p in zip(actions, logs, strict=True))
    return float(value), float(-sum(np.exp(p) * p for p in logs))


def pooled_quantiles(quantiles: Array, to_drop: int) -> Array:
    """The quantiles `[M, atoms]` of all critics in order, without the `to_drop` · M largest."""
    pool = sorted(float(quantile) for critic in quantiles for quantile in critic)
    for _ in range(to_drop * len(quantiles)):
        pool.pop()
    return np.array(pool)


def quantile_loss(quantiles: Array, target: Array, loss: str) -> float:
    """`quantile_huber`, or the same with half of the squared error."""
    if loss == "huber":
        return quantile_huber(quantiles, target)
    total = 0.0
    for i, quantile in enumerate(quantiles):
        for sample in target:
            error = float(sample) - float(quantile)
            total += abs((i + 0.5) / len(quantiles) - (error < 0)) * 0.5 * error**2 / len(target)
    return total


def renorm_corrections(batch: Array, running_mean: Array, running_var: Array) -> tuple[Array, Array]:
    """r and d of batch renormalization (Ioffe, 2017), within [1/3, 3] and [−5, 5], column by column."""
    scale, shift = np.ones(batch.shape[1]), np.zeros(batch.shape[1])
    for i, column in enumerate(np.asarray(batch, np.float64).T):
        mean = sum(column) / len(column)
        deviation = np.sqrt(sum((x - mean) ** 2 for x in column) / len(column) + 1e-3)
        running = np.sqrt(float(running_var[i]) + 1e-3)
        scale[i] = min(max(deviation / running, 1 / 3), 3.0)
        shift[i] = min(max((mean - float(running_mean[i])) / running, -5.0), 5.0)
    return scale, shift
