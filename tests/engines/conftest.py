"""Can this machine compile an update at all? Asked without any code of ours, so that a failure of ours is one."""

import warnings

import pytest
import torch
from torch.func import functional_call, grad_and_value

from drl.engines.torch.compiled_update import CompileUnavailable


@pytest.fixture(scope="session")
def machine_compiles():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, obs, action):
        log_prob = functional_call(model, parameters, (obs,)).log_softmax(-1).gather(1, action)
        ratio = (log_prob - log_prob.mean()).exp()
        return torch.minimum(ratio, ratio.clamp(0.8, 1.2)).mean() / (ratio.std() + 1e-8).sqrt()

    inputs = parameters, torch.randn(16, 4), torch.zeros(16, 1, dtype=torch.int64)
    try:
        torch.compile(grad_and_value(loss), options={"cpp_wrapper": True})(*inputs)
    except torch._dynamo.exc.TorchDynamoException:
        return False
    return True


@pytest.fixture
def compiler(machine_compiles):
    """For tests of compiled updates. Without a compiler they see the eager fallback, which must be right as well."""
    if not machine_compiles:
        warnings.simplefilter("ignore", CompileUnavailable)
    return machine_compiles
