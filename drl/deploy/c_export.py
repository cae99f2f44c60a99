"""An MLP agent as one C99 file that needs only math.h: `drl_act` takes a raw observation.

`CNetwork` writes the layers, `c_content` the file; `run_c` compiles and calls it.
"""

import ctypes
import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from drl.core.agent_files import StoredAgent
from drl.core.configs import ModelConfig, QModelConfig, backbone_name
from drl.core.errors import BadInput, plural
from drl.core.specs import MASK_KEY, ActionSpec, Array, ObsSpec
from drl.deploy.parity import Run
from drl.deploy.policy_graph import PolicyGraph, port_name
from drl.engines.numpy.networks import IDENTITY, NORM_EPS, AnyLayer, Norm, QNet, Residual, policy_net, q_net

STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
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
BEST = """static int drl_best(const float *values, int n{parameter})
{{
    int best = {first};
    for (int i = 0; i < n; i++) if ({legal}(best < 0 || values[i] > values[best])) best = i;
    return best{fallback};
}}"""
C51 = """static float drl_expected(const float *logits, const float *support, int atoms)
{
    float most = logits[0], total = 0.0f, sum = 0.0f;
    for (int k = 1; k < atoms; k++) if (logits[k] > most) most = logits[k];
    for (int k = 0; k < atoms; k++) {
        float weight = expf(logits[k] - most);
        total += weight;
        sum += weight * support[k];
    }
    return sum / total;
}"""


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


def c_content(stored: StoredAgent, graph: PolicyGraph, about: dict[str, str]) -> str:
    """The file, for an agent that `check_mlp` accepts."""
    size = sum(math.prod(leaf.shape) for leaf in stored.obs_spec.leaves.values())
    net = CNetwork(size)
    raw_size = _encode(net, stored.obs_spec)
    if stored.normalizer is not None:
        shift, scale = stored.normalizer.scales[""]
        mean, factor, clip = net.constant("drl_mean", shift), net.constant("drl_factor", scale), stored.normalizer.clip
        net.lines.append(f"for (int i = 0; i < {size}; i++) {{")
        net.lines.append(f"    float v = (a[i] - {mean}[i]) * {factor}[i], most = {literal(clip)};")
        net.lines.append("    a[i] = v > most ? most : v < -most ? -most : v;")
        net.lines.append("}")
    if isinstance(stored.config, QModelConfig):
        _action_values(net, q_net(stored.params, stored.config), stored.action_spec.sizes[0])
    else:
        policy = policy_net(stored.params, getattr(stored.config, "activation", "tanh"))
        net.add(policy.layers)
        net.dense(*policy.head)
    if stored.action_spec.kind == "box":
        _scale_action(net, graph, stored.action_spec)
    else:
        _choose(net, graph, stored.action_spec)
    return _file(net, graph, raw_size, about)


def check_mlp(stored: StoredAgent, source: object) -> None:
    """Raise unless the network of an agent is an MLP of ours; `source` names the agent."""
    config, use = stored.config, "a C file is for MLPs (mlp, simba): use --to onnx"
    if config is None:
        raise BadInput(f"{source}: its network is a model of your own; {use}")
    if isinstance(config, ModelConfig) and config.recurrent != "none":
        raise BadInput(f"{source}: its network is recurrent ({config.recurrent}); {use}")
    if stored.obs_spec.is_structured:
        raise BadInput(f"{source}: its network has an encoder for each part of the observation; {use}")
    name = backbone_name(config, stored.obs_spec) if hasattr(config, "backbone") else type(config).__name__
    if name not in ("mlp", "simba"):
        raise BadInput(f"{source}: its network is a {name}; {use}")
    if getattr(config, "head", "auto") != "auto":
        raise BadInput(f"{source}: its head is {config.head!r}; {use}")


def _encode(net: CNetwork, spec: ObsSpec) -> int:
    """Lines that fill `a` with the encoded observation; returns the size of the raw one."""
    taken = column = 0
    for leaf in spec.leaves.values():
        raw, shape = math.prod(leaf.box_shape), math.prod(leaf.shape)
        factor = " / 255.0f" if leaf.dtype == "uint8" else ""
        if leaf.kind in ("discrete", "multi_discrete"):
            raw = len(leaf.sizes)
            starts = leaf.starts or (0,) * raw
            first = column
            for entry, (size, start) in enumerate(zip(leaf.sizes, starts, strict=True)):
                value = f"obs[{taken + entry}] == (float)(i + {start})"
                net.lines.append(f"for (int i = 0; i < {size}; i++) a[{first} + i] = {value} ? 1.0f : 0.0f;")
                first += size
        elif leaf.channels_last:
            pixels, channels = raw // leaf.box_shape[2], leaf.box_shape[2]
            net.lines.append(f"for (int c = 0; c < {channels}; c++) for (int i = 0; i < {pixels}; i++)")
            place, source = f"{column} + c * {pixels} + i", f"{taken} + i * {channels} + c"
            net.lines.append(f"    a[{place}] = obs[{source}]{factor};")
        else:
            net.lines.append(f"for (int i = 0; i < {raw}; i++) a[{column} + i] = obs[{taken} + i]{factor};")
        taken, column = taken + raw, column + shape
    return taken


def _action_values(net: CNetwork, q: QNet, actions: int) -> None:
    """Lines that leave the value of each action in the current buffer."""
    net.add(q.layers)
    atoms = len(q.support) if q.kind != "none" else 1
    if q.value is not None:
        net.dense(*q.value, into="kept")
    net.dense(*q.advantage)
    x = net.x
    if q.value is not None:
        net.lines.append(f"for (int k = 0; k < {atoms}; k++) {{")
        net.lines.append("    float mean = 0.0f;")
        net.lines.append(f"    for (int i = 0; i < {actions}; i++) mean += {x}[i * {atoms} + k] / {actions}.0f;")
        net.lines.append(f"    for (int i = 0; i < {actions}; i++) {x}[i * {atoms} + k] += kept[k] - mean;")
        net.lines.append("}")
    if q.kind == "c51":
        net.functions["c51"] = C51
        support = net.constant("drl_support", q.support)
        net.lines.append(
            f"for (int i = 0; i < {actions}; i++) {x}[i] = drl_expected({x} + i * {atoms}, {support}, {atoms});"
        )
    elif q.kind == "qr":
        net.lines.append(f"for (int i = 0; i < {actions}; i++) {{")
        net.lines.append("    float sum = 0.0f;")
        net.lines.append(f"    for (int k = 0; k < {atoms}; k++) sum += {x}[i * {atoms} + k];")
        net.lines.append(f"    {x}[i] = sum / {atoms}.0f;")
        net.lines.append("}")


def _choose(net: CNetwork, graph: PolicyGraph, spec: ActionSpec) -> None:
    x, starts = net.x, spec.starts or (0,) * max(len(spec.sizes), 1)
    if spec.kind == "multi_binary":
        bit = f"{x}[i] > 0.0f"
        if graph.masked:
            bit = f"action_mask[2 * i + 1] && ({bit} || !action_mask[2 * i])"
        net.lines.append(f"for (int i = 0; i < {spec.entries}; i++) action[i] = {bit};")
        return
    parts = ("", "0", "") if not graph.masked else (", const unsigned char *legal", "-1", "legal[i] && ")
    net.functions["best"] = BEST.format(
        parameter=parts[0], first=parts[1], legal=parts[2], fallback=" < 0 ? 0 : best" if graph.masked else ""
    )
    column = 0
    for entry, size in enumerate(spec.sizes):
        mask = f", action_mask + {column}" if graph.masked else ""
        chosen = f"{starts[entry]} + drl_best({x} + {column}, {size}{mask})"
        net.lines.append(f"return {chosen};" if spec.kind == "discrete" else f"action[{entry}] = {chosen};")
        column += size


def _scale_action(net: CNetwork, graph: PolicyGraph, spec: ActionSpec) -> None:
    assert graph.distribution is not None
    low, high = net.constant("drl_low", np.array(spec.low)), net.constant("drl_high", np.array(spec.high))
    value = f"{net.x}[i]" if graph.distribution.kind == "gaussian" else f"tanhf({net.x}[i])"
    net.lines += [
        f"for (int i = 0; i < {spec.entries}; i++) {{",
        f"    float v = {value}, low = {low}[i], high = {high}[i];",
        "    if (low > -INFINITY && high < INFINITY) {",
        "        float inside = v > 1.0f ? 1.0f : v < -1.0f ? -1.0f : v;",
        "        v = high * (inside + 1.0f) / 2.0f + low * (1.0f - inside) / 2.0f;",
        "    }",
        "    action[i] = v > high ? high : v < low ? low : v;",
        "}",
    ]


def signature(graph: PolicyGraph) -> str:
    """Of the one public function."""
    spec = graph.action_spec
    mask = ", const unsigned char *action_mask" if graph.masked else ""
    if spec.kind == "discrete":
        return f"int drl_act(const float *obs{mask})"
    return f"void drl_act(const float *obs{mask}, {'float' if spec.kind == 'box' else 'int'} *action)"


def _file(net: CNetwork, graph: PolicyGraph, raw_size: int, about: dict[str, str]) -> str:
    spec, leaves = graph.action_spec, graph.obs_spec.leaves.items()
    parts = [f"{_harmless(path or 'obs')} {leaf.kind} {list(leaf.box_shape) or 'of 1'}" for path, leaf in leaves]
    lines = [
        "An agent of drl, exported by `drl export --to c`. C99; compile with -lm.",
        *(f"{name}: {_harmless(about[name])}" for name in ("env", "drl_version", "agent_checksum")),
        f"Declare it where you use it: {signature(graph)};",
        f"obs: {plural(raw_size, 'number')}, one raw observation ({', '.join(parts)})",
        "Discrete values are given as numbers, pixels from 0 to 255.",
    ]
    if graph.masked:
        lines.append(f"action_mask: {spec.num_choices} bytes, 1 for a legal choice, 0 for an illegal one")
    result = (
        "the result is the action" if spec.kind == "discrete" else f"action: room for {plural(spec.entries, 'number')}"
    )
    lines.append(f"{result}, in the environment's units")
    comment = "\n".join(f" * {line}" for line in lines)
    body = "\n".join(f"    {line}" for line in net.lines)
    head = f"/*\n{comment}\n */\n#include <math.h>\n"
    own = f"{signature(graph)};\n\n{signature(graph)}\n{{\n    {net.buffers}\n{body}\n}}\n"
    return "\n\n".join((head, *net.constants, *net.functions.values(), own))


def _harmless(text: str) -> str:
    """A card's words for a comment that they must not end, also not with a backslash or a trigraph."""
    return re.sub(r"[^\w./:, -]", "_", text, flags=re.ASCII)[:100]


def find_compiler() -> str | None:
    """The path of a C compiler, if there is one."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def run_c(source: str, graph: PolicyGraph, compiler: str) -> Run:
    """The compiled `drl_act`, row by row."""
    with TemporaryDirectory() as folder:
        file, library = Path(folder, "agent.c"), Path(folder, "agent.so")
        file.write_text(source)
        built = subprocess.run(
            [compiler, *STRICT, "-shared", "-fPIC", "-o", str(library), str(file), "-lm"],
            capture_output=True,
            text=True,
        )
        if built.returncode:
            raise BadInput(f"{compiler} does not compile the C file: {' '.join(built.stderr.split())[:300]}")
        function = ctypes.CDLL(str(library)).drl_act  # stays loaded after the file is gone
    spec = graph.action_spec
    function.restype = ctypes.c_int if spec.kind == "discrete" else None
    number = ctypes.c_float if spec.kind == "box" else ctypes.c_int

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        leaves = [inputs[port_name(path)] for path in graph.obs_spec.leaves]
        rows = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1).astype(np.float32)
        actions = []
        for row, obs in enumerate(rows):
            arguments = [obs.ctypes.data_as(ctypes.c_void_p)]
            if graph.masked:
                legal = inputs[MASK_KEY][row].astype(np.uint8)
                arguments.append(legal.ctypes.data_as(ctypes.c_void_p))
            if spec.kind == "discrete":
                actions.append(function(*arguments))
            else:
                action = (number * spec.entries)()
                function(*arguments, action)
                actions.append(np.array(action))
        return {"action": np.array(actions).reshape(len(rows), *spec.shape)}

    return run
