"""`drl evaluate`, `drl replay` and `drl doctor`: measure an agent, replay an episode, find problems."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from drl.cli.flags import Positional
from drl.core.configs import plain_pairs
from drl.core.contracts import Agent
from drl.core.errors import BadInput, EnvFailed
from drl.core.network_parts import import_plugins
from drl.core.safe_files import stay_inside
from drl.core.setting_rules import ABOVE_0, WHOLE_FROM_0, WHOLE_FROM_1, Rules, check_fields
from drl.runs.folder.run_folder import find_agent_folder

if TYPE_CHECKING:
    from drl.agents.evaluation import Evaluation
    from drl.envs.env_config import EnvConfig


@dataclass(frozen=True)
class EvaluateCommand:
    """Measure or watch a trained agent."""

    agent: Positional[str]  # a run, an experiment (its newest run) or an agent folder
    # For a run: final (the newest), best (by training return), best-evaluated, or the step of a kept checkpoint.
    which: str | None = None
    env: str | None = None  # environment to play in; default: the one it was trained in
    wrappers: tuple[str, ...] = ()  # its wrappers, or --wrapper once for each; default: the ones used in training
    episodes: int = 10
    max_steps: int | None = None  # environment steps of all episodes together; default: 100 000 per episode
    seed: int = 1  # seed of the environments and of sampled actions
    sampled: bool = False  # sample actions from the policy instead of taking the most likely
    temperature: float = 1.0  # temperature of sampled actions
    render: bool = False  # show the environment's own window
    video: bool = False  # record one episode into the run's videos folder
    step_by_step: bool = False  # print observation, values or probabilities, action and reward of every step
    json: bool = False  # print the summary as JSON and nothing else
    plugins: tuple[str, ...] = ()  # your own modules to import first
    trust: bool = False  # import the modules named on the agent's card; this runs their code
    strict: bool = False  # fail, not only warn, if the agent acts differently from its golden pairs

    RULES: ClassVar[Rules] = {WHOLE_FROM_1: "episodes max_steps", WHOLE_FROM_0: "seed", ABOVE_0: "temperature"}

    def __call__(self) -> None:
        check_fields(self)
        if self.temperature != 1.0 and not self.sampled:
            raise BadInput("--temperature is for sampled actions; add --sampled")
        import_plugins(self.plugins)
        folder = find_agent_folder(self.agent, self.which)

        from drl.agents.agent_env import env_for, is_env_of, own_run
        from drl.agents.load_agent import load_agent, sample_actions

        own = own_run(folder)
        agent = load_agent(self.agent, which=self.which, strict=self.strict)
        env = env_for(
            agent,
            self.env,
            wrappers=self.wrappers or None,
            source=f"{folder}/card.json",
            command=f"drl evaluate {self.agent}",
            trust=self.trust or is_env_of(agent, own),
        )
        if self.sampled:
            sample_actions(agent, folder, self.temperature)
        result = _play(agent, env, self)
        if self.json:
            print(json.dumps({"env": env.env, "agent": str(folder)} | result.summary()))
        else:
            print(f"{env.env}: {result.sentence()}")
        if self.video:  # last, so the numbers are printed even if recording fails
            _film(agent, env, self, folder)


def _film(agent: Agent, env: "EnvConfig", flags: EvaluateCommand, folder: Path) -> None:
    from drl.agents.watch import film

    home = next((parent for parent in folder.parents if (parent / "run.json").is_file()), folder.parent)
    names = (home / "videos" / f"evaluation_{i}.mp4" for i in range(1, 100_000))
    path = stay_inside(home, next(path for path in names if not path.exists()))
    if film(agent, env, path, flags.seed, explore=flags.sampled) is None:
        raise BadInput(f"{env.env} cannot be drawn: it has no render mode 'rgb_array'")
    if not flags.json:
        print(f"video: {path}")


def _play(agent: Agent, env: "EnvConfig", flags: EvaluateCommand) -> "Evaluation":
    from drl.agents.evaluation import TIME_LIMIT, Evaluation, NotEvaluated, evaluate
    from drl.agents.watch import watch

    if flags.render or flags.step_by_step:
        if flags.json:
            raise BadInput("--json prints numbers only; leave out --render and --step-by-step")
        if flags.max_steps is not None:
            raise BadInput("--max-steps is for an evaluation; leave it out with --render and --step-by-step")
        mode = "human" if flags.render else "ansi"
        return Evaluation(watch(agent, env, mode, flags.episodes, flags.seed, explore=flags.sampled))
    try:
        return evaluate(agent, env, flags.episodes, flags.seed, explore=flags.sampled, max_steps=flags.max_steps)
    except NotEvaluated as error:
        raise EnvFailed(f"{error}; --max-steps {10 * error.env_steps} plays longer, and {TIME_LIMIT}") from None


@dataclass(frozen=True)
class ReplayCommand:
    """Replay an episode of training exactly."""

    run: Positional[str]  # a run, or an experiment for its newest run
    episode: str = "best"  # best · worst · last · crash · a number, counted from 1 in the order in which episodes ended
    video: bool = False  # record it into the run's videos folder
    render: bool = False  # show it in the environment's own window
    step_by_step: bool = False  # print observation, action and reward of every step
    trust: bool = False  # import the modules that config.yaml names; this runs their code

    def __call__(self) -> None:
        from drl.runs.play_again import replay

        replay(**vars(self), console=True)


@dataclass(frozen=True)
class DoctorCommand:
    """Report likely problems of an environment or a run, and what to change. Exit code 0: no problem, 1: problems were
    found, 2: bad input, 3: the run cannot be read."""

    subject: Positional[str]  # a single-agent environment, as for --env; or a run, or its experiment
    env_kwargs: tuple[str, ...] = ()  # for an environment: NAME=VALUE constructor arguments, read as YAML
    wrappers: tuple[str, ...] = ("auto",)  # for an environment: its wrappers, or --wrapper once for each
    steps: int = 2000  # steps to play: random actions in an environment, the agent's actions in a run
    seed: int = 0
    json: bool = False  # print JSON and nothing else
    picture: bool = True  # for a run: draw the evidence into RUN/doctor/
    trust: bool = False  # for a run: import the modules that it names; this runs their code

    def __call__(self) -> int:
        settings = dict(vars(self), env_kwargs=plain_pairs("env_kwargs", self.env_kwargs) or None)
        settings["wrappers"] = None if self.wrappers == DoctorCommand.wrappers else self.wrappers
        from drl.doctor.diagnose import doctor

        with _stdout_to_stderr() if settings.pop("json") else contextlib.nullcontext():
            diagnosis = doctor(**settings)
        print(json.dumps(diagnosis.plain()) if self.json else diagnosis)
        return 1 if diagnosis.problems else 0


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect to stderr what an environment prints, including output of C code."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
