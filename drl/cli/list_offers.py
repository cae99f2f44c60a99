"""`drl list`: the algorithms, presets and environments."""

from drl.core.errors import BadInput


def main(arguments: list[str]) -> int:
    """Run `drl list`."""
    if arguments and arguments[0] in ("-h", "--help"):
        print("usage: drl list [algorithms] [presets] [envs] [--all] [--plugins MODULE…]\n")
        print("--all: also list environments that are not available here, and why")
        print("--plugins: your own modules to import first; their algorithms are listed too")
        return 0
    from drl.core.network_parts import import_plugins
    from drl.experiment.offers import list as list_offers

    place = arguments.index("--plugins") if "--plugins" in arguments else len(arguments)
    sections, plugins = arguments[:place], arguments[place + 1 :]
    if place < len(arguments) and not plugins:
        raise BadInput("--plugins names no module; expected drl list algorithms --plugins MODULE")
    import_plugins(plugins)
    list_offers(*(name for name in sections if name != "--all"), all="--all" in sections, console=True)
    return 0
