"""Weights & Biases: config and metrics during a run, videos and the best model at its end. Needs the extra `wandb`.

Without a key or a network the run stays offline in its own folder; `wandb sync` uploads it later.
"""

import contextlib
import importlib.util
import inspect
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from drl.core.errors import MissingExtra
from drl.core.specs import PlainDict
from drl.tracking.guarded import FINISH_SECONDS, START_SECONDS, BoardInThread, BoardRow

if TYPE_CHECKING:
    from wandb import Run


STARTING = threading.Lock()  # the library starts one run at a time


class WandbTracker(BoardInThread):
    """Logs every number as `group/name`, over `env_steps`; at the end the videos and the best model."""

    def __init__(
        self,
        project: str,
        config: PlainDict,
        folder: str | Path,
        name: str | None = None,
        run_id: str | None = None,  # W&B's run id; an existing run is continued
        after: int = -1,
        group: str | None = None,  # of runs that belong together
        job_type: str | None = None,
    ):
        if importlib.util.find_spec("wandb") is None:
            raise MissingExtra("tracking with W&B", "wandb", "wandb")
        self.project: str = project
        self.config: PlainDict = config
        self.folder: Path = Path(folder)
        self.name: str | None = name
        self.run_id: str | None = run_id
        self.group: str | None = group
        self.job_type: str | None = job_type
        super().__init__(after)

    def _send(self, rows: Iterator[BoardRow]) -> None:
        with self._started() as run:
            for row in rows:
                run.log(row)
            if self.ending is not None:
                self._add_files(run, self.ending.folder)

    @contextlib.contextmanager
    def _started(self) -> "Iterator[Run]":
        """Start a run: online if W&B answers within seconds, else offline with one printed line. Never prompts."""
        os.environ.setdefault("WANDB_SILENT", "true")  # hides the library's own messages
        mode = os.environ.get("WANDB_MODE", "online")  # no message for a mode that the user chose
        if mode == "online" and not _has_key():
            mode = "offline"
            self._print_offline("no W&B key is set (`wandb login`)")
        try:
            run = self._init(mode)
        except Exception as error:
            if mode != "online":
                raise
            self._print_offline(f"W&B does not answer ({type(error).__name__})")
            run = self._init("offline")
        try:
            yield run
        finally:
            run.finish()

    def _print_offline(self, why: str) -> None:
        print(f"W&B offline: {why}; upload later with: wandb sync {self.folder / 'wandb'}/offline-run-*", flush=True)

    def _init(self, mode: str) -> "Run":
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        wanted: PlainDict = {
            "silent": True,  # no banner, no summary
            "console": "off",  # do not capture our output
            "disable_git": True,
            "save_code": False,
            "init_timeout": START_SECONDS,
            "login_timeout": START_SECONDS,
            "finish_timeout": FINISH_SECONDS,
        }
        known = {name: value for name, value in wanted.items() if name in wandb.Settings.model_fields}
        with STARTING:
            run = wandb.init(
                reinit="create_new",  # several runs at once: seeds in one program
                project=self.project,
                config=self.config,
                dir=str(self.folder),
                name=self.name,
                id=self.run_id,
                resume="allow" if self.run_id else None,
                group=self.group,
                job_type=self.job_type,
                mode=mode,  # type: ignore[arg-type]
                settings=wandb.Settings(**known),
            )
        run.define_metric("env_steps")
        run.define_metric("*", step_metric="env_steps")
        return run

    def _add_files(self, run: "Run", folder: Path) -> None:
        """Add the videos and the best model."""
        import wandb

        for path in sorted((folder / "videos").glob("*.mp4")):
            run.log({f"videos/{path.stem}": wandb.Video(str(path), format="mp4")})
        models = folder / "models"
        metadata = {"config": self.config}  # under one key: W&B allows 100
        artifact = wandb.Artifact(f"best-model-{run.id}", type="model", metadata=metadata)
        if (models / "best_agent").is_dir():
            artifact.add_dir(str(models / "best_agent"), name="best_agent")
        if (models / "best_return_pi_ckpt.pth").is_file():
            artifact.add_file(str(models / "best_return_pi_ckpt.pth"), name="best_return_pi_ckpt.pth")
        if artifact.manifest.entries:
            run.log_artifact(artifact, aliases=["best"])


def _has_key() -> bool:
    """Whether W&B finds a key by its own rules (environment, netrc). Does not prompt or connect."""
    import wandb

    try:
        if "prompt" in inspect.signature(wandb.login).parameters:
            return bool(wandb.login(prompt=False, verify=False))
        return bool(wandb.api.api_key)  # before 0.31
    except Exception:
        return False
