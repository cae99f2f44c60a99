"""Kills at random moments, by `make faults`: seeds on nodes that die and join, runs that lose their host."""

import os
import random
import signal
import threading
import time

import pytest
from three_nodes import LONG, SLOW_FLAGS, commands, records, training, until

from drl.cli.entry import main
from tests.run_files import rows, weights

KILLS = 12
SEEDS = 4
PPO = ["train", "ppo", *SLOW_FLAGS.split(), "--num-seeds", str(SEEDS)]

pytestmark = [pytest.mark.full, pytest.mark.skipif(not LONG, reason="DRL_FAULTS=long")]


def kill_a_host(rng):
    hosts = [pid for pid, words in commands().items() if words.startswith("ray::Host")]
    if hosts:
        os.kill(rng.choice(hosts), signal.SIGKILL)
    return bool(hosts)


def kill_a_node(nodes):
    nodes.kill_one()
    nodes.add_one()
    return True


@pytest.mark.parametrize("shared", [True, False])
def test_no_mismatch_and_no_orphan(nodes, tmp_path, shared):
    assert main([*PPO, "--results-dir", str(tmp_path / "undisturbed")]) == 0
    undisturbed, rng, hits = records(tmp_path / "undisturbed"), random.Random(int(shared)), 0
    while hits < KILLS // 2:
        results, over = tmp_path / f"disturbed{hits}", threading.Event()
        kills = []

        def disturb(over=over, kills=kills, before=hits):
            while not over.wait(rng.uniform(2.0, 12.0)) and before + len(kills) < KILLS // 2:
                if kill_a_node(nodes) if rng.random() < 0.5 else kill_a_host(rng):
                    kills.append(time.monotonic())

        thread = threading.Thread(target=disturb)
        thread.start()
        url = [] if shared else ["--results-url", (tmp_path / "url").as_uri()]
        try:
            assert main([*PPO, "--cluster", nodes.address, "--results-dir", str(results), *url]) == 0
        finally:
            over.set()
            thread.join()
        hits += len(kills)
        runs = records(results)
        assert sorted(runs) == list(range(SEEDS))
        for seed, folder in runs.items():
            assert rows(folder) == rows(undisturbed[seed])
            assert weights(folder) == weights(undisturbed[seed])
        until(lambda: not training())
