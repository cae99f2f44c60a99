"""`--from AGENT`: begin a training with the weights of another agent."""

from collections.abc import Mapping
from pathlib import Path

from drl.core.agent_files import StoredAgent, open_agent
from drl.core.errors import BadInput
from drl.core.specs import Array, ObsSpec
from drl.core.variants import find_variant


class Start:
    """The weights of an agent, as far as they fit another model."""

    def __init__(self, path: str | Path):
        self.source: str = str(path)
        self.stored: StoredAgent = open_agent(path)
        self.left_out: list[str] = []  # parameters that stay as they are, with the reason

    def fitted(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """The parameters of a new model, by name, replaced where the agent has one of the same name and shape."""
        given, fitted = self.stored.params, dict(own)
        self.left_out.clear()
        for name, array in own.items():
            if name not in given:
                self.left_out.append(f"{name} (the agent has none)")
            elif given[name].shape != array.shape:
                self.left_out.append(f"{name} ({given[name].shape} there, {array.shape} here)")
            else:
                fitted[name] = given[name]
        if len(self.left_out) == len(own):
            there = find_variant(self.stored.variant, self.source).title
            raise BadInput(f"nothing of {self.source}, a {there} model, fits this model; choose the same network")
        return fitted

    def check_obs(self, obs_spec: ObsSpec, normalized: bool) -> None:
        """Raise unless observations mean the same to both."""
        if self.stored.obs_spec != obs_spec:
            there = self.stored.obs_spec
            raise BadInput(
                f"{self.source} was trained on {there.kind} observations {there.shape}, and these are {obs_spec.kind} "
                f"{obs_spec.shape}; weights can only be taken over for the same observations"
            )
        if normalized != (self.stored.normalizer is not None):
            flag = "--no-normalize-obs" if normalized else "--normalize-obs"
            does = "does not normalize" if normalized else "normalizes"
            raise BadInput(f"{self.source} {does} its observations; add {flag}")
