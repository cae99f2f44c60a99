"""`drl replay RUN --episode best`: play an episode of training again, exactly."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from drl.cli.flags import parse_flags
from drl.core.errors import BadInput
from drl.core.safe_files import stay_inside


@dataclass(frozen=True)
class Flags:
    """Flags of `drl replay`."""

    run: Annotated[str, tyro.conf.Positional]  # a run, or an experiment for its newest run
    episode: str = "best"  # best · worst · last · crash · a number, counted from 1 in the order in which they ended
    video: bool = False  # film it into the run's videos folder
    render: bool = False  # show it in the environment's own window
    step_by_step: bool = False  # print observation, action and reward of every step
    trust: bool = False  # import the modules that config.yaml names; this runs their code


def main(arguments: list[str]) -> int:
    """Run `drl replay`."""
    flags = parse_flags(Flags, arguments, prog="drl replay", description="Play an episode of training again, exactly.")
    if flags.video and (flags.render or flags.step_by_step):
        raise BadInput("--video films the episode; leave out --render and --step-by-step")

    from drl.experiment.launch import experiment_of
    from drl.experiment.play_again import film_again, open_again, play_again
    from drl.experiment.run_folder import find_run
    from drl.experiment.watch import short
    from drl.tracking.recorded_episodes import read_episode

    folder = find_run(flags.run)
    run = experiment_of(folder, flags.trust).run
    recorded = read_episode(folder, flags.episode)
    name = f"episode {recorded.number}" if recorded.number else "the episode of the crash"
    if flags.video:
        path = folder / "videos" / f"episode_{recorded.number or 'crash'}.mp4"
        print(film_again(run, recorded, stay_inside(folder, path)))
        return 0
    with open_again(run, "human" if flags.render else None) as env:
        for count, step in enumerate(play_again(env, recorded), start=1):
            if flags.step_by_step:
                print(f"{count:4d}  obs {short(step.obs)}  action {short(step.action)}  reward {step.reward:g}")
    length, total = len(recorded.played.actions), recorded.episode_return
    print(f"{name} of environment {recorded.env_index}, seed {recorded.played.seed}: {length} steps, return {total:g}")
    return 0
