"""An agent of the JAX engine as serialized StableHLO (`jax.export`)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from drl.core.errors import BadInput
from drl.core.specs import AnyArray, Array
from drl.deploy.parity import Run
from drl.deploy.policy_graph import Arrays, Named, PolicyGraph
from drl.engines.jax.agents import JaxAgent
from drl.engines.jax.models import QHead, policy_of
from drl.engines.numpy.acting import PolicyActor

NARROW = {"int64": "int32", "float64": "float32"}  # JAX has no others unless a program asks for them
PLATFORMS = ("cpu", "cuda", "tpu")  # on which one file runs


def narrow(dtype: object) -> str:
    """The name of a dtype as JAX has it, 32 bits at most."""
    name = np.dtype(dtype).name  # type: ignore[call-overload]
    return NARROW.get(name, name)


JAX = Arrays(
    jnp, lambda array, dtype: array.astype(narrow(dtype)), lambda array: jnp.asarray(array.astype(narrow(array.dtype)))
)


def jax_export_content(agent: JaxAgent, masked: bool = False) -> tuple[PolicyGraph, bytes]:
    """What the file takes and gives, and the file: a function of one dict of arrays, for any number of rows."""
    graph, model, params = PolicyGraph.of(agent, masked), agent.model, agent.model_state.params

    def answer(obs: AnyArray, rnn_state: AnyArray | None) -> tuple[AnyArray, None]:
        if isinstance(agent, PolicyActor):
            return policy_of(model, params, obs), None
        answered, head = model.apply(params, obs), getattr(model, "head", None)
        return (head.q_values(answered) if isinstance(head, QHead) else answered), None

    def act(inputs: Named) -> Named:
        return graph.act(JAX, inputs, answer)

    (batch,) = export.symbolic_shape("batch")
    shapes = {
        port.name: jax.ShapeDtypeStruct((batch, *port.shape), np.dtype(narrow(port.dtype))) for port in graph.inputs
    }
    try:
        exported = export.export(jax.jit(act), platforms=PLATFORMS)(shapes)
    except (TypeError, ValueError) as error:
        said = " ".join(str(error).split())[:160]
        raise BadInput(f"this model cannot be exported for any number of rows ({said}); use --to onnx") from error
    return graph, bytes(exported.serialize())


def run_jax_export(content: bytes) -> Run:
    """Calls the program in a `.jax_export` file."""
    exported = export.deserialize(bytearray(content))

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        narrowed = {name: array.astype(narrow(array.dtype)) for name, array in inputs.items()}
        return {name: np.asarray(array) for name, array in exported.call(narrowed).items()}

    return run
