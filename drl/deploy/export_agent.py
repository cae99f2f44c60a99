"""Write an agent for another runtime or engine, after comparing both on random observations: `export`, `convert`."""

import importlib.util
import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drl import __version__
from drl.agents.agent_env import env_for, open_vec_env
from drl.agents.load_agent import load_agent
from drl.core.agent_files import StoredAgent, open_agent, read_agent
from drl.core.configs import ModelConfig
from drl.core.contracts import Agent
from drl.core.errors import BadInput, MissingExtra, did_you_mean, html_table
from drl.core.golden_pairs import sample_obs
from drl.core.network_parts import import_plugins
from drl.core.safe_files import check_out, unwritable, write_new
from drl.deploy.policy_graph import Parity, PolicyGraph, Run, affordable, check_parity, golden_inputs, masks_in_training
from drl.engines.numpy.networks import CARRIED
from drl.runs.folder.finished import AgentLike, Finished, agent_folder

MASKS: dict[str, bool | None] = {"auto": None, "on": True, "off": False}
ENGINES = ("torch", "jax")
MASKS_UNKNOWN = (
    "it is unknown whether the agent's environment masks actions: the golden pairs do not tell, and the environment is "
    "not made here (it is missing, it fails, or it is code of your own, which an export does not run); add "
    "--action-mask on if it does"
)
NOT_COMPARED = "not compared with the agent: there is no C compiler"


class Made(NamedTuple):
    """The content of a file, before it is checked and written."""

    graph: PolicyGraph
    content: bytes
    run: Run | None  # calls it; None: there is no C compiler
    interface: list[str]  # its inputs and outputs, for people


@dataclass(frozen=True)
class Exported:
    """A file that `export` wrote."""

    path: Path
    interface: list[str]  # its inputs and outputs, for people
    parity: Parity | None  # how it was checked; None: it was not, since there is no C compiler

    def __str__(self) -> str:
        check = f"check  {self.parity or f'{NOT_COMPARED} (cc) here'}"
        return "\n".join([str(self.path), *(f"  {line}" for line in (*self.interface, check))])

    def _repr_html_(self) -> str:
        return html_table([self.path], [[line] for line in (*self.interface, self.parity or NOT_COMPARED)])


@dataclass(frozen=True)
class Converted:
    """An agent folder that `convert` wrote."""

    path: Path
    engine: str
    written_by: str  # the engine of the agent that was converted
    rows: int  # random observations on which both act alike

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        row = [self.path, f"{self.written_by} → {self.engine}", f"acts alike on {self.rows:,} observations"]
        return html_table(["agent", "engine", "check"], [row])


def export(
    agent: AgentLike,
    to: str,
    *,
    out: str | Path | None = None,
    action_mask: str = "auto",
    plugins: Iterable[str] = (),
    console: bool = False,
) -> Exported:
    """Write an agent as a new file for another runtime: `to` is onnx, torch-export, jax-export or c.

    `agent` is a run, an experiment (its newest run), an agent folder or an agent. `out` is by default beside the agent,
    with the suffix of its kind. `action_mask`: with an input for the legal actions; auto (if the environment of the
    training gives masks), on or off. `plugins` are your own modules to import first. Nothing is written if the file
    would act differently.
    """
    if action_mask not in MASKS:
        raise BadInput(f"--action-mask is {action_mask!r}; expected auto, on or off")
    import_plugins(plugins)
    with agent_folder(agent) as folder:
        exported = export_agent(folder, to, _path_of(agent, out), MASKS[action_mask])
    if console:
        print(exported)
    return exported


def convert(
    agent: AgentLike,
    engine: str,
    *,
    out: str | Path | None = None,
    plugins: Iterable[str] = (),
    strict: bool = False,
    console: bool = False,
) -> Converted:
    """Write an agent for the other engine, torch or jax, after checking that both act alike.

    `agent` is as in `export`. `out` is a new folder; by default beside the agent, with the engine's name appended.
    `strict`: an agent that acts differently from its golden pairs is an error, not a warning.
    """
    if engine not in ENGINES:
        raise BadInput(f"unknown engine {engine!r}; {did_you_mean(engine, ENGINES)}")
    import_plugins(plugins)
    with agent_folder(agent) as folder:
        path = _path_of(agent, out) or folder.with_name(f"{folder.name}-{engine}")
        check_out(path)
        card, _ = read_agent(folder)
        before, after = (load_agent(folder, engine=each, strict=strict) for each in (card["engine"], engine))
        obs = sample_obs(before.obs_spec, affordable(before.obs_spec))
        one, two = before.decide(obs), after.decide(obs)
        if not (np.allclose(one, two, rtol=1e-4, atol=1e-4) if one.dtype.kind == "f" else np.array_equal(one, two)):
            raise BadInput(f"{folder} acts differently in {engine}; nothing was written")
        after.save(path)
    converted = Converted(path, engine, card["engine"], len(obs))
    if console:
        print(converted)
    return converted


def _path_of(agent: AgentLike, out: str | Path | None) -> Path | None:
    """Where to write; None: beside the agent's folder, if it has one."""
    if out is None and not isinstance(agent, str | Path | Finished):
        raise BadInput("an agent that is in no folder needs a place to write to: out=…")
    return None if out is None or out == "" else Path(out)


def export_agent(folder: Path, to: str, out: Path | None = None, masked: bool | None = False) -> Exported:
    """Write the agent in `folder` as a new file of the kind `to`. `masked`: with an input for the legal actions; None:
    if its environment gives masks. Nothing is written if an action or an output differs from the agent's."""
    if to not in TARGETS:
        raise BadInput(f"cannot export to {to!r}; {did_you_mean(to, TARGETS)}")
    target = TARGETS[to]
    for module in target.modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(f"export to {to}", target.extra, module)
    path = out or folder.with_name(folder.name + target.suffix)
    check_out(path)
    card, _ = read_agent(folder)
    agent = load_agent(folder)
    if masked is None and (masked := gives_masks(agent)) is None:
        warnings.warn(MASKS_UNKNOWN, stacklevel=2)
        masked = False
    about = {
        "env": str(card["notes"].get("env", "unknown")),
        "drl_version": __version__,
        "agent_checksum": card["checksum"],
        "agent_variant": card["variant"],
        "obs_space": json.dumps(card["obs_spec"]),
        "action_space": json.dumps(card["action_spec"]),
    }
    made = target.make(folder, open_agent(folder), masked, about)
    golden = golden_inputs(made.graph, agent.golden_inputs)
    parity = None if made.run is None else check_parity(agent, made.graph, made.run, golden)
    try:
        write_new(path, made.content)
    except OSError as error:
        raise unwritable(path, error) from None
    return Exported(path, made.interface, parity)


def gives_masks(agent: Agent) -> bool | None:
    """Whether the environment of the training masks actions; None: neither the golden pairs nor the environment
    tell."""
    if (known := masks_in_training(agent)) is not None:
        return known
    try:
        with open_vec_env(env_for(agent), 1, 0, vectorization="sync") as envs:
            envs.reset()
            return envs.action_mask is not None
    except Exception:  # an environment may raise anything
        return None


def _torch(to: str, folder: Path, stored: StoredAgent, masked: bool, about: dict[str, str]) -> Made:
    from drl.deploy.torch_export import TorchPolicy, onnx_content, pt2_content, run_onnx, run_pt2

    policy = TorchPolicy(load_agent(folder, engine="torch"), masked)
    content_of, run_of = (onnx_content, run_onnx) if to == "onnx" else (pt2_content, run_pt2)
    content = content_of(policy, about)
    return Made(policy.graph, content, run_of(content), _interface(policy.graph))


def _jax(folder: Path, stored: StoredAgent, masked: bool, about: dict[str, str]) -> Made:
    from drl.deploy.jax_export import answer_of, jax_export_content, narrow, recurrent_answer, run_jax_export

    config = stored.config
    if isinstance(config, ModelConfig) and config.recurrent != "none":  # the JAX engine has no such agents
        graph = PolicyGraph.of(load_agent(folder), masked, CARRIED[config.recurrent] * config.recurrent_size)
        answer = recurrent_answer(stored)
    else:
        agent = load_agent(folder, engine="jax")
        graph, answer = PolicyGraph.of(agent, masked), answer_of(agent)
    content = jax_export_content(graph, answer)
    return Made(graph, content, run_jax_export(content), _interface(graph, narrow))


def _c(folder: Path, stored: StoredAgent, masked: bool, about: dict[str, str]) -> Made:
    from drl.deploy.c_export import c_content, check_mlp, find_compiler, run_c, signature

    check_mlp(stored, folder)
    graph = PolicyGraph.of(load_agent(folder, engine="numpy"), masked)
    source, compiler = c_content(stored, graph, about), find_compiler()
    run = None if compiler is None else run_c(source, graph, compiler)
    return Made(graph, source.encode(), run, [signature(graph)])


def _interface(graph: PolicyGraph, dtype_of: Callable[[str], str] = str) -> list[str]:
    """One line for the inputs and one for the outputs; `dtype_of` is the file's type for a type of the graph."""
    sides = (("in", graph.inputs), ("out", graph.outputs))
    return [f"{side:6} {', '.join(str(p._replace(dtype=dtype_of(p.dtype))) for p in ports)}" for side, ports in sides]


class ExportTarget(NamedTuple):
    """One kind of file."""

    suffix: str
    modules: tuple[str, ...]  # what must be installed
    extra: str
    make: Callable[[Path, StoredAgent, bool, dict[str, str]], Made]  # of the agent's folder, its content, masked, about


TARGETS = {
    "onnx": ExportTarget(".onnx", ("onnx", "onnxscript", "onnxruntime"), "export", partial(_torch, "onnx")),
    "torch-export": ExportTarget(".pt2", ("torch",), "torch", partial(_torch, "torch-export")),
    "jax-export": ExportTarget(".jax_export", ("jax",), "jax", _jax),
    "c": ExportTarget(".c", (), "", _c),
}
