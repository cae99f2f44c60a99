"""Files of an agent of the PyTorch engine: `torch.export` (.pt2) and ONNX, and functions that run them."""

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from drl.core.errors import BadInput, MissingExtra
from drl.core.specs import AnyArray, Array, ArrayLibrary
from drl.deploy.policy_graph import PolicyGraph, Run
from drl.engines.torch.actor_critics import ActorCritic
from drl.engines.torch.agents import TorchAgent
from drl.engines.torch.layers import noisy_layers
from drl.engines.torch.models import PolicyValueModel, QHead, is_plain
from drl.engines.torch.ops import mode
from drl.engines.torch.recurrent import recurrent_parts

TORCH = ArrayLibrary(
    torch, lambda array, dtype: array.to(getattr(torch, dtype)), lambda array: torch.from_numpy(array.copy())
)
TRACED = 3  # rows of the example from which the graph is made; the number stays open
BATCH = "batch"  # the name of the open axis


class TorchPolicy(nn.Module):
    """The acting part of an agent: `{"obs": …}` → `{"action": …, …}`, without critics and without noise."""

    def __init__(self, agent: object, masked: bool = False):
        super().__init__()
        assert isinstance(agent, TorchAgent)
        model = agent.model
        actor = model.actor if type(model) in (PolicyValueModel, ActorCritic) else model
        assert isinstance(actor, nn.Module)
        self.actor: nn.Module = copy.deepcopy(actor).cpu().eval()
        for layer in noisy_layers(self.actor):
            layer.quiet = True
        parts = recurrent_parts(self.actor)
        if parts and (not is_plain(self.actor) or parts != [self.actor.backbone]):
            name = type(self.actor).__name__
            raise BadInput(f"the recurrent layers of {name} are not between its backbone and its head")
        self.graph: PolicyGraph = PolicyGraph.of(agent, masked, parts[0].rnn_state_size if parts else 0)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.graph.act(TORCH, mode, inputs, self._answer)

    def _answer(self, obs: AnyArray, rnn_state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        actor: Any = self.actor
        if rnn_state is None:
            answer = actor(obs)
            answer = answer[0] if isinstance(answer, tuple) else answer
            head = getattr(actor, "head", None)  # a model of the user's own may have none
            return (head.q_values(answer) if isinstance(head, QHead) else answer), None
        recurrent = actor.backbone
        features = recurrent.backbone(obs)
        if recurrent.kind == "gru":
            after = hidden = recurrent.cell(features, rnn_state)
        else:
            hidden, cell_state = recurrent.cell(features, rnn_state.chunk(2, dim=1))
            after = torch.cat([hidden, cell_state], dim=1)
        return actor.head(hidden), after


def exported_program(policy: TorchPolicy) -> torch.export.ExportedProgram:
    """The graph, for any number of rows."""
    example = {
        port.name: torch.zeros(TRACED, *port.shape, dtype=getattr(torch, port.dtype)) for port in policy.graph.inputs
    }
    batch = torch.export.Dim(BATCH)
    with torch.no_grad():
        return torch.export.export(
            policy, (example,), dynamic_shapes={"inputs": {name: {0: batch} for name in example}}
        )


@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Silence the exporters, which warn about their own parts and about packages that nobody needs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def pt2_content(policy: TorchPolicy, about: dict[str, str]) -> bytes:
    """The file of `torch.export.save`; `about` is in its extra file `drl.json`."""
    content = io.BytesIO()
    with quiet_export():
        torch.export.save(exported_program(policy), content, extra_files={"drl.json": json.dumps(about)})
    return content.getvalue()


def run_pt2(content: bytes) -> Run:
    """Calls the program in a `.pt2` file."""
    with quiet_export():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        with torch.no_grad():
            outputs = module({name: torch.from_numpy(array) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    return run


def onnx_content(policy: TorchPolicy, about: dict[str, str]) -> bytes:
    """The file; `about` is among its metadata."""
    inputs, outputs = ([port.name for port in ports] for ports in (policy.graph.inputs, policy.graph.outputs))
    with quiet_export():
        try:
            program = torch.onnx.export(
                exported_program(policy), input_names=inputs, output_names=outputs, dynamo=True, verbose=False
            )
        except ImportError as error:
            raise MissingExtra("an ONNX file", "export", error) from None
    assert program is not None
    model: Any = program.model_proto
    symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param  # the exporter's own
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == symbol:
                axis.dim_param = BATCH
    for name, text in about.items():
        model.metadata_props.add(key=name, value=text)
    content: bytes = model.SerializeToString()
    return content


def run_onnx(content: bytes) -> Run:
    """The file in onnxruntime, on the CPU."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra("checking an ONNX file", "export", error) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3  # errors only
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return run
