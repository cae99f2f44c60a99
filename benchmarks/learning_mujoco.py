"""HalfCheetah-v5 and Hopper-v5: our SAC, our normalized SAC and Stable-Baselines3's SAC, same seeds and budget.

    python benchmarks/learning_mujoco.py run CONTESTANT ENV SEED    # sb3 · sac · normalized_sac, or another of ours
    python benchmarks/learning_mujoco.py report                     # the table and the picture of all stored curves

Stable-Baselines3 has the settings that RL Zoo publishes for MuJoCo: its defaults with 10,000 steps before the first
update. Ours have their presets. A curve is the mean return of ten deterministic episodes every 10,000 steps, on
environments that training does not see; its last point is the mean of 100 episodes. All contestants are evaluated on
the same episodes. Curves are kept in `benchmarks/curves/`. Needs the extra mujoco.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

CURVES = Path(__file__).parent / "curves"
PICTURE = Path(__file__).parents[1] / "docs" / "mujoco_sac.png"
NAMES = {"sb3": "SAC, Stable-Baselines3", "sac": "sac", "normalized_sac": "normalized_sac"}
EVALUATION_SEED = 10_000
Actor = Callable[[Any], Any]  # one observation → the action of a policy without exploration


def mean_return(env_id: str, act: Actor, episodes: int) -> float:
    """Of deterministic episodes with the same seeds for all contestants."""
    import gymnasium

    env = gymnasium.make(env_id)
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=EVALUATION_SEED + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, over = total + float(reward), terminated or truncated
    env.close()
    return total / episodes


def stable_baselines(env_id: str, seed: int, steps: int, every: int) -> Iterator[tuple[int, Actor]]:
    """Steps so far and the policy, every `every` steps."""
    import gymnasium
    from stable_baselines3 import SAC

    model = SAC("MlpPolicy", gymnasium.make(env_id), learning_starts=10_000, seed=seed, device="cpu")
    for count in range(every, steps + 1, every):
        model.learn(every, reset_num_timesteps=False)
        yield count, lambda obs: model.predict(obs, deterministic=True)[0]


def ours(
    algorithm: str, env_id: str, seed: int, steps: int, every: int, flags: list[str]
) -> Iterator[tuple[int, Actor]]:
    """The same for one of our algorithms."""
    from drl.cli.train import read_experiment
    from drl.runs.building import open_trainer

    budget = ["--env", env_id, "--seed", str(seed), "--total-timesteps", str(steps)]
    experiment, _ = read_experiment(algorithm, [*budget, *flags])
    with open_trainer(experiment) as trainer:
        due = every
        for log in trainer():
            if log.env_steps >= min(due, steps):
                yield log.env_steps, trainer.agent.act
                due += every


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    started = time.process_time()
    work = (arguments.env, arguments.seed, arguments.steps, arguments.every)
    peer = arguments.contestant == "sb3"
    policies = stable_baselines(*work) if peer else ours(arguments.contestant, *work, flags)
    curve: list[tuple[int, float]] = []
    name = f"{arguments.env}_{arguments.name or arguments.contestant}_{arguments.seed}.json"
    CURVES.mkdir(exist_ok=True)
    for count, act in policies:
        last = count >= arguments.steps
        curve.append((count, mean_return(arguments.env, act, 100 if last else 10)))
        print(f"{arguments.contestant} {arguments.env} seed {arguments.seed}: {curve[-1]}", flush=True)
        content = {"curve": curve, "cpu_seconds": round(time.process_time() - started), "flags": flags}
        (CURVES / f"{'' if last else 'unfinished_'}{name}").write_text(json.dumps(content) + "\n")
    (CURVES / f"unfinished_{name}").unlink(missing_ok=True)


def stored() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The content of all curve files by environment and contestant."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in sorted(CURVES.glob("*-v5_*.json")):
        if file.name.startswith("unfinished_"):
            continue
        env, contestant = file.stem.split("_", 1)
        found.setdefault((env, contestant.rsplit("_", 1)[0]), []).append(json.loads(file.read_text()))
    return found


def report() -> None:
    curves = stored()
    print("| environment | contestant | seeds | return at the end | each seed | CPU minutes |")
    print("|---|---|---|---|---|---|")
    for (env, contestant), runs in curves.items():
        last = np.array([each["curve"][-1][1] for each in runs])
        error = f" ± {last.std(ddof=1) / len(last) ** 0.5:,.0f}" if len(last) > 1 else ""
        minutes = np.median([each["cpu_seconds"] for each in runs]) / 60
        each = ", ".join(f"{value:,.0f}" for value in last)
        print(f"| {env} | {contestant} | {len(runs)} | **{last.mean():,.0f}**{error} | {each} | {minutes:.0f} |")
    print(f"\n{draw(curves)}")


def draw(curves: dict[tuple[str, str], list[dict[str, Any]]]) -> Path:
    from drl.tracking import figures
    from drl.tracking.curves import across

    envs = sorted({env for env, _ in curves})
    caption = "means over seeds; band: 95 % percentile bootstrap (3 seeds or more); thin: single seeds"
    figure, axes = figures.make_panels("Return on MuJoCo", caption, 1, len(envs), (4.6, 3.0), titled=True)
    for ax, env in zip(axes, envs, strict=True):
        for number, (contestant, label) in enumerate(NAMES.items()):
            look = figures.look(number)
            lines = [np.array(each["curve"], float).T for each in curves.get((env, contestant), [])]
            for x, y in lines if len(lines) > 1 else ():
                figures.draw_line(ax, x, y, figures.Look(look.color), width=0.7, alpha=0.4)
            if len(lines) > 1:
                figures.draw_band(ax, across([(x, y) for x, y in lines]), look, label=label, marks=9)
            elif lines:
                figures.draw_line(ax, lines[0][0], lines[0][1], look, label=label, marks=10)
        seeds = ", ".join(str(len(curves.get((env, contestant), []))) for contestant in NAMES)
        figures.panel_title(ax, f"{env}; seeds: {seeds}")
        figures.finish(ax, "return of ten evaluation episodes")
    figures.add_legend(figure, axes)
    return figures.save_figure(figure, PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("report")
    one = commands.add_parser("run", help="flags that this script does not know go to drl train")
    one.add_argument("contestant")
    one.add_argument("env")
    one.add_argument("seed", type=int)
    one.add_argument("--steps", type=int, default=100_000)
    one.add_argument("--every", type=int, default=10_000)
    one.add_argument("--name", help="of the curve, if the flags make it another contestant")
    arguments, flags = parser.parse_known_args()
    report() if arguments.command == "report" else run(arguments, flags)


if __name__ == "__main__":
    main()
