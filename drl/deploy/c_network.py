"""The network of an MLP agent as C99: weights as constants, and the lines that apply its layers in order."""

from collections.abc import Sequence

import numpy as np

from drl.core.errors import BadInput
from drl.core.specs import Array
from drl.engines.numpy.networks import IDENTITY, NORM_EPS, AnyLayer, Norm, Residual

ACTIVATIONS = {
    "tanh": "tanhf(v)",
    "relu": "v > 0.0f ? v : 0.0f",
    "gelu": "0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)))",
    "silu": "v / (1.0f + expf(-v))",
    "elu": "v > 0.0f ? v : expm1f(v)",
    "leaky_relu": "v >= 0.0f ? v : 0.01f * v",
    "selu": "1.05070099f * (v > 0.0f ? v : 1.67326324f * expm1f(v))",
    "mish": "v * tanhf(v > 0.0f ? v + log1pf(expf(-v)) : log1pf(expf(v)))",
    "softplus": "v > 0.0f ? v + log1pf(expf(-v)) : log1pf(expf(v))",
    "sigmoid": "1.0f / (1.0f + expf(-v))",
}
DENSE = """static void drl_dense(const float *weight, const float *bias, int in, int out, const float *x, float *y)
{
    for (int o = 0; o < out; o++) {
        float sum = bias[o];
        for (int i = 0; i < in; i++) sum += weight[o * in + i] * x[i];
        y[o] = sum;
    }
}"""
NORM = f"""static void drl_norm(const float *scale, const float *bias, int n, float *x)
{{
    float mean = 0.0f, square = 0.0f;
    for (int i = 0; i < n; i++) mean += x[i] / (float)n;
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / (float)n;
    for (int i = 0; i < n; i++) x[i] = (x[i] - mean) / sqrtf(square + {NORM_EPS:g}f) * scale[i] + bias[i];
}}"""


class CNetwork:
    """Collects constants, functions and statements; `x` names the buffer that holds the current values.

    Buffers are `a`, `b` and, for residual blocks and dueling heads, `kept`.
    """

    def __init__(self, width: int):
        self.constants: list[str] = []
        self.functions: dict[str, str] = {}
        self.lines: list[str] = []
        self.x: str = "a"
        self.width: int = width
        self.widest: int = width

    def constant(self, name: str, values: Array) -> str:
        """A `static const float` array with these values, once."""
        numbers = [literal(value) for value in np.ravel(values)]
        rows = [", ".join(numbers[i : i + 8]) for i in range(0, len(numbers), 8)]
        self.constants.append(f"static const float {name}[{len(numbers)}] = {{\n    " + ",\n    ".join(rows) + "};")
        return name

    def add(self, layers: Sequence[AnyLayer]) -> None:
        for layer in layers:
            if isinstance(layer, Norm):
                self._norm(layer)
            elif isinstance(layer, Residual):
                self._residual(layer)
            else:
                self.dense(*layer)

    def dense(self, weight: Array, bias: Array, activation: str = IDENTITY, into: str = "") -> None:
        """A fully connected layer; its answer becomes the current values, unless it goes `into` another buffer."""
        target = into or ("b" if self.x == "a" else "a")
        number = sum(name.startswith("static const float drl_w") for name in self.constants)
        names = self.constant(f"drl_w{number}", weight.T), self.constant(f"drl_b{number}", bias)
        in_features, out_features = weight.shape
        if in_features != self.width:
            raise BadInput(f"its network has a layer for {in_features} numbers behind {self.width}; use --to onnx")
        self.functions["dense"] = DENSE
        self.lines.append(f"drl_dense({names[0]}, {names[1]}, {in_features}, {out_features}, {self.x}, {target});")
        self.widest = max(self.widest, out_features)
        if not into:
            self.x, self.width = target, out_features
            self._activate(activation)

    def _activate(self, name: str) -> None:
        if name == IDENTITY:
            return
        if name not in ACTIVATIONS:
            raise BadInput(f"its activation {name!r} has no form in C; use --to onnx")
        self.functions[name] = f"static float drl_{name}(float v)\n{{\n    return {ACTIVATIONS[name]};\n}}"
        self.lines.append(f"for (int i = 0; i < {self.width}; i++) {self.x}[i] = drl_{name}({self.x}[i]);")

    def _norm(self, norm: Norm) -> None:
        number = len(self.constants)
        names = self.constant(f"drl_scale{number}", norm.scale), self.constant(f"drl_shift{number}", norm.bias)
        self.functions["norm"] = NORM
        self.lines.append(f"drl_norm({names[0]}, {names[1]}, {self.width}, {self.x});")
        self._activate(norm.activation)

    def _residual(self, block: Residual) -> None:
        self.lines.append(f"for (int i = 0; i < {self.width}; i++) kept[i] = {self.x}[i];")
        self.add(block.layers)
        self.lines.append(f"for (int i = 0; i < {self.width}; i++) {self.x}[i] += kept[i];")

    @property
    def buffers(self) -> str:
        """The declaration of the buffers that the lines use."""
        names = ["a", "b", "kept"] if any("kept" in line for line in self.lines) else ["a", "b"]
        return "float " + ", ".join(f"{name}[{self.widest}]" for name in names) + ";"


def literal(value: float) -> str:
    """A C float; nine digits give every float32 exactly.

    >>> literal(1), literal(0.1), literal(np.float32(1e-8)), literal(float("inf"))
    ('1.0f', '0.1f', '9.99999994e-09f', 'INFINITY')
    """
    if np.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = f"{float(value):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
