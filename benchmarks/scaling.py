"""Collectors on Ray: how they scale, what they cost, RLlib beside them, and a model that predicts more of them.

    python benchmarks/scaling.py scale [--collectors 1 2 4 8 16 32]     # an environment that waits 5 ms a step
    python benchmarks/scaling.py overhead [--rounds 3]                  # one collector against none, LunarLander-v3
    python benchmarks/scaling.py rllib --python OTHER/bin/python        # a Python with ray[rllib] and gymnasium[box2d]
    python benchmarks/scaling.py predict                                # the cost model, beside what `scale` has stored

`scale` stores what it measures in `benchmarks/curves/scaling.json`, from which `predict` takes its constants. All
contestants have the same settings: PPO, 64-64, 32 environments.
"""

import argparse
import heapq
import json
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

STORED = Path(__file__).parent / "curves" / "scaling.json"
ENVS, STEPS, WAIT, CORES = 32, 128, 0.005, 2
SETTINGS = {
    "algorithm": "ppo",
    "num_envs": ENVS,
    "rollout_length": STEPS,
    "minibatches": 4,
    "seed": 0,
    "compile": "off",
}


class Waiting(gym.Env[Any, Any]):
    """Eight numbers, four actions, 200 steps; a step waits."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 200
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(WAIT)
        self.left -= 1
        return np.full(8, self.left / 200, np.float32), float(action == 1), False, self.left == 0, {}


@contextmanager
def trainer_of(env: str, collectors: int, epochs: int, **changes: Any) -> Iterator[Any]:
    from drl.runs.building import open_trainer
    from drl.settings.experiment import Experiment

    scaling = {"cluster": "local", "num_collectors": collectors, "env_blocks": ENVS} if collectors else {}
    flat = SETTINGS | {"env": env, "epochs": epochs} | scaling | changes
    with open_trainer(Experiment.from_flat(flat, "benchmark")) as trainer:
        yield trainer


def seconds_per_step(trainer: Any, steps: int) -> float:
    """Median wall time of a learning step, the first one left out."""
    trainer.step()
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def constants(trainer: Any) -> dict[str, float]:
    """What the parts of a learning step take, in seconds and bytes."""
    collector, agent, ray = trainer.collector, trainer.agent, trainer.collector.ray
    state = agent.state_dict()
    weights = {name: state[name] for name in ("model", "normalizer")}
    started = time.perf_counter()
    for _ in range(20):
        ray.put(weights)
    put = (time.perf_counter() - started) / 20
    rows = list(collector._all(trainer.env_steps))
    for taken in rows:
        trainer._add(taken)
    started = time.process_time()
    update = trainer.algorithm.learn(trainer._prepared(trainer.buffer.take()), 0.0)
    assert update.log
    learn = time.process_time() - started
    process = collector.processes[0]
    started = time.perf_counter()
    for _ in range(50):
        ray.get(process.actor.steps_taken.options(concurrency_group="look").remote())
    call = (time.perf_counter() - started) / 50
    return {
        "broadcast_bytes": len(pickle.dumps(weights)),
        "put_seconds": put,
        "call_seconds": call,
        "learn_seconds": learn,
    }


def chunk_bytes(trainer: Any) -> int:
    """Of one block's steps, as they are sent."""
    collector = trainer.collector
    process = collector.processes[0]
    collector._order(process, trainer.env_steps)
    chunks = collector._answer(process)
    process.orders.clear()
    collector._restart(process)
    return len(pickle.dumps(chunks)) // len(chunks)


def scale(counts: list[int]) -> None:
    """Steps per second for numbers of collectors; the split of environments is the same for all."""
    stored: dict[str, Any] = {"cores": CORES, "envs": ENVS, "steps": STEPS, "wait": WAIT, "measured": {}}
    for count in counts:
        with trainer_of(f"{__file__}:Waiting", count, epochs=1) as trainer:
            seconds = seconds_per_step(trainer, 2 if count < 4 else 4)
            stored["measured"][str(count)] = seconds
            if count == max(counts):
                stored |= constants(trainer) | {"chunk_bytes": chunk_bytes(trainer)}
        speed = ENVS * STEPS / seconds
        first = stored["measured"][str(counts[0])]
        print(
            f"{count:4} collectors  {seconds:8.3f} s a learning step  {speed:8,.0f} steps/s  {first / seconds:6.2f} ×"
        )
    stored |= step_seconds()
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


def step_seconds() -> dict[str, float]:
    """One step of one environment in a block of one: its CPU time, also while other processes keep the other cores
    busy, and the time that it waits."""
    from drl.runs.collector_blocks import RunBlocks
    from drl.settings.experiment import Experiment

    scaling = {"cluster": "local", "num_collectors": 1, "env_blocks": ENVS}
    block = RunBlocks(Experiment.from_flat(SETTINGS | {"env": f"{__file__}:Waiting"} | scaling, ""), None).make(0)

    def times() -> tuple[float, float]:
        for _ in range(100):
            block.step(0)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(1000):
            block.step(0)
        return (time.process_time() - cpu) / 1000, (time.perf_counter() - wall) / 1000

    cpu, wall = times()
    others = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"]) for _ in range(CORES - 1)]
    try:
        crowded, _ = times()
    finally:
        for other in others:
            other.kill()
    return {"step_cpu_seconds": cpu, "step_cpu_seconds_crowded": crowded, "step_wait_seconds": wall - cpu}


def simulated(count: int, c: dict[str, Any], cores: int) -> float:
    """Seconds until `count` collectors that share `cores` have stepped their blocks. A step waits, then computes when a
    core is free; it computes more slowly while the others are busy."""
    blocks = max(c["envs"], count)
    left = [c["steps"] * len(share) for share in np.array_split(np.arange(blocks), count)]
    awake = [(c["step_wait_seconds"], number) for number in range(count)]
    free = [0.0] * cores
    heapq.heapify(awake)
    ended = 0.0
    while awake:
        ready, number = heapq.heappop(awake)
        start = max(ready, heapq.heappop(free))
        alone = all(each <= start for each in free)
        ended = start + c["step_cpu_seconds" if alone else "step_cpu_seconds_crowded"]
        heapq.heappush(free, ended)
        left[number] -= 1
        if left[number]:
            heapq.heappush(awake, (ended + c["step_wait_seconds"], number))
    return ended


def predicted(count: int, c: dict[str, Any], cores: int) -> float:
    """Seconds of one learning step with `count` collectors. Orders leave the driver one after the other, and answers
    are unpacked one after the other."""
    blocks = max(c["envs"], count)
    unpack = blocks * c["chunk_bytes"] / 1e9 + count * c["call_seconds"] / 2
    learn = c["learn_seconds"] * blocks / c["envs"]
    return float(c["put_seconds"] + count * c["call_seconds"] / 2 + simulated(count, c, cores) + unpack + learn)


def predict() -> None:
    stored = json.loads(STORED.read_text())
    print("collectors   measured   predicted   difference")
    for name, seconds in stored["measured"].items():
        guess = predicted(int(name), stored, stored["cores"])
        print(f"{name:>10} {seconds:9.3f} s {guess:9.3f} s {guess / seconds - 1:+11.0%}")
    print("\none environment for each collector, a core for each collector:")
    for count in (10, 100, 1000):
        guess = predicted(count, stored | {"envs": count}, cores=count)
        rows = count * stored["steps"]
        sent = count * (stored["broadcast_bytes"] + stored["chunk_bytes"]) / 1e6
        print(
            f"{count:>10} {guess:9.3f} s a learning step, {rows / guess:10,.0f} steps/s, {sent:8.1f} MB a learning step"
        )


def overhead(rounds: int) -> None:
    """LunarLander-v3 in this process, and in one collector."""
    times: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(rounds):
        for count in times:
            changes = {"env_blocks": 1} if count else {"vectorization": "sync"}
            with trainer_of("LunarLander-v3", count, epochs=4, **changes) as trainer:
                times[count].append(seconds_per_step(trainer, 8))
    none, one = (statistics.median(times[count]) for count in (0, 1))
    print(f"no collector {none:.3f} s, one collector {one:.3f} s a learning step: {one / none - 1:+.1%}")


RLLIB = """
import json, sys, time
started = time.perf_counter()
import logging, os, warnings
warnings.filterwarnings("ignore"); os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
import ray
from ray.rllib.algorithms.ppo import PPOConfig
ray.init(include_dashboard=False, log_to_driver=False, num_cpus=4, logging_level=logging.ERROR)
env, envs, steps, collectors, rounds = sys.argv[1], *map(int, sys.argv[2:])
config = (PPOConfig().environment(env)
    .env_runners(num_env_runners=collectors, num_envs_per_env_runner=envs // collectors,
                 rollout_fragment_length=steps)
    .training(train_batch_size_per_learner=envs * steps, minibatch_size=envs * steps // 4, num_epochs=4,
              lr=2.5e-4, entropy_coeff=0.01, model={"fcnet_hiddens": [64, 64], "vf_share_layers": False}))
algorithm = config.build_algo()
algorithm.train()
first = time.perf_counter() - started
times = []
for _ in range(rounds):
    t = time.perf_counter(); algorithm.train(); times.append(time.perf_counter() - t)
print(json.dumps([first, sorted(times)[len(times) // 2]]))
algorithm.stop()
"""

OURS = """
import sys, time
started = time.perf_counter()
sys.path.insert(0, {folder!r})
import json
import scaling
with scaling.trainer_of("LunarLander-v3", 2, epochs=4, env_blocks=2) as trainer:
    trainer.step()
    first = time.perf_counter() - started
    print(json.dumps([first, scaling.seconds_per_step(trainer, 8)]))
"""


def rllib(python: str, rounds: int) -> None:
    """PPO on LunarLander-v3 with two collectors: start-up with the first learning step, then the median of the rest."""
    ours = [sys.executable, "-c", OURS.format(folder=str(Path(__file__).parent))]
    peer = [python, "-c", RLLIB, "LunarLander-v3", str(ENVS), str(STEPS), "2", "8"]
    results: dict[str, list[list[float]]] = {"RLlib": [], "drl": []}
    for _ in range(rounds):
        for name, command in (("RLlib", peer), ("drl", ours)):
            out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
            results[name].append(json.loads(out.strip().splitlines()[-1]))
    for name, each in results.items():
        first, step = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"{name:6} start and first learning step {first:6.1f} s; then {ENVS * STEPS / step:8,.0f} steps/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["scale", "overhead", "rllib", "predict"])
    parser.add_argument("--collectors", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    flags = parser.parse_args()
    {
        "scale": lambda: scale(flags.collectors),
        "overhead": lambda: overhead(flags.rounds),
        "rllib": lambda: rllib(flags.python, flags.rounds),
        "predict": predict,
    }[flags.what]()
