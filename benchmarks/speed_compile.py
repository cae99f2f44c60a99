"""What compiling the update costs and what it saves: the numbers behind `--compile auto`.

    python benchmarks/speed_compile.py [--only dqn sac] [--rounds 7]
    python benchmarks/speed_compile.py --end-to-end [--only ppo dqn] [--steps 20000 100000]

The first table has a row per algorithm, network and batch. Cost: CPU seconds (with the compiler's own processes) that a
new process needs to its first update beyond those without compilation, with an empty and with a filled compiler cache.
Saving: milliseconds of one update, eager minus compiled, alternating on the same batch in one process; beside it what
`drl.engines.torch.compiled_update` expects. The second times whole runs of presets in new processes, with a full cache.
Longer runs than those of `--steps` are extrapolated from the speed between these two.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from alternating import pin_to_one_core

Settings = dict[str, Any]  # flat names

LARGE: Settings = {"hidden_sizes": [256, 256]}
CASES: list[Settings] = [
    {"algorithm": "ppo", "env": "CartPole-v1"},
    {"algorithm": "ppo", "env": "CartPole-v1", "minibatches": 1},
    {"algorithm": "ppo", "env": "CartPole-v1", "num_envs": 64, "minibatches": 1},
    {"algorithm": "ppo", "env": "CartPole-v1", "minibatches": 4} | LARGE,
    {"algorithm": "ppo", "env": "Pendulum-v1"},
    {"algorithm": "a2c", "env": "CartPole-v1"},
    {"algorithm": "dqn", "env": "CartPole-v1"},
    {"algorithm": "dqn", "env": "CartPole-v1", "batch_size": 128, "hidden_sizes": [128, 128]},
    {"algorithm": "dqn", "env": "CartPole-v1", "batch_size": 256} | LARGE,
    {"algorithm": "dqn", "env": "CartPole-v1", "dueling": True, "noisy": True, "distributional": "c51"},
    {"algorithm": "dqn", "env": "CartPole-v1", "batch_size": 256, "hidden_sizes": [1024, 1024]},
    {"algorithm": "sac", "env": "Pendulum-v1"},
]
PRESETS = (("ppo", "CartPole-v1"), ("ppo", "Pendulum-v1"), ("dqn", "CartPole-v1"), ("sac", "Pendulum-v1"))


def experiment_of(settings: Settings) -> Any:
    from drl.settings.experiment import Experiment
    from drl.settings.presets import load_preset

    preset = load_preset(settings["algorithm"], settings["env"]) or {}
    return Experiment.from_flat(preset | settings, "benchmark")


@contextlib.contextmanager
def first_batch(settings: Settings) -> Iterator[tuple[Any, Any]]:
    """The algorithm of a run after its first update, and the batch it learned from."""
    from drl.runs.building import open_trainer

    at_once: Settings = {"warmup": 0, "train_every": 1, "gradient_steps": 1} if replays(settings) else {}
    with open_trainer(experiment_of(settings | at_once | {"threads": 1})) as made:
        trainer: Any = made
        seen: list[Any] = []
        learn = trainer.algorithm.learn

        def keep(batch: Any, progress: float = 0.0) -> Any:
            seen.append(batch)
            return learn(batch, progress)

        trainer.algorithm.learn = keep
        trainer.config = type(trainer.config)(updates_per_log=1)
        trainer.step()
        trainer.algorithm.learn = learn
        yield trainer.algorithm, seen[-1]


def replays(settings: Settings) -> bool:
    from drl.algorithms import find_algorithm

    return hasattr(find_algorithm(settings["algorithm"]).buffer.config, "warmup")


def milliseconds(work: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Of one call of each, alternating; the median round."""
    times: dict[str, list[float]] = {name: [] for name in work}
    calls = {}
    for name, run in work.items():
        run()
        started = time.process_time()
        run()
        calls[name] = max(1, round(0.15 / max(time.process_time() - started, 1e-4)))
    for _ in range(rounds):
        for name, run in work.items():
            started = time.process_time()
            for _ in range(calls[name]):
                run()
            times[name].append((time.process_time() - started) / calls[name] * 1000)
    return {name: statistics.median(measured) for name, measured in times.items()}


def cpu_seconds(command: list[str], cache: str) -> float:
    """Of a new process and its children, with this folder as the compiler's cache."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def cost_row(settings: Settings) -> str:
    """Seconds to the first update, cold and warm, beyond those without compilation; the better of two."""
    times: dict[str, list[float]] = {"off": [], "cold": [], "warm": []}
    for _ in range(2):
        with tempfile.TemporaryDirectory() as cache:
            for kind, measured in times.items():
                wanted = settings | {"compile": "off" if kind == "off" else "on"}
                measured.append(cpu_seconds([__file__, "--first-update", json.dumps(wanted)], cache))
    off, cold, warm = (min(measured) for measured in times.values())
    return f"{cold - off:4.1f} | {warm - off:4.1f}"


def saving_row(settings: Settings, rounds: int) -> str:
    from drl.engines.torch import compiled_update

    experiment = experiment_of(settings)
    with (
        first_batch(settings | {"compile": "off"}) as (eager, batch),
        first_batch(settings | {"compile": "on"}) as (compiled, _),
    ):
        learner: Any = experiment.learner
        updates = getattr(learner, "epochs", 1) * getattr(learner, "minibatches", 1)
        work = {"eager": lambda: eager.learn(batch), "compiled": lambda: compiled.learn(batch)}
        took = {name: total / updates for name, total in milliseconds(work, rounds).items()}
        trained = [parameter for parameter in eager.model.parameters() if parameter.requires_grad]
        plan = compiled_update.planned_work(learner, experiment.buffer, experiment.run.num_envs, 1)
        expected = compiled_update.saved_seconds(len(trained), plan.rows)
        saved, weights = took["eager"] - took["compiled"], sum(parameter.numel() for parameter in trained)
        size = f"{plan.rows:5,} rows | {len(trained):3} tensors, {weights:9,} weights"
        return f"{size} | {took['eager']:6.2f} | {took['compiled']:6.2f} | {saved:5.2f} | {expected * 1000:5.2f}"


def whole_run(algorithm: str, env: str, steps: int, choice: str, folder: str) -> float:
    """CPU seconds of the whole command."""
    flags = {"env": env, "total-timesteps": str(steps), "compile": choice, "results-dir": folder}
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    lean = ["--quiet", "--no-video", "--no-plots", "--no-tensorboard"]
    return cpu_seconds(["-m", "drl.cli.entry", "train", algorithm, *words, *lean], f"{folder}/programs")


def auto_choice(algorithm: str, env: str, steps: int) -> str:
    from drl.runs.building import open_trainer

    settings = {"algorithm": algorithm, "env": env, "total_timesteps": steps}
    with open_trainer(experiment_of(settings)) as trainer:
        choice: Any = trainer.notes["compile"]
        return str(choice["choice"])


def end_to_end(algorithm: str, env: str, steps: list[int], rounds: int) -> None:
    """A line per number of steps: off, on (warm cache), what auto chooses, and how far that is from the others."""
    few, many = steps
    times: dict[tuple[str, int], list[float]] = {(choice, count): [] for choice in ("off", "on") for count in steps}
    with tempfile.TemporaryDirectory() as folder:
        cold = whole_run(algorithm, env, few, "on", folder)  # fills the cache
        for _ in range(rounds):
            for (choice, count), measured in times.items():
                measured.append(whole_run(algorithm, env, count, choice, folder))
    seconds = {key: statistics.median(measured) for key, measured in times.items()}
    first_time = cold - seconds["on", few]  # what a cold cache adds
    for count in sorted({*steps, *(goal for goal in (20_000, 100_000, 1_000_000) if goal > many)}):
        for choice in ("off", "on"):
            slope = (seconds[choice, many] - seconds[choice, few]) / (many - few)
            seconds.setdefault((choice, count), seconds[choice, many] + slope * (count - many))
        auto, off, on = auto_choice(algorithm, env, count), seconds["off", count], seconds["on", count]
        taken, note = seconds[auto, count], "" if count <= many else " (extrapolated)"
        over = f"{taken / off - 1:+.0%} | {taken / min(on, off) - 1:+.0%}"
        numbers = f"{off:.1f} | {on:.1f} | {on + first_time:.1f} | {auto} | {over}"
        print(f"{algorithm} {env} | {count:,}{note} | {numbers}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="algorithms; default: all that there are")
    parser.add_argument("--rounds", type=int, default=5, help="with --end-to-end better 1: whole runs are long")
    parser.add_argument("--no-cost", action="store_true", help="leave out the seconds of compilation")
    parser.add_argument("--end-to-end", action="store_true", help="whole runs of presets")
    parser.add_argument("--steps", type=int, nargs=2, default=[20_000, 100_000], help="of whole runs")
    parser.add_argument("--first-update", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    import torch

    from drl.algorithms import ALGORITHMS

    torch.set_num_threads(1)
    if arguments.first_update:
        with first_batch(json.loads(arguments.first_update)):
            return
    wanted = [name for name in arguments.only or ALGORITHMS if name in ALGORITHMS]
    if arguments.end_to_end:
        print("preset | steps | off, CPU s | on, warm cache | on, cold cache | auto | against off | against the better")
        for algorithm, env in PRESETS:
            if algorithm in wanted:
                end_to_end(algorithm, env, arguments.steps, arguments.rounds)
        return
    title = "update | rows | network | eager ms | compiled ms | saved ms | the rule's ms"
    print(title if arguments.no_cost else f"{title} | cold, CPU s | warm, CPU s")
    costs: dict[int, str] = {}
    chosen = [settings for settings in CASES if settings["algorithm"] in wanted]
    if not arguments.no_cost:
        costs = {number: cost_row(settings) for number, settings in enumerate(chosen)}
    pin_to_one_core()
    for number, settings in enumerate(chosen):
        extra = ", ".join(f"{name} {value}" for name, value in settings.items() if name not in ("algorithm", "env"))
        name = f"{settings['algorithm']} {settings['env']}{', ' * bool(extra)}{extra}"
        print(
            " | ".join([name, saving_row(settings, arguments.rounds), *filter(None, [costs.get(number)])]), flush=True
        )


if __name__ == "__main__":
    main()
