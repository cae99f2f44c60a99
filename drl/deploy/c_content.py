"""An MLP agent as one C99 file without dependencies but math.h: `drl_act` takes a raw observation."""

import math
import re

import numpy as np

from drl.core.agent_files import StoredAgent
from drl.core.configs import ModelConfig, QModelConfig, backbone_name
from drl.core.errors import BadInput, plural
from drl.core.specs import ActionSpec, ObsSpec
from drl.deploy.c_network import CNetwork, literal
from drl.deploy.policy_graph import PolicyGraph
from drl.engines.numpy.networks import QNet, policy_net, q_net

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
        raise BadInput(f"{source}: its head is {config.head!r}; {use}")  # type: ignore[union-attr]


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
    low, high = (net.constant(f"drl_{name}", np.array(getattr(spec, name))) for name in ("low", "high"))
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
