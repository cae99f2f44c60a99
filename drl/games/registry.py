"""Our own environments under Gymnasium ids. `import drl` registers them; making one imports its module."""

import gymnasium as gym

from drl.core.specs import PlainDict

IPD = "drl.games.ipd"
MOVIE_REC = "drl.games.movie_rec"
PROBES = "drl.games.probes"

# id → arguments of gymnasium.register
ENVS: dict[str, PlainDict] = {
    "MovieRec-v1": {
        "entry_point": f"{MOVIE_REC}:MovieRecEnv",
        "vector_entry_point": f"{MOVIE_REC}:MovieRecVectorEnv",
    },
    "IteratedPrisonersDilemma-v0": {
        "entry_point": f"{IPD}:IteratedPrisonersDilemmaEnv",
        "vector_entry_point": f"{IPD}:IteratedPrisonersDilemmaVectorEnv",
    },
    "drl/Counting-v0": {
        "entry_point": f"{PROBES}:CountingEnv",
        "vector_entry_point": f"{PROBES}:CountingVectorEnv",
    },
    "drl/TwoStep-v0": {"entry_point": f"{PROBES}:TwoStepEnv"},
    "drl/TwoStepTruncated-v0": {"entry_point": f"{PROBES}:TwoStepEnv", "kwargs": {"truncate": True}},
    "drl/OneStep-v0": {"entry_point": f"{PROBES}:OneStepEnv"},
    "drl/Match-v0": {"entry_point": f"{PROBES}:MatchEnv"},
    "drl/Target-v0": {"entry_point": f"{PROBES}:TargetEnv"},
    "drl/BitFlip-v0": {"entry_point": f"{PROBES}:BitFlipEnv"},
    "drl/LegalMoves-v0": {"entry_point": f"{PROBES}:LegalMovesEnv"},
    "drl/Recall-v0": {"entry_point": f"{PROBES}:RecallEnv"},
    "drl/Mood-v0": {"entry_point": f"{PROBES}:MoodEnv"},
    "drl/MoodTruncated-v0": {"entry_point": f"{PROBES}:MoodEnv", "kwargs": {"truncate": True}},
    "drl/CartPoleNoVelocity-v1": {
        "entry_point": f"{PROBES}:CartPoleNoVelocityEnv",
        "max_episode_steps": 500,
        "reward_threshold": 475.0,
    },
}


def register_envs() -> None:
    """Register the ids above with Gymnasium. A second call changes nothing."""
    for env_id, arguments in ENVS.items():
        if env_id not in gym.registry:
            gym.register(env_id, **arguments)
