"""`drl convert`, `drl export`, `drl serve`, `drl push` and `drl pull`: agents outside their runs."""

from dataclasses import dataclass

from drl.cli.flags import Positional


@dataclass(frozen=True)
class ConvertCommand:
    """Write an agent for the other engine."""

    agent: Positional[str]  # a run, an experiment (its newest run) or an agent folder
    engine: str  # torch or jax
    plugins: tuple[str, ...] = ()  # your own modules to import first
    out: str | None = None  # new folder; default: beside the agent, with the engine's name appended
    strict: bool = False  # fail, not only warn, if the agent acts differently from its golden pairs

    def __call__(self) -> None:
        from drl.deploy.export_agent import convert

        print(convert(**vars(self)))


@dataclass(frozen=True)
class ExportCommand:
    """Write an agent as a file for another runtime."""

    agent: Positional[str]  # a run, an experiment (its newest run) or an agent folder
    to: str  # onnx · torch-export · jax-export · c
    out: str | None = None  # new file; default: beside the agent, with the suffix of the format
    # Add an input for action masks: auto (if the training environment provides masks) · on · off.
    action_mask: str = "auto"
    plugins: tuple[str, ...] = ()  # your own modules to import first

    def __call__(self) -> None:
        from drl.deploy.export_agent import export

        print(export(**vars(self)))


@dataclass(frozen=True)
class ServeCommand:
    """Answer observations with actions over HTTP."""

    agent: Positional[str]  # a run, an experiment (its newest run) or an agent folder
    port: int = 8000  # 0: any free port
    host: str = "127.0.0.1"  # address to listen on; with another address, other machines can send requests
    engine: str = "torch"  # torch · jax · numpy (MLPs only)
    sampled: bool = False  # sample actions from the policy instead of taking the most likely
    temperature: float = 1.0  # temperature of sampled actions
    max_batch: int = 256  # most observations in one forward pass, and in one request
    batch_window: float = 1.0  # milliseconds to collect requests for one forward pass
    max_bytes: int = 4 << 20  # largest body of a request
    plugins: tuple[str, ...] = ()  # your own modules to import first

    def __call__(self) -> None:
        from drl.deploy.serve_call import serve

        serve(**vars(self), wait=True, console=True)


@dataclass(frozen=True)
class PushCommand:
    """Upload an agent to the Hugging Face Hub, with HF_TOKEN."""

    agent: Positional[str]  # a run, an experiment (its newest run) or an agent folder
    repository: Positional[str]  # owner/name; created if it does not exist
    which: str | None = None  # for a run: final (the newest), best (by training return) or best-evaluated
    private: bool = False  # make a new repository private

    def __call__(self) -> None:
        from drl.agents.hub import push

        print(push(**vars(self)))


@dataclass(frozen=True)
class PullCommand:
    """Download an agent from the Hugging Face Hub; no code is run."""

    repository: Positional[str]  # owner/name
    out: str | None = None  # new folder; default: the repository's name, here
    revision: str | None = None  # a branch, a tag or a commit; default: the newest commit

    def __call__(self) -> None:
        from drl.agents.hub import pull

        print(pull(**vars(self)))
