import itertools

import pytest

from drl.core.log import Log
from drl.runs import stages


def logs(step=100, **groups):
    for i in itertools.count(1):
        made = {k: v(i) for k, v in groups.items()}
        yield Log(env_steps=step * i, episodes=2 * i, learning_steps=i, rollout={"rollout_len": step}, **made)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [({"env_steps": 250}, 3), ({"episodes": 4}, 2), ({"learning_steps": 5}, 5), ({"minutes": 0.0}, 1)],
)
def test_stop_at_gives_the_log_that_reached_the_limit(limit, expected):
    assert len(list(stages.stop_at(logs(), **limit))) == expected


def test_a_return_counts_only_over_a_full_window():
    recent = lambda i: {"mean_ep_return": 10.0 if i < 3 else float(i), "window": min(i, 4)}  # noqa: E731
    found = list(stages.stop_at(logs(recent=recent), mean_return=5.0, window=4))
    assert found[-1].learning_steps == 5  # steps 1 and 2 had the return but not the window


def test_stopping_leaves_the_source_usable():
    source = logs()
    list(stages.stop_at(source, learning_steps=2))
    assert next(source).learning_steps == 3


def test_evaluations_come_at_the_first_log_after_each_multiple():
    found = itertools.islice(stages.evaluate_every(logs(step=70), 100, lambda: {"mean_return": 1.0}), 7)
    assert [log.env_steps for log in found if log.evaluation] == [140, 210, 350, 420]


@pytest.mark.parametrize(("length", "expected"), [(1.0, [100, 200, 300, 400]), (5.0, [200]), (20.0, [])])
def test_evaluations_take_at_most_a_tenth_of_the_steps(length, expected):
    """Four episodes each; they turn out to be twice as long as those of training."""
    steps = stages.EvaluationSteps(episodes=4)

    def evaluate():
        steps.add(round(8 * length))
        return {"mean_return": 1.0}

    source = logs(recent=lambda i: {"mean_ep_len": length})
    found = itertools.islice(stages.evaluate_every(source, 100, evaluate, steps.allow), 4)
    assert [log.env_steps for log in found if log.evaluation] == expected
    assert steps.total == round(8 * length) * len(expected)


def test_the_length_of_an_evaluation_is_not_guessed():
    assert not stages.EvaluationSteps(episodes=1).allow(next(logs()))


def test_a_resumed_run_remembers_the_steps_of_its_evaluations():
    steps, again = stages.EvaluationSteps(2), stages.EvaluationSteps(2)
    steps.add(7)
    steps.add(3)
    again.load_state_dict(steps.state_dict())
    assert (again.total, again.last) == (10, 3)
    assert not again.allow(next(logs(recent=lambda i: {"mean_ep_len": 1.0})))


def test_checkpoints_skip_multiples_that_one_step_passed_together():
    saved = []
    list(itertools.islice(stages.checkpoint_every(logs(step=250), 100, lambda log: saved.append(log.env_steps)), 3))
    assert saved == [250, 500, 750]


class FakeAgent:
    def save_policy_net(self, path):
        path.write_text(str(path.name))

    def save(self, folder, **notes):
        (folder.parent / "best_agent.txt").write_text(str(notes))


@pytest.mark.parametrize(("window", "expected"), [(1, [1, 2, 4]), (3, [1, 2, 3, 4])])
def test_models_are_kept_at_every_best_and_at_equal_fractions(tmp_path, window, expected):
    """Returns 1, 3, 2, 3.5, 0: with a window of 3 episodes the first two are provisional, so the third counts anew."""
    returns, bests = [1.0, 3.0, 2.0, 3.5, 0.0], []

    class Agent(FakeAgent):
        def save(self, folder, **notes):
            super().save(folder, **notes)
            bests.append(notes["env_steps"] // 100)

    source = logs(recent=lambda i: {"mean_ep_return": returns[i - 1], "window": i})
    list(itertools.islice(stages.keep_models(source, Agent(), tmp_path, 500, 2, window=window), 5))
    assert bests == expected
    names = ["best_agent.txt", "best_return_pi_ckpt.pth", "pi_ckpt1.pth", "pi_ckpt2.pth"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_a_resumed_run_remembers_its_best(tmp_path):
    source = logs(recent=lambda i: {"mean_ep_return": -i, "window": i})  # the first is the best
    list(
        itertools.islice(
            stages.keep_models(source, FakeAgent(), tmp_path, 500, 0, best=(best := stages.BestModel())), 2
        )
    )
    again = stages.BestModel()
    again.load_state_dict(best.state_dict())
    list(itertools.islice(stages.keep_models(source, FakeAgent(), tmp_path, 500, 0, best=again), 2))
    assert "'env_steps': 100" in (tmp_path / "best_agent.txt").read_text()


@pytest.mark.parametrize(("best_after", "first"), [(0, 2), (3, 4), (4, 6)])
def test_a_best_model_is_saved_after_more_than_best_after_episodes(tmp_path, best_after, first):
    """As in the fourth document, `episode_index > 100`. Each log has two more episodes."""
    source = logs(recent=lambda i: {"mean_ep_return": i, "window": i})
    kept = stages.keep_models(source, FakeAgent(), tmp_path, 500, 0, best_after=best_after)
    assert next(log.episodes for log in kept if (tmp_path / "best_return_pi_ckpt.pth").exists()) == first


def test_the_best_waits_until_the_agent_is_as_its_log_says(tmp_path):
    in_sync, source = iter([False, True, False]), logs(recent=lambda i: {"mean_ep_return": i, "window": i})
    kept = stages.keep_models(source, FakeAgent(), tmp_path, 500, 0, in_sync=lambda: next(in_sync))
    for expected, _ in zip([None, 200, 200], kept, strict=False):
        best = tmp_path / "best_agent.txt"
        assert (f"'env_steps': {expected}" in best.read_text()) if expected else not best.exists()


def test_track_hands_every_log_to_every_tracker_and_progress_passes_them_on():
    class Collector:
        def __init__(self):
            self.seen = []

        def write(self, log):
            self.seen.append(log.learning_steps)

        def close(self):
            pass

    one, two = Collector(), Collector()
    list(itertools.islice(stages.progress(stages.track(logs(), [one, two]), env_steps=300), 3))
    assert one.seen == two.seen == [1, 2, 3]


def test_the_best_evaluation_is_kept_too(tmp_path):
    """Evaluations 1, 3, 3, 2 in a run that gets worse all the time; a resumed run goes on comparing."""
    saved, scores = [], [1.0, 3.0, 3.0, 2.0, 4.0]

    class Agent(FakeAgent):
        def save(self, folder, **notes):
            if folder.name == "best_evaluated_agent":
                saved.append((notes["env_steps"], notes["mean_return"], notes["env"]))

    def source():
        return logs(
            recent=lambda i: {"mean_ep_return": -i, "window": i}, evaluation=lambda i: {"mean_return": scores[i - 1]}
        )

    best = stages.BestModel()
    list(itertools.islice(stages.keep_models(source(), Agent(), tmp_path, 500, 0, best=best, env="here"), 4))
    assert saved == [(100, 1.0, "here"), (200, 3.0, "here")]
    again = stages.BestModel()
    again.load_state_dict(best.state_dict())
    list(itertools.islice(stages.keep_models(source(), Agent(), tmp_path, 500, 0, best=again, env="here"), 5))
    assert saved[2:] == [(500, 4.0, "here")]
    ahead = stages.keep_models(source(), Agent(), tmp_path, 500, 0, in_sync=lambda: False, env="here")
    list(itertools.islice(ahead, 5))
    assert len(saved) == 3, "the agent is ahead of its log"
