"""Ray for one command: nothing is left of it, and every mistake is one line."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from three_nodes import ROOT, commands, foreign_ports, until

from drl.cli.entry import main
from drl.cluster import node_process, ray_cluster
from drl.cluster.node_process import HostReady, Needs, NodeProcesses
from drl.cluster.ray_cluster import check_needs, open_cluster
from drl.core.errors import BadInput, MissingExtra

pytestmark = pytest.mark.full

ANYTHING = ("drl.search.search_worker", "work")


def test_a_local_cluster_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray would write its token
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    temporary = {path for path in Path(tempfile.gettempdir()).glob("drl*") if str(os.getpid()) in path.name}
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(BadInput, match=r"127\.0\.0\.1:1', where nobody answers"):
        _open_stale(monkeypatch)  # it has imported Ray without its switch for 127.0.0.1
    with pytest.raises(ZeroDivisionError):
        _use_a_cluster(handlers, monkeypatch)
    until(lambda: not commands())
    assert not ray_cluster.import_ray("local").is_initialized()
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert list(tmp_path.iterdir()) == []
    assert {path for path in Path(tempfile.gettempdir()).glob("drl*") if str(os.getpid()) in path.name} == temporary


def _open_stale(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        with open_cluster("auto"):
            pass


def _use_a_cluster(handlers, monkeypatch):
    with open_cluster("local", num_cpus=1) as ray:
        assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        assert any("raylet" in words for words in commands().values())
        with open_cluster("local") as inner:
            assert inner is ray
        assert ray.is_initialized()
        with pytest.raises(BadInput, match="cpus_per_run is 2, but this machine has 1"):
            check_needs(ray, "local", Needs(2.0))
        with pytest.raises(BadInput, match="gpus_per_run is 1"):
            check_needs(ray, "local", Needs(1.0, 1.0))
        _check_versions(ray, monkeypatch)
        assert foreign_ports() == []
        raise ZeroDivisionError


def _check_versions(ray, monkeypatch):
    """In the cluster that is there."""
    nodes = NodeProcesses(ray, ANYTHING, Needs())
    process = nodes.start()
    until(lambda: nodes.wait([process], 1.0) == [] and process.ready is not None)
    assert isinstance(process.ready, HostReady)
    folder = Path(process.ready.folder).parent
    assert folder.is_dir()
    nodes.close([process])
    assert not folder.exists(), "what it had on its node is removed"
    monkeypatch.setattr(node_process.drl, "__version__", "9.9")
    other = nodes.start()
    with pytest.raises(BadInput, match=r"node \S+ has drl .* and this is drl 9.9; install the same there"):
        until(lambda: nodes.wait([other], 1.0))
    nodes.close([other])


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "nobody answers .*; type on the head node: ray start --head --port 1"),
        ("ray://127.0.0.1:10001", "expected local, auto or HOST:PORT"),
        ("nowhere", "expected local, auto or HOST:PORT"),
    ],
)
def test_an_address_that_is_wrong_is_one_line(address, said, tmp_path, capsys):
    assert main(["train", "ppo", "--cluster", address, "--results-dir", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(said, error)
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_ray_is_one_line(monkeypatch):
    text = (
        "Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.12.1\n"
        "This process on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
    )
    ray = ray_cluster.import_ray("auto")
    monkeypatch.setattr(ray, "init", lambda *_, **__: (_ for _ in ()).throw(RuntimeError(text)))
    with pytest.raises(BadInput, match=r"has Ray 2.50.0, Python 3.12.1 and this is Ray 2.60.0, Python 3.11.7; install"):
        ray_cluster._connect(ray, "auto", None, "")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'drl-workshop\[ray\]'"), open_cluster("local"):
        pass


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gpus-per-run", "1"], "gpus_per_run is 1.0 without a cluster"),
        (["--results-url", "s3://x"], "results_url is s3://x without a cluster"),
        (["--gpus-per-run", "1", "--cluster", "local", "--num-collectors", "2"], "is for whole runs on a cluster"),
        (["--results-url", "x", "--cluster", "local"], "expected a URL such as s3://bucket/runs"),
        (
            ["--results-url", "strange://x", "--cluster", "local"],
            "results_url is 'strange://x', which cannot be opened",
        ),
        (["--num-seeds", "2", "--cluster", "local", "--num-collectors", "2"], "have one process each; leave num_coll"),
        (["--mlflow-experiment", "x", "--cluster", "local"], "set MLFLOW_TRACKING_URI"),
    ],
)
def test_bad_settings_are_one_line(flags, said, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["train", "ppo", *flags, "--results-dir", str(tmp_path / "results")]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_the_flag_nothing_of_it_is_imported():
    code = "import drl.runs.launch, drl.search.run_search, sys; "
    code += "assert not [name for name in sys.modules if name.startswith(('ray', 'drl.cluster.'))]"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
