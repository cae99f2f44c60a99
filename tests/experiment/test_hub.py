"""`drl push` and `drl pull` against a stand-in of the Hugging Face Hub on this machine, which can be hostile."""

import json
import sys

import huggingface_hub
import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard

from drl.agents import hub as drl_hub
from drl.agents.load_agent import load_agent
from drl.cli.entry import main
from drl.core.agent_files import MARK, read_agent, readme, write_agent
from drl.core.configs import ModelConfig
from drl.core.errors import BadInput, UnusableFile
from drl.core.specs import ActionSpec, EnvSpecs, ObsSpec
from drl.engines.torch.agents import PolicyAgent
from drl.engines.torch.models import make_policy_value_model

OBS, SPEC = ObsSpec("box", (3,)), ActionSpec("discrete", sizes=(4,))
EVALUATION = {"mean_return": 475.5, "std_return": 12.25, "episodes": 10}


def save(folder, **notes):
    agent = PolicyAgent(make_policy_value_model(OBS, SPEC, ModelConfig(hidden_sizes=(8,))), EnvSpecs(OBS, SPEC))
    about = {"env": "CartPole-v1", "algorithm": "ppo", "seed": 3, "env_steps": 1000, "evaluation": EVALUATION}
    agent.save(folder, **(about | notes))
    return agent


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def pushed(hub, tmp_path):
    """An agent on the hub, and its folder."""
    save(tmp_path / "agent")
    assert main(["push", str(tmp_path / "agent"), "me/cart"]) == 0
    return tmp_path / "agent"


@pytest.mark.parametrize("large", [(), (".safetensors",)], ids=["plain", "large files"])
def test_what_is_pushed_is_pulled_byte_by_byte(hub, tmp_path, capsys, large):
    hub.large = large
    agent = save(tmp_path / "run" / "agent")
    assert main(["push", str(tmp_path / "run"), "me/cart", "--private"]) == 0
    assert capsys.readouterr().out == f"{hub.endpoint}/me/cart\n"
    assert hub.private == {"me/cart"}
    assert main(["pull", "me/cart", "--out", str(tmp_path / "deep" / "pulled")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/deep/pulled\n"
    assert contents(tmp_path / "deep") == {
        f"pulled/{name}": content for name, content in contents(tmp_path / "run" / "agent").items()
    }
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.testing.assert_array_equal(load_agent(tmp_path / "deep" / "pulled", strict=True).act(obs), agent.act(obs))


def test_a_second_push_replaces_the_weights(pushed, hub, tmp_path):
    first = set(hub.repositories["me/cart"])
    hub.repositories["me/cart"]["video.mp4"] = b"a film"
    save(tmp_path / "agent")
    assert main(["push", str(tmp_path / "agent"), "me/cart"]) == 0
    assert set(hub.repositories["me/cart"]) == {"README.md", "card.json", "video.mp4"} | {
        file.name for file in (tmp_path / "agent").glob("weights-*")
    }
    assert first != set(hub.repositories["me/cart"])
    assert main(["pull", "me/cart", "--out", str(tmp_path / "new")]) == 0
    assert not (tmp_path / "new" / "video.mp4").exists(), "only the agent's own files are downloaded"


def test_a_public_repository_does_not_become_private_in_silence(pushed, hub, capsys):
    before = dict(hub.repositories["me/cart"])
    save(pushed)
    assert main(["push", str(pushed), "me/cart", "--private"]) == 2
    assert "exists and is public" in capsys.readouterr().err
    assert hub.repositories["me/cart"] == before


def test_a_revision_is_a_commit(pushed, hub, tmp_path, capsys):
    assert main(["pull", "me/cart", "--out", str(tmp_path / "a"), "--revision", hub.sha("me/cart")]) == 0
    assert main(["pull", "me/cart", "--out", str(tmp_path / "b"), "--revision", "v9"]) == 2
    assert "there is no such revision" in capsys.readouterr().err


def test_an_agent_without_a_readme_gets_one_on_the_hub_only(pushed, hub, tmp_path):
    own = (pushed / "README.md").read_bytes()
    (pushed / "README.md").unlink()
    hub.repositories.clear()
    assert main(["push", str(pushed), "me/cart"]) == 0
    assert hub.repositories["me/cart"]["README.md"] == own
    assert not (pushed / "README.md").exists()


def refused(capsys, tmp_path, code, *words):
    """Pull; the one line that it says. Nothing is left behind."""
    known = sorted(tmp_path.rglob("*"))
    assert main(["pull", "me/cart", "--out", str(tmp_path / "new")]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words), line
    assert sorted(tmp_path.rglob("*")) == known
    return line


def test_nothing_is_overwritten(pushed, tmp_path, capsys):
    (tmp_path / "new").mkdir()
    refused(capsys, tmp_path, 2, "new exists and is not overwritten")


@pytest.mark.default("cart", "../x", "me/..", "a/b/c")
@pytest.mark.parametrize(
    "name", ["cart", "a/b/c", "../x", "me/..", "me/ca rt", "/etc", "https://x/y", "me/", "me/a--b"]
)
def test_names_that_are_none(hub, tmp_path, capsys, name):
    assert main(["pull", name, "--out", str(tmp_path / "new")]) in (2, 3)
    assert main(["push", str(tmp_path), name]) == 2
    assert not hub.asked


def test_a_missing_token_is_one_line(pushed, monkeypatch, capsys):
    capsys.readouterr()
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert main(["push", str(pushed), "me/cart"]) == 2
    assert capsys.readouterr().err == (
        "drl: there is no token of the Hugging Face Hub; set HF_TOKEN, or type: hf auth login\n"
    )


def test_a_wrong_token_is_one_line(pushed, monkeypatch, capsys):
    capsys.readouterr()
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    assert main(["push", str(pushed), "you/cart"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "answers 401" in line
    assert "HF_TOKEN" in line
    assert "hf_bad" not in line


def test_a_missing_extra_is_named(pushed, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["push", str(pushed), "me/cart"]) == 2
    assert "drl-workshop[hub]" in capsys.readouterr().err


def test_a_hub_that_cannot_be_reached(hub, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused(capsys, tmp_path, 2, "cannot reach http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refused(capsys, tmp_path, 2, "cannot reach", "HF_HUB_OFFLINE")


def test_a_repository_that_is_missing(hub, tmp_path, capsys):
    refused(capsys, tmp_path, 2, "answers 404", "check the name")
    hub.repositories["me/cart"] = {"README.md": b"something else"}
    refused(capsys, tmp_path, 2, "holds no agent of drl: it has no card.json")


LISTING = b'{"id": "me/cart", "sha": "../x", "siblings": [{"rfilename": "card.json"}]}'
HTML = (200, {"Content_Type": "text/html"}, b"<html>please log in</html>")


@pytest.mark.default("*answer0-*", "*answer5-*", "*answer10-*")
@pytest.mark.parametrize(
    ("path", "answer", "code", "words"),
    [
        ("/api/models/me/cart", HTML, 3, ["something unexpected"]),
        ("/api/models/me/cart", (200, {}, b"[1, 2]"), 3, ["something unexpected"]),
        ("/api/models/me/cart", (200, {}, LISTING), 3, ["names no commit"]),
        ("/api/models/me/cart", (503, {}, b"busy"), 2, ["answers 503: busy"]),
        ("/api/models/me/cart", (401, {}, b"{}"), 2, ["answers 401", "HF_TOKEN"]),
        ("/card.json", HTML, 3, ["not valid JSON"]),
        ("/card.json", (200, {}, b"{}"), 3, ["names the weights None"]),
        ("/card.json", (200, {"Content_Length": "90000"}, b'{"weights": '), 3, ["card.json broke off"]),
        (".safetensors", HTML, 3, ["its checksum differs"]),
        (".safetensors", (404, {}, b"{}"), 3, ["the repository lacks weights-"]),
        (".safetensors", (200, {"Content_Length": "90000"}, b"half of it"), 3, ["broke off"]),
        (".safetensors", (302, {"Location": "file:///etc/passwd"}, b""), 2, []),
    ],
)  # fmt: skip
def test_an_answer_that_is_wrong_leaves_nothing_behind(pushed, hub, tmp_path, capsys, path, answer, code, words):
    capsys.readouterr()
    hub.answers[path] = answer
    refused(capsys, tmp_path, code, *words)


def test_names_in_a_listing_lead_nowhere(pushed, hub, tmp_path):
    hub.repositories["me/cart"] |= {
        "../../outside": b"x",
        "/etc/outside": b"x",
        "weights-000000000000.safetensors": b"",
    }
    assert main(["pull", "me/cart", "--out", str(tmp_path / "deep" / "new")]) == 0
    assert contents(tmp_path / "deep" / "new") == contents(pushed)
    assert not (tmp_path / "outside").exists()


@pytest.mark.default("../../outside", "3")
@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "card.json", "weights-0.safetensors", 3])
def test_a_card_names_no_other_file(pushed, hub, tmp_path, capsys, name):
    capsys.readouterr()
    card = json.loads(hub.repositories["me/cart"]["card.json"]) | {"weights": name}
    hub.repositories["me/cart"]["card.json"] = json.dumps(card).encode()
    refused(capsys, tmp_path, 3, "names the weights")


def test_an_agent_of_an_unknown_plugin_is_checked_as_far_as_it_can_be(pushed, hub, tmp_path, capsys):
    capsys.readouterr()
    card, arrays = read_agent(pushed)
    card.pop("content_checksum")
    write_agent(pushed, card | {"variant": "mine"}, arrays)
    hub.repositories["me/cart"]["card.json"] = (pushed / "card.json").read_bytes()
    assert main(["pull", "me/cart", "--out", str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    hub.answers[".safetensors"] = HTML
    refused(capsys, tmp_path, 3, "its checksum differs")


def test_a_file_that_never_ends_is_left(pushed, hub, tmp_path, capsys, monkeypatch):
    capsys.readouterr()
    monkeypatch.setattr(drl_hub, "MOST_WEIGHTS", 100)
    refused(capsys, tmp_path, 3, "more than the 100 bytes")


def test_pushing_a_damaged_agent_asks_nobody(pushed, hub, capsys):
    hub.asked.clear()
    next(pushed.glob("weights-*")).write_bytes(b"damaged")
    assert main(["push", str(pushed), "me/cart"]) == 3
    assert not hub.asked


def test_a_step_of_a_run_has_no_folder_to_push(pushed, capsys):
    assert main(["push", str(pushed), "me/cart", "--which", "500"]) == 2
    assert "expected final, best, best-evaluated" in capsys.readouterr().err


# ── the README ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_readme_has_the_metadata_of_the_hub(tmp_path):
    save(tmp_path, license="apache-2.0")
    data = ModelCard.load(tmp_path / "README.md").data  # the library's own reading, of model-index too
    assert (data.library_name, data.license, data.pipeline_tag) == (
        "drl-workshop",
        "apache-2.0",
        "reinforcement-learning",
    )
    assert {"reinforcement-learning", "ppo", "CartPole-v1"} <= set(data.tags)
    (result,) = data.eval_results
    assert (result.task_type, result.dataset_type) == ("reinforcement-learning", "CartPole-v1")
    assert (result.metric_type, result.metric_value, result.verified) == ("mean_reward", "475.50 +/- 12.25", False)


def test_without_an_evaluation_there_is_no_result(tmp_path):
    save(tmp_path, evaluation=None)
    text = (tmp_path / "README.md").read_text()
    assert "model-index" not in text
    assert "license: `none stated`" in text


def test_texts_of_others_are_only_texts():
    wild = "x`\n---\n# Title <script>alert(1)</script> [link](javascript:1) : {{ }} \u202e"
    notes = {"env": wild, "algorithm": wild, "license": wild, "env_kwargs": {wild: wild}, "mean_return": "NaN"}
    text = readme({"notes": notes, "engine": wild, "versions": {wild: wild}})
    front, body = text.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(front)["license"] == " ".join(wild.removesuffix("\u202e").split())
    assert [line for line in body.splitlines() if line.startswith("#")] == [
        line for line in body.splitlines() if line.startswith("# `x' --- #")
    ]
    for line in body.partition("This folder holds")[0].splitlines()[1:]:
        outside = "".join(line.split("`")[::2])
        assert "<" not in outside
        assert "[" not in outside


def test_a_readme_of_the_user_is_kept(tmp_path):
    save(tmp_path)
    save(tmp_path, env="Acrobot-v1")
    text = (tmp_path / "README.md").read_text()
    assert "Acrobot-v1" in text
    (tmp_path / "README.md").write_text(text.replace(MARK, "") + "\nMine.\n")
    save(tmp_path)
    assert "Mine." in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").rename(tmp_path.parent / "outside.md")
    (tmp_path / "README.md").symlink_to(tmp_path.parent / "outside.md")
    save(tmp_path)
    assert "Mine." in (tmp_path / "README.md").read_text()


def test_in_python(pushed, hub, tmp_path):
    assert drl_hub.pull("me/cart", out=tmp_path / "new").folder == tmp_path / "new"
    with pytest.raises(BadInput):
        drl_hub.pull("me/cart", out=tmp_path / "new")
    with pytest.raises(UnusableFile):
        drl_hub._weights_of([], "x")
