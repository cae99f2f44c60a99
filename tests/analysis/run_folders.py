"""Folders of finished runs, without training."""

from drl.runs.folder.run_folder import Run
from drl.settings.experiment import Experiment


def make_run(results, name, seed, score, *, status="finished", steps=None, episodes=10, settings=None, **notes):
    """One run with this score in its final evaluation; None: it has none."""
    flat = {"algorithm": "ppo", "env": "CartPole-v1", "total_timesteps": 1000, "seed": seed} | (settings or {})
    run = Run.create(name, Experiment.from_flat(flat, "test").to_flat(), results, seed)
    evaluation = {} if score is None else {"final_evaluation": {"mean_return": score, "episodes": episodes}}
    run.note(status=status, env_steps=flat["total_timesteps"] if steps is None else steps, **evaluation, **notes)
    run.close()
    return run.folder


def make_runs(results, name, scores, first_seed=0, **options):
    """A run for each score."""
    return [make_run(results, name, first_seed + i, float(score), **options) for i, score in enumerate(scores)]
