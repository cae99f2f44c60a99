"""Settings for a cluster. See docs/scaling.md."""

from dataclasses import dataclass
from typing import ClassVar

from drl.core.errors import BadInput
from drl.core.setting_rules import ABOVE_0, FROM_0, WHOLE_FROM_0, WHOLE_FROM_1, Rule, Rules, check_fields


@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """Where processes run, and how many."""

    # Where processes run: local (Ray, started for this command) · auto (the Ray cluster of this machine) · ADDRESS of a
    # Ray cluster; None: on this machine, without Ray.
    cluster: str | None = None
    cpus_per_run: float = 1.0  # cores that a cluster reserves for each run (seed, trial or ablation)
    gpus_per_run: float = 0.0  # the same for GPUs
    # fsspec URL that every run's folder is copied to during training, such as s3://bucket/runs.
    results_url: str | None = None
    num_collectors: int = 0  # cluster processes that step the environments of one run; 0: the learner does
    # Groups of environments that are stepped together. Results depend on this number, not on the number of collectors.
    # Default: 8, or num_envs if that is less.
    env_blocks: int | None = None
    async_collectors: bool = False  # off-policy only: collectors do not wait for the learner; not reproducible
    collector_restarts: int = 3  # total number of restarts of all collectors
    num_learners: int = 1  # cluster processes that share every update; experimental

    @property
    def runs_elsewhere(self) -> bool:
        """Whether the whole run is a process of the cluster, not only its collectors or learners."""
        return self.cluster is not None and not self.num_collectors and self.num_learners == 1

    RULES: ClassVar[Rules] = {
        Rule("local, auto or an address", lambda x: x.strip() != ""): "cluster",
        Rule("a URL such as s3://bucket/runs", lambda x: "://" in x): "results_url",
        ABOVE_0: "cpus_per_run",
        FROM_0: "gpus_per_run",
        WHOLE_FROM_0: "num_collectors collector_restarts",
        WHOLE_FROM_1: "env_blocks num_learners",
    }

    def __post_init__(self) -> None:
        check_fields(self)
        if self.cluster is None and (self.num_collectors or self.num_learners > 1):
            name = "num_collectors" if self.num_collectors else "num_learners"
            raise BadInput(f"{name} is {getattr(self, name)} without a cluster; add --cluster local")
        for name, default in (("cpus_per_run", 1.0), ("gpus_per_run", 0.0), ("results_url", None)):
            if self.cluster is None and getattr(self, name) != default:
                raise BadInput(
                    f"{name} is {getattr(self, name)} without a cluster; add --cluster local, or leave it out"
                )
            if not self.runs_elsewhere and getattr(self, name) != default:
                raise BadInput(f"{name} is for whole runs on a cluster; leave it out with num_collectors, num_learners")
        for name, unused in (("env_blocks", None), ("async_collectors", False), ("collector_restarts", 3)):
            if getattr(self, name) != unused and not self.num_collectors:
                raise BadInput(f"{name} is for collectors; add --num-collectors 2, or leave it out")
