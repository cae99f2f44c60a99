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
