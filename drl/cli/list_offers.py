"""`drl list`: the algorithms, presets and environments."""


def main(arguments: list[str]) -> int:
    """Run `drl list`."""
    if arguments and arguments[0] in ("-h", "--help"):
        print("usage: drl list [algorithms] [presets] [envs] [--all]\n")
        print("--all: also list environments that are not available here, and why")
        return 0
    from drl.experiment.offers import list as list_offers

    list_offers(*(name for name in arguments if name != "--all"), all="--all" in arguments, console=True)
    return 0
