"""MLflow: settings and metrics during a run; the agent, plots and videos at its end. Needs the extra `mlflow`.

Runs go to the server or file in `MLFLOW_TRACKING_URI`, by default to `mlflow.db` in the results folder.
"""

import contextlib
import importlib.util
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from drl.core.errors import MissingExtra
from drl.core.specs import PlainDict
from drl.tracking.guarded import BoardInThread, BoardRow

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SEND_SECONDS = 1.0  # between two transactions
MOST_METRICS, MOST_PARAMS, MOST_LETTERS = 900, 90, 500  # per transaction; letters of a parameter's value
ID_TAG = "drl.id"  # tag by which a resumed run finds its MLflow run
PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds between attempts to open a store while other runs create it
ARTIFACTS = ("agent", "plots", "videos")  # folders of a run
STATUS = {"finished": "FINISHED"}  # our status → MLflow's; KILLED for runs stopped by a signal
UNLESS_SET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class MlflowTracker(BoardInThread):
    """Logs every number as `group/name`, at step `env_steps`; at the end the agent, plots and videos."""

    def __init__(
        self,
        experiment: str,
        params: PlainDict,
        tags: Mapping[str, str],
        store: str | Path,  # folder of `mlflow.db`, unless `MLFLOW_TRACKING_URI` is set
        name: str,
        run_id: str,  # our own id; an existing run with this id is continued
        after: int = -1,
    ):
        if importlib.util.find_spec("mlflow") is None:
            raise MissingExtra("tracking with MLflow", "mlflow", "mlflow")
        self.experiment: str = experiment
        self.params: PlainDict = params
        self.tags: dict[str, str] = {**tags, ID_TAG: run_id}
        self.store: Path = Path(store)
        self.name: str = name
        super().__init__(after)

    def _send(self, rows: Iterator[BoardRow]) -> None:
        client, run_id = self._started()
        waiting: list[BoardRow] = []
        sent, env_steps = time.monotonic(), 0.0
        for row in rows:
            waiting.append(row)
            env_steps = row["env_steps"]
            if time.monotonic() - sent >= SEND_SECONDS or len(waiting) * len(row) > MOST_METRICS:
                _log(client, run_id, waiting)
                waiting, sent = [], time.monotonic()
        _log(client, run_id, waiting)
        if self.ending is None:
            client.set_terminated(run_id, "FAILED")
            return
        final = {f"final/{name}": float(value) for name, value in (self.ending.evaluation or {}).items()}
        _log(client, run_id, [final | {"env_steps": env_steps}] if final else [])
        for part in ARTIFACTS:
            if (folder := self.ending.folder / part).is_dir() and any(folder.iterdir()):
                client.log_artifacts(run_id, str(folder), part)
        client.set_terminated(run_id, STATUS.get(self.ending.status, "KILLED"))

    def _started(self) -> "tuple[MlflowClient, str]":
        """Return a client and MLflow's id of the run, which a resumed process shares with its predecessor."""
        for name, value in UNLESS_SET.items():
            os.environ.setdefault(name, value)
        from mlflow.entities import Param, RunStatus
        from mlflow.tracking import MlflowClient

        for library in ("mlflow", "alembic"):  # their messages about tables would disturb the panel
            logging.getLogger(library).setLevel(logging.ERROR)
        client, experiment = self._opened(MlflowClient)
        runs = client.search_runs([experiment], f"tags.`{ID_TAG}` = '{self.tags[ID_TAG]}'", max_results=1)
        if runs:
            run_id = str(runs[0].info.run_id)
            client.update_run(run_id, RunStatus.to_string(RunStatus.RUNNING))
            return client, run_id
        run_id = str(client.create_run(experiment, tags=dict(self.tags), run_name=self.name).info.run_id)
        params = [Param(name, str(value)[:MOST_LETTERS]) for name, value in self.params.items()]
        for start in range(0, len(params), MOST_PARAMS):
            client.log_batch(run_id, params=params[start : start + MOST_PARAMS])
        return client, run_id

    def _opened(self, make_client: "type[MlflowClient]") -> "tuple[MlflowClient, str]":
        """Return a client and the id of the experiment. If several runs start together, all but one fail at first,
        because they create both concurrently."""
        for pause in PAUSES:
            with contextlib.suppress(Exception):
                return self._open(make_client)
            time.sleep(pause)
        return self._open(make_client)

    def _open(self, make_client: "type[MlflowClient]") -> "tuple[MlflowClient, str]":
        uri, place = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not uri:
            self.store.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{self.store.resolve() / 'mlflow.db'}"
            place = (self.store.resolve() / "mlartifacts").as_uri()
        client = make_client(tracking_uri=uri)
        known = client.get_experiment_by_name(self.experiment)
        if known is not None:
            return client, str(known.experiment_id)
        return client, str(client.create_experiment(self.experiment, artifact_location=place))


def _allowed(name: str) -> str:
    """A name with letters that MLflow takes.

    >>> _allowed("info/coins (gold)"), _allowed("learn/loss"), _allowed("info/..")
    ('info/coins _gold_', 'learn/loss', 'info/__')
    """
    group, slash, plain = name.partition("/")
    plain = re.sub(r"[^\w. :-]", "_", plain)
    return group + slash + (plain if plain.strip(".") else "_" * len(plain))


def _log(client: "MlflowClient", run_id: str, rows: list[BoardRow]) -> None:
    from mlflow.entities import Metric

    now = int(1000 * time.time())
    metrics = [
        Metric(_allowed(name), value, now, int(row["env_steps"]))
        for row in rows
        for name, value in row.items()
        if name != "env_steps"
    ]
    for start in range(0, len(metrics), MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + MOST_METRICS])
