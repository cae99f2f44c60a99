"""File of an agent as serialized StableHLO (`jax.export`), and a function that runs it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from drl.core.agent_files import StoredAgent
from drl.core.configs import ModelConfig
from drl.core.errors import BadInput
from drl.core.specs import AnyArray, Array, ArrayLibrary
from drl.deploy.policy_graph import Answer, Named, PolicyGraph, Run
from drl.engines.jax.agents import JaxAgent
from drl.engines.jax.backbones import make_backbone
from drl.engines.jax.layers import part
from drl.engines.jax.models import QHead, make_policy_head, policy_of
from drl.engines.jax.ops import mode
from drl.engines.numpy.acting import PolicyActor
from drl.engines.numpy.networks import Cell, recurrent_step

NARROW = {"int64": "int32", "float64": "float32"}  # JAX has no others unless a program asks for them
PLATFORMS = ("cpu", "cuda", "tpu")  # on which one file runs


def narrow(dtype: object) -> str:
    """The name of a dtype as JAX has it, 32 bits at most."""
    name = np.dtype(dtype).name  # type: ignore[call-overload]
    return NARROW.get(name, name)


JAX = ArrayLibrary(
    jnp, lambda array, dtype: array.astype(narrow(dtype)), lambda array: jnp.asarray(array.astype(narrow(array.dtype)))
)


def answer_of(agent: object) -> Answer:
    """The network of an agent of the JAX engine."""
    assert isinstance(agent, JaxAgent)
    model, params = agent.model, agent.model_state.params

    def answer(obs: AnyArray, rnn_state: None) -> tuple[AnyArray, None]:
        if isinstance(agent, PolicyActor):
            return policy_of(model, params, obs), None
        answered, head = model.apply(params, obs), getattr(model, "head", None)
        return (head.q_values(answered) if isinstance(head, QHead) else answered), None

    return answer


def recurrent_answer(stored: StoredAgent) -> Answer:
    """The network of a recurrent policy: backbone and head of the JAX engine, the cell of the NumPy engine between."""
    config = stored.config
    assert isinstance(config, ModelConfig)
    params = part(stored.params, "actor") if stored.variant == "policy_value" else stored.params
    backbone = make_backbone(config, stored.obs_spec)
    head = make_policy_head(stored.distribution, config.recurrent_size, config)
    weights, cell = part(params, "backbone.backbone"), part(params, "backbone.cell")
    rnn = Cell(config.recurrent, cell["weight_ih"].T, cell["weight_hh"].T, cell["bias_ih"], cell["bias_hh"])

    def answer(obs: AnyArray, rnn_state: AnyArray) -> tuple[AnyArray, AnyArray]:
        features, after = recurrent_step(rnn, backbone.apply(weights, obs), rnn_state, jnp)
        return head.apply(part(params, "head"), features), after

    return answer


def jax_export_content(graph: PolicyGraph, answer: Answer) -> bytes:
    """The file: a function of one dict of arrays, for any number of rows."""

    def act(inputs: Named) -> Named:
        return graph.act(JAX, mode, inputs, answer)

    (batch,) = export.symbolic_shape("batch")
    shapes = {
        port.name: jax.ShapeDtypeStruct((batch, *port.shape), np.dtype(narrow(port.dtype))) for port in graph.inputs
    }
    try:
        exported = export.export(jax.jit(act), platforms=PLATFORMS)(shapes)
    except (TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:160]
        raise BadInput(f"this model cannot be exported for any number of rows ({why}); use --to onnx") from error
    return bytes(exported.serialize())


def run_jax_export(content: bytes) -> Run:
    """Calls the program in a `.jax_export` file."""
    exported = export.deserialize(bytearray(content))

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        narrowed = {name: array.astype(narrow(array.dtype)) for name, array in inputs.items()}
        return {name: np.asarray(array) for name, array in exported.call(narrowed).items()}

    return run
