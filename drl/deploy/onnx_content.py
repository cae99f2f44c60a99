"""An ONNX file of an agent, and what onnxruntime makes of it."""

from typing import Any

import torch

from drl.core.errors import MissingExtra
from drl.core.specs import Array
from drl.deploy.parity import Run
from drl.deploy.torch_policy import TorchPolicy, exported_program, quiet_export

BATCH = "batch"  # the name of the open axis


def onnx_content(policy: TorchPolicy, about: dict[str, str]) -> bytes:
    """The file; `about` is among its metadata."""
    with quiet_export():
        try:
            program = torch.onnx.export(
                exported_program(policy),
                input_names=[port.name for port in policy.graph.inputs],
                output_names=[port.name for port in policy.graph.outputs],
                dynamo=True,
                verbose=False,
            )
        except ImportError as error:
            raise MissingExtra("an ONNX file", "export", error) from None
    assert program is not None
    model: Any = program.model_proto
    _name_batch(model.graph)
    for name, text in about.items():
        model.metadata_props.add(key=name, value=text)
    content: bytes = model.SerializeToString()
    return content


def _name_batch(graph: Any) -> None:
    """`batch` in place of the exporter's own symbol."""
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == symbol:
                axis.dim_param = BATCH


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
