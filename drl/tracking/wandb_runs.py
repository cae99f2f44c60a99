"""Weights & Biases: config and metrics during a run, videos and the best model at its end. Needs the extra `wandb`.

Without a key or a network the run stays offline in its own folder; `wandb sync` uploads it later. A thread makes all
calls to W&B, so training never waits.
"""

import contextlib
import importlib.util
import inspect
import math
import os
import queue
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from drl.core.errors import MissingExtra
from drl.core.log import Log
from drl.core.state_files import PlainDict
from drl.tracking.guarded import TrackerFailed

if TYPE_CHECKING:
    from wandb import Run

INIT_SECONDS, FINISH_SECONDS = 10.0, 60.0  # limits for connecting and for the last upload


class WandbTracker:
    """Logs every number as `group/name`, over `env_steps`.

    Call `finish()` after videos and models are written: it uploads those in `folder` and ends the run. `close()` ends
    the run without them; after `finish()` it does nothing.
    """

    def __init__(
        self,
        project: str,
        config: PlainDict,
        folder: str | Path,
        name: str | None = None,
        run_id: str | None = None,  # W&B's; an existing run is continued
        after: int = -1,  # learning steps that an earlier process has logged: a resumed run repeats some
    ):
        if importlib.util.find_spec("wandb") is None:
            raise MissingExtra("tracking with W&B", "wandb", "wandb")
        self.project, self.config, self.folder, self.name = project, config, Path(folder), name
        self.run_id, self.after = run_id, after
        self.error: Exception | None = None  # raised in the thread
        self._jobs: queue.SimpleQueue[dict[str, float] | str] = queue.SimpleQueue()  # rows, then how to end
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def write(self, log: Log) -> None:
        if self.error is not None:
            raise self.error
        if log.learning_steps <= self.after:
            return
        values = {name: float(value) for name, value in log.flat().items()}
        self._jobs.put({name: value for name, value in values.items() if math.isfinite(value)})

    def finish(self) -> None:
        """Add the folder's videos and best model, then end the run. It never raises: training is over and saved."""
        try:
            self._end("with files")
        except Exception as error:
            text = f"WandbTracker failed at the end; its output may be incomplete: {type(error).__name__}: {error}"
            warnings.warn(text, TrackerFailed, stacklevel=2)

    def close(self) -> None:
        self._end("as it is")

    def _end(self, how: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._jobs.put(how)
        self._thread.join(INIT_SECONDS + FINISH_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f"W&B did not end within {INIT_SECONDS + FINISH_SECONDS:.0f} seconds")
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        """Body of the thread: start a run, log rows, end the run."""
        try:
            with self._started() as run:
                while isinstance(job := self._jobs.get(), dict):
                    run.log(job)
                if job == "with files":
                    self._add_videos(run)
                    self._add_model(run)
        except Exception as error:
            self.error = error
        except BaseException as error:  # an exit in this thread is not the user's
            self.error = RuntimeError(f"W&B raised {type(error).__name__}: {error}")

    @contextlib.contextmanager
    def _started(self) -> "Iterator[Run]":
        """A run: online if W&B answers within seconds, else offline with one printed line. It never prompts."""
        os.environ.setdefault("WANDB_SILENT", "true")  # hides the library's own messages
        mode = os.environ.get("WANDB_MODE", "online")  # a mode that the user set needs no message
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
            "init_timeout": INIT_SECONDS,
            "login_timeout": INIT_SECONDS,
            "finish_timeout": FINISH_SECONDS,
        }
        known = {name: value for name, value in wanted.items() if name in wandb.Settings.model_fields}
        run = wandb.init(
            project=self.project,
            config=self.config,
            dir=str(self.folder),
            name=self.name,
            id=self.run_id,
            resume="allow" if self.run_id else None,
            mode=mode,  # type: ignore[arg-type]
            settings=wandb.Settings(**known),
        )
        run.define_metric("env_steps")
        run.define_metric("*", step_metric="env_steps")
        return run

    def _add_videos(self, run: "Run") -> None:
        import wandb

        for path in sorted((self.folder / "videos").glob("*.mp4")):
            run.log({f"videos/{path.stem}": wandb.Video(str(path), format="mp4")})

    def _add_model(self, run: "Run") -> None:
        import wandb

        models = self.folder / "models"
        artifact = wandb.Artifact(f"best-model-{run.id}", type="model", metadata=self.config)
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
        return bool(wandb.api.api_key)  # type: ignore[attr-defined]  # before 0.31
    except Exception:
        return False
