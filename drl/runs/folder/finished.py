"""The result of a run, for the program that started it."""

import contextlib
import json
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from drl.core.contracts import Agent
from drl.core.errors import BadInput, html_picture, html_table, html_text, plural
from drl.core.log import Log
from drl.runs.folder.run_folder import find_agent_folder, own_settings, read_record
from drl.tracking.files import read_metrics

LAST_ROWS = 5  # of the metrics that a notebook shows


class RunMetrics(dict[str, list[object]]):
    """All logged metrics of a run: columns by name, one row per log. A notebook shows the last rows."""

    def __repr__(self) -> str:
        return f"RunMetrics({self._size()})"

    def _size(self) -> str:
        rows = max(map(len, self.values()), default=0)
        return f"{plural(rows, 'row')}, {plural(len(self), 'column')}"

    def _repr_html_(self) -> str:
        last = [
            # A list is, for example, of the episodes that ended.
            (name, *(f"{len(cell)} entries" if isinstance(cell, list) else cell for cell in values[-LAST_ROWS:]))
            for name, values in self.items()
        ]
        shown = max(map(len, last), default=1) - 1
        title = f"{self._size()}; here the last {shown} rows, side by side"
        return html_table(["", *[""] * shown], last, title)


@dataclass(frozen=True, repr=False)
class Finished:
    """The result of a run. A notebook shows it with its learning curve."""

    folder: Path
    agent: Agent
    log: Log | None  # last log of this process
    status: str  # finished · interrupted · terminated · hung up
    evaluation: dict[str, float] | None  # of the final agent

    @property
    def metrics(self) -> RunMetrics:
        """All logged metrics: columns by name, one row per log, None where a log has no value. Convert them with
        `pandas.DataFrame(run.metrics)`."""
        rows = read_metrics(self.folder / "metrics.jsonl")
        names = dict.fromkeys(name for row in rows for name in row)
        return RunMetrics({name: [row.get(name) for row in rows] for name in names})

    def report(self) -> str:
        """Return status, score and file paths as text."""
        folder, summary = self.folder, self.evaluation
        lines = [f"{self.status}: {folder}"]
        if summary:
            score = f"mean return {summary['mean_return']:.2f} ± {summary['std_return']:.2f}"
            lines.append(f"final agent: {score} over {plural(int(summary['episodes']), 'episode')}")
        elif self.status == "finished" and (reason := read_record(folder).get("not_evaluated")):
            lines.append(str(reason))
        paths = {"agent": folder / "agent", "plot": folder / "plots" / "return.png"}
        paths |= {"video": folder / "videos" / "final_agent.mp4"}
        return "\n".join(lines + [f"  {name:6} {path}" for name, path in paths.items() if path.exists()])

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        score = "" if not self.evaluation else f", mean_return={self.evaluation['mean_return']:.2f}"
        return f"Finished(folder={str(self.folder)!r}, status={self.status!r}{score})"

    def _repr_html_(self) -> str:
        picture = self.folder / "plots" / "return.png"
        return html_text(self.report()) + (html_picture(picture, "learning curve") if picture.is_file() else "")


RunLike = str | Path | Finished  # a run: its folder or the result of `train`
AgentLike = RunLike | Agent


def folder_of(run: RunLike) -> Path:
    """Return the folder of a run."""
    if not isinstance(run, str | Path | Finished) or run == "":  # which a shell makes of an unset variable
        raise BadInput(f"{run!r:.80} is not a run; expected its folder, or what drl.train returned")
    return run.folder if isinstance(run, Finished) else Path(run)


def folders_of(runs: RunLike | Iterable[RunLike]) -> list[Path]:
    """Return the folders of one or several runs."""
    return [folder_of(runs)] if isinstance(runs, str | Path | Finished) else [folder_of(run) for run in runs]


@contextlib.contextmanager
def agent_folder(agent: AgentLike, which: str | int | None = None) -> Iterator[Path]:
    """Provide the folder of an agent: its own, or a temporary one if the agent is not saved."""
    if isinstance(agent, str | Path | Finished):
        yield find_agent_folder(folder_of(agent), which)
        return
    if which is not None or not hasattr(agent, "save"):
        expected = "a run" if which is not None else "an agent, its folder, a run, or what drl.train returned"
        raise BadInput(f"agent is {agent!r:.80}; expected {expected}")
    with tempfile.TemporaryDirectory() as folder:
        agent.save(Path(folder) / "agent")
        yield Path(folder) / "agent"


def resume_line(runs: Sequence[Finished], *, python: bool = False, trust: bool = False) -> str:
    """Return how to resume runs that a signal stopped, as a command or as Python calls; empty if there are none.
    `trust`: they were started with that flag and need it again, unless this account started them."""
    records = {run.folder: read_record(run.folder) for run in runs if run.status != "finished"}
    stopped = [folder for folder, record in records.items() if record.get("status") != "finished"]
    if stopped and records[stopped[0]].get("seed_batch"):
        stopped = stopped[:1]  # seeds in one program are resumed together
    if not stopped:
        return ""
    foreign = trust and any(own_settings(folder / "agent") is None for folder in stopped)
    if python:
        word = ", trust=True" if foreign else ""
        calls = [f"drl.resume({json.dumps(str(folder), ensure_ascii=False)}{word})" for folder in stopped]
        return f"resume: {'; '.join(calls)}"
    return f"resume: drl resume {shlex.join(map(str, stopped))}{' --trust' if foreign else ''}"
