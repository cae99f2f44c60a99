"""Write an agent as a file for another runtime, after comparing both on random observations."""

import importlib.util
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from drl import __version__
from drl.core.agent_files import StoredAgent, open_agent, read_agent
from drl.core.configs import ModelConfig
from drl.core.contracts import Agent
from drl.core.errors import BadInput, MissingExtra, did_you_mean
from drl.core.safe_files import check_out, unwritable, write_new
from drl.core.specs import PlainDict
from drl.deploy.known_masks import masks_in_training
from drl.deploy.parity import Parity, Run, check_parity
from drl.deploy.policy_graph import PolicyGraph, Port
from drl.deploy.sampled_inputs import golden_inputs
from drl.engines.numpy.networks import CARRIED
from drl.experiment.agent_env import env_for
from drl.experiment.load_agent import load_agent
from drl.experiment.open_envs import open_vec_env

MASKS_UNKNOWN = (
    "it is unknown whether the agent's environment masks actions: the golden pairs do not tell, and the environment is "
    "not made here (it is missing, it fails, or it is code of your own, which an export does not run)"
)


class Made(NamedTuple):
    """The content of a file, before it is checked and written."""

    graph: PolicyGraph
    content: bytes
    run: Run | None  # calls it; None: there is no C compiler
    interface: list[str]  # what it takes and gives, for people


class Exported(NamedTuple):
    """A file that was written."""

    path: Path
    interface: list[str]  # what it takes and gives, for people
    parity: Parity | None  # how it was checked; None: it was not, since there is no C compiler


class Target(NamedTuple):
    """One kind of file."""

    suffix: str
    modules: tuple[str, ...]  # what must be installed
    extra: str
    make: Callable[[Path, StoredAgent, bool, dict[str, str]], Made]  # of the agent's folder, its content, masked, about


def export_agent(folder: Path, to: str, out: Path | None = None, masked: bool | None = False) -> Exported:
    """Write the agent in `folder` as a new file of the kind `to`. `masked`: with an input for the legal actions; None:
    if its environment gives masks.

    Nothing is written if an action or an output differs from the agent's.
    """
    target = find_target(to)
    path = out or folder.with_name(folder.name + target.suffix)
    check_out(path)
    card, _ = read_agent(folder)
    agent = load_agent(folder)
    if masked is None and (masked := gives_masks(agent)) is None:
        warnings.warn(f"{MASKS_UNKNOWN}; add --action-mask on if it does", stacklevel=2)
        masked = False
    made = target.make(folder, open_agent(folder), masked, describe(card))
    golden = golden_inputs(made.graph, agent.golden_inputs)
    parity = None if made.run is None else check_parity(agent, made.graph, made.run, golden)
    try:
        write_new(path, made.content)
    except OSError as error:
        raise unwritable(path, error) from None
    return Exported(path, made.interface, parity)


def find_target(to: str) -> Target:
    """The target of this name, if what it needs is installed."""
    if to not in TARGETS:
        raise BadInput(f"cannot export to {to!r}; {did_you_mean(to, TARGETS)}")
    target = TARGETS[to]
    for module in target.modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"export to {to}", target.extra, module)
    return target


def describe(card: PlainDict) -> dict[str, str]:
    """What a file says about the agent in it."""
    return {
        "env": str(card["notes"].get("env", "unknown")),
        "drl_version": __version__,
        "agent_checksum": card["checksum"],
        "agent_variant": card["variant"],
        "obs_space": json.dumps(card["obs_spec"]),
        "action_space": json.dumps(card["action_spec"]),
    }


def gives_masks(agent: Agent) -> bool | None:
    """Whether the environment of the training says which actions are legal; None: neither the agent's golden pairs nor
    the environment tell."""
    if (known := masks_in_training(agent)) is not None:
        return known
    try:
        with open_vec_env(env_for(agent), 1, 0, vectorization="sync") as envs:
            envs.reset()
            return envs.action_mask is not None
    except Exception:  # an environment may raise anything
        return None


def _load(folder: Path, engine: str | None = None) -> Any:
    """The agent of a folder: one of an engine's own, which has more than every `Agent` has."""
    return load_agent(folder, engine=engine)


def _onnx(folder: Path, stored: StoredAgent, masked: bool, about: dict[str, str]) -> Made:
    from drl.deploy.onnx_content import onnx_content, run_onnx
    from drl.deploy.torch_policy import TorchPolicy

    policy = TorchPolicy(_load(folder, "torch"), masked)
    content = onnx_content(policy, about)
    return Made(policy.graph, content, run_onnx(content), _shown(policy.graph.inputs, policy.graph.outputs))


def _pt2(folder: Path, stored: StoredAgent, masked: bool, about: dict[str, str]) -> Made:
    from drl.deploy.torch_policy import TorchPolicy, pt2_content, run_pt2

    policy = TorchPolicy(_load(folder, "torch"), masked)
    content = pt2_content(policy, about)
    return Made(policy.graph, content, run_pt2(content), _shown(policy.graph.inputs, policy.graph.outputs))


def _jax(folder: Path, stored: StoredAgent, masked: bool, about: dict[str, str]) -> Made:
    from drl.deploy.jax_policy import answer_of, jax_export_content, narrow, recurrent_answer, run_jax_export

    config = stored.config
    if isinstance(config, ModelConfig) and config.recurrent != "none":  # the JAX engine has no such agents
        carried = CARRIED[config.recurrent] * config.recurrent_size
        graph = PolicyGraph.of(_load(folder), masked, carried)
        content = jax_export_content(graph, recurrent_answer(stored))
    else:
        agent = _load(folder, "jax")
        graph = PolicyGraph.of(agent, masked)
        content = jax_export_content(graph, answer_of(agent))
    ports = [[port._replace(dtype=narrow(port.dtype)) for port in side] for side in (graph.inputs, graph.outputs)]
    return Made(graph, content, run_jax_export(content), _shown(*ports))


def _c(folder: Path, stored: StoredAgent, masked: bool, about: dict[str, str]) -> Made:
    from drl.deploy.c_content import c_content, check_mlp, signature
    from drl.deploy.c_library import find_compiler, run_c

    check_mlp(stored, folder)
    graph = PolicyGraph.of(_load(folder, "numpy"), masked)
    source, compiler = c_content(stored, graph, about), find_compiler()
    run = None if compiler is None else run_c(source, graph, compiler)
    return Made(graph, source.encode(), run, [signature(graph)])


def _shown(inputs: list[Port], outputs: list[Port]) -> list[str]:
    return [f"{side:6} {', '.join(map(str, ports))}" for side, ports in (("in", inputs), ("out", outputs))]


TARGETS = {
    "onnx": Target(".onnx", ("onnx", "onnxscript", "onnxruntime"), "export", _onnx),
    "torch-export": Target(".pt2", ("torch",), "torch", _pt2),
    "jax-export": Target(".jax_export", ("jax",), "jax", _jax),
    "c": Target(".c", (), "", _c),
}
