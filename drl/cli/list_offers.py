"""`drl list`: the algorithms, presets and environments."""

from drl.experiment.offers import list as list_offers


def main(arguments: list[str]) -> int:
    """Run `drl list`."""
    if arguments and arguments[0] in ("-h", "--help"):
        print("usage: drl list [algorithms] [presets] [envs] [--all]\n\n--all: also what cannot be made here, and why")
        return 0
    print(list_offers(*(name for name in arguments if name != "--all"), all="--all" in arguments))
    return 0
