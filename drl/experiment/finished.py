"""What a run leaves to the program that started it."""

import base64
import html
from dataclasses import dataclass
from pathlib import Path

from drl.core.contracts import Agent
from drl.core.log import Log
from drl.envs.env_config import EnvConfig
from drl.envs.spaces import EnvKwargs
from drl.experiment.evaluation import evaluate
from drl.experiment.run_folder import Run
from drl.experiment.watch import film
from drl.tracking.files import read_metrics
from drl.tracking.plots import plot_run


def finish_run(
    run: Run,
    agent: Agent,
    env: str,
    env_kwargs: EnvKwargs | None = None,
    *,
    episodes: int = 20,
    log: Log | None = None,  # the last one
) -> "Finished":
    """End a run of your own: save its agent, draw its plots, film one episode and evaluate the agent."""
    config = EnvConfig(env=env, env_kwargs=env_kwargs or {})
    agent.save(run.folder / "agent", env=env, env_kwargs=config.env_kwargs)
    plot_run(run.folder)
    seed = 10_000 + int(run.record["seed"])  # other episodes than those of training
    film(agent, config, run.folder / "videos" / "final_agent.mp4", seed)
    summary = evaluate(agent, config, episodes, seed).summary()
    run.note(status="finished", final_evaluation=summary)
    return Finished(run.folder, agent, log, "finished", summary)


@dataclass(frozen=True)
class Finished:
    """The result of a run. A notebook shows it with its learning curve."""

    folder: Path
    agent: Agent
    log: Log | None  # the last one of this process
    status: str  # finished · interrupted · terminated · hung up
    evaluation: dict[str, float] | None  # of the final agent

    @property
    def metrics(self) -> dict[str, list[object]]:
        """A table of everything that was logged: columns by name, one row per log, None where a log lacks a column.
        `pandas.DataFrame(run.metrics)` takes it as it is."""
        rows = read_metrics(self.folder / "metrics.jsonl")
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def report(self) -> str:
        """Status, score and file paths."""
        folder, summary = self.folder, self.evaluation
        lines = [f"{self.status}: {folder}"]
        if summary:
            score = f"mean return {summary['mean_return']:.2f} ± {summary['std_return']:.2f}"
            lines.append(f"final agent: {score} over {summary['episodes']} episodes")
        paths = {"agent": folder / "agent", "plot": folder / "plots" / "return.png"}
        paths |= {"video": folder / "videos" / "final_agent.mp4"}
        return "\n".join(lines + [f"  {name:6} {path}" for name, path in paths.items() if path.exists()])

    def _repr_html_(self) -> str:
        picture = self.folder / "plots" / "return.png"
        shown = f"<pre>{html.escape(self.report())}</pre>"
        if not picture.is_file():
            return shown
        data = base64.b64encode(picture.read_bytes()).decode()
        return f'{shown}<img alt="learning curve" width="600" src="data:image/png;base64,{data}">'
