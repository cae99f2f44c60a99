"""The body of a collector process: blocks of environments beside a copy of the policy."""

import os
import platform

from drl.cluster.env_blocks import Blocks, BlockState, Chunk, MakeBlocks, Order, Specs, Weights, collect, go_to
from drl.core.specs import EnvValue
from drl.core.state_files import StateDict
from drl.trainer.trainer import Collector


class CollectorActor:
    """A Ray actor. It takes orders one after the other; `steps_taken` answers meanwhile."""

    def __init__(self, make_blocks: MakeBlocks, states: dict[int, BlockState]):
        self.factory: Blocks = make_blocks()
        self.version: int = -1
        self.taken: int = 0
        self.blocks: dict[int, Collector] = {}
        self.inexact: str | None = None
        self.rebuild(states)

    def rebuild(self, states: dict[int, BlockState]) -> None:
        """New blocks where others were."""
        self.close()
        self.blocks = {number: self.factory.make(number) for number in states}
        reasons = [go_to(self.blocks[number], state) for number, state in states.items()]
        self.inexact = next((why for why in reasons if why is not None), None)

    def describe(self) -> tuple[Specs, str | None]:
        """Its specs, and why it does not continue exactly where its blocks were, if it does not."""
        block = next(iter(self.blocks.values()))
        return Specs(block.obs_spec, block.action_spec, platform.node(), os.getpid()), self.inexact

    def collect(self, order: Order, weights: Weights) -> list[Chunk]:
        """Take the steps of an order, with these weights."""
        if order.version != self.version:
            self.factory.load(weights)
            self.version = order.version
        return [collect(self.blocks[number], order, self._count) for number in order.blocks]

    def get(self, name: str) -> list[EnvValue]:
        return [value for block in self.blocks.values() for value in block.get(name)]

    def set(self, name: str, value: EnvValue) -> dict[int, StateDict]:
        """The states of the environments of every block afterwards."""
        for block in self.blocks.values():
            block.set(name, value)
        return self._states()

    def call(
        self, name: str, args: tuple[EnvValue, ...], kwargs: dict[str, EnvValue]
    ) -> tuple[list[EnvValue], dict[int, StateDict]]:
        """What the methods returned, and the states afterwards."""
        answers = [answer for block in self.blocks.values() for answer in block.call(name, *args, **kwargs)]
        return answers, self._states()

    def _states(self) -> dict[int, StateDict]:
        return {number: block.envs.state_dict() for number, block in self.blocks.items()}

    def _count(self) -> None:
        self.taken += 1

    def steps_taken(self) -> int:
        """Environment steps since it was started."""
        return self.taken

    def close(self) -> None:
        for block in self.blocks.values():
            block.envs.close()
