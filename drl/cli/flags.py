"""Flags from dataclasses: each field is a flag, and its comment the help text.

A `Parser` only turns words into values by name. What is not typed keeps the default of its class.
"""

import argparse
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar

from drl.core.configs import ConfigClass, Dataclass
from drl.core.errors import BadInput, did_you_mean, shown
from drl.core.specs import PlainDict

T = TypeVar("T")
DataclassT = TypeVar("DataclassT", bound=Dataclass)
Positional = Annotated[T, "positional"]  # type of a field that is given without a flag
Explain = Callable[[str, str], str | None]  # (unknown setting, its value) → what to type instead

OTHER_NAMES = {"backbone": "--network", "from_agent": "--from"}
ON_AND_OFF = {"compile": ("on", "off")}  # of settings with words: what --NAME alone and --no-NAME stand for
ONE_ENTRY = {"wrappers": "wrapper"}  # lists that a repeated flag fills, too
EXTENDED = {"set"}  # lists that a repeated flag extends; of other flags, the last one counts
METAVARS: dict[type, str] = {str: "STR", int: "INT", float: "FLOAT", bool: "True|False"}
EXPECTED: dict[type, str] = {int: "a whole number", float: "a number", bool: "True or False"}
ALONE = object()  # a flag without its optional value
WRAPPER = "NAME, module:NAME or file.py:NAME, optionally with :k=v,k=v"


class Shape(NamedTuple):
    """What a flag takes, by the type of its field."""

    positional: bool
    entries: bool  # a list of values
    kinds: tuple[Any, ...]  # of a value: (int, NoneType) for `int | None`

    def value(self, text: str) -> object:
        """Convert a word.

        >>> shape_of(float | None).value("1e-3"), shape_of(float | None).value("None"), shape_of(int).value("1e5")
        (0.001, None, 100000)
        """
        if text == "None" and types.NoneType in self.kinds:
            return None
        kind = self.kinds[0]
        try:
            if kind is bool:
                return {"True": True, "False": False}[text]
            if typing.get_origin(kind) is Literal:
                return {str(option): option for option in typing.get_args(kind)}[text]
            return _whole(text) if kind is int else kind(text)
        except (ValueError, OverflowError, KeyError):
            expected = EXPECTED.get(kind) or " or ".join(map(repr, typing.get_args(kind))) or f"a {kind.__name__}"
            raise argparse.ArgumentTypeError(f"is {shown(text)}; expected {expected}") from None


@functools.cache
def shape_of(hint: object) -> Shape:
    """Return the shape of a field's type."""
    positional = typing.get_origin(hint) is Annotated
    options = _options(typing.get_args(hint)[0] if positional else hint)
    entries = typing.get_origin(options[0]) in (tuple, list)
    kinds = (*_options(typing.get_args(options[0])[0]), *options[1:]) if entries else options
    return Shape(positional, entries, kinds)


def _options(hint: object) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # 1e5
        if not number.is_integer():
            raise
        return int(number)


class Switch(argparse.Action):
    """`--NAME` and `--no-NAME`, and `--NAME VALUE` unless it is a plain switch."""

    def __init__(self, option_strings: Sequence[str], dest: str, on: object, off: object, **options: Any):
        super().__init__(option_strings, dest, **options)
        self.on: object = on
        self.off: object = off

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, flag: str | None = None
    ) -> None:
        """Set the value."""
        negative, has_value = flag == self.option_strings[-1], values not in ([], ALONE)
        if negative and has_value:
            raise argparse.ArgumentError(self, f"ignored explicit argument {values!r}")
        setattr(namespace, self.dest, self.off if negative else values if has_value else self.on)


class Parser(argparse.ArgumentParser):
    """Flags of dataclasses, by the title of their group; "" has none. A field hides later ones of the same name."""

    def __init__(
        self,
        prog: str,
        description: str,
        groups: Mapping[str, ConfigClass],
        separator: str = "-",
        explain: Explain | None = None,
    ):
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=26),
        )
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)")  # argparse's own lacks -1e3 and -inf
        self.separator: str = separator
        self.explain: Explain | None = explain
        self.defaults: PlainDict = {}  # shown in place of those of the classes
        self.added: dict[str, tuple[argparse.Action, ConfigClass, object]] = {}  # with the default
        for title, kind in groups.items():
            group = self.add_argument_group(title, kind.__doc__) if title else self
            hints = typing.get_type_hints(kind, include_extras=True)
            for field in fields(kind):  # one loop without helpers: `drl train` has 110 fields
                name = field.name
                if name in self.added:
                    continue
                shape = shape_of(hints[name])
                required = field.default is field.default_factory  # both are MISSING
                entries = "+" if required and shape.positional else "*"
                options: PlainDict = {"metavar": METAVARS.get(shape.kinds[0], "VALUE"), "type": shape.value}
                flag, other = f"--{name.replace('_', separator)}", f"--no{separator}{name.replace('_', separator)}"
                flags = [flag, OTHER_NAMES[name]] if name in OTHER_NAMES else [flag]
                if shape.positional:
                    nargs = entries if shape.entries else None if required else "?"
                    action = group.add_argument(name, **options | {"nargs": nargs, "metavar": name.upper()})
                elif shape.kinds == (bool,) and name.startswith("no_"):
                    action = group.add_argument(flag, action="store_true")
                elif shape.kinds == (bool,):
                    action = group.add_argument(flag, other, action=Switch, nargs=0, on=True, off=False)
                elif bool in shape.kinds or name in ON_AND_OFF:
                    on, off = ON_AND_OFF.get(name, (True, False))
                    action = group.add_argument(
                        flag, other, action=Switch, nargs="?", const=ALONE, on=on, off=off, **options
                    )
                elif shape.entries:
                    how = "extend" if name in EXTENDED else "store"
                    action = group.add_argument(*flags, action=how, nargs="+" if how == "extend" else "*", **options)
                else:
                    action = group.add_argument(*flags, required=required, **options)
                default = field.default if field.default_factory is MISSING else field.default_factory()
                self.added[name] = action, kind, default
                if name in ONE_ENTRY:
                    group.add_argument(f"--{ONE_ENTRY[name]}", action="append", metavar=WRAPPER, help=argparse.SUPPRESS)

    def parse(self, words: Iterable[str], known_only: bool = False) -> PlainDict:
        """Return the values of what is typed, by name. `known_only`: leave out other flags, and --help."""
        left_out = ("-h", "--help") if known_only else ()
        typed, others = self.parse_known_args([self._spelled(word) for word in words if word not in left_out])
        if others and not known_only:
            self._refuse(*others[:2])
        values = vars(typed)
        for name, one in ONE_ENTRY.items():
            values |= {name: values.pop(one)} if one in values else {}
        lists = {
            name: None if value == [None] else tuple(value) for name, value in values.items() if type(value) is list
        }
        return values | lists

    def _spelled(self, word: str) -> str:
        """Return a flag with our separator: dashes and underscores are the same."""
        if not word.startswith("--"):
            return word
        flag, equals, value = word.partition("=")
        return f"--{flag[2:].replace('-', self.separator).replace('_', self.separator)}{equals}{value}"

    def _refuse(self, word: str, following: str = "") -> NoReturn:
        flag, equals, value = word.partition("=")
        if not flag.startswith("--"):
            self.error(f"unexpected argument {shown(word)}")
        name = flag[2:].replace("-", "_")
        known = self.explain and self.explain(name, value if equals else "" if following[:2] == "--" else following)
        self.error(known or f"unknown flag {shown(flag)}; {did_you_mean(flag, self.flags)}")

    @property
    def flags(self) -> list[str]:
        """Every flag with two dashes."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Raise with the message in our words."""
        if of_flag := re.fullmatch(r"argument ([^:/]+)[^:]*: (.*)", message, re.DOTALL):
            flag, problem = of_flag.groups()
            if problem.startswith("expected"):
                action = self._option_string_actions[flag]
                problem = f"needs a value: {action.metavar}"
            message = f"{flag} {problem.replace('ignored explicit argument', 'takes no value, but is given')}"
        raise BadInput(f"{message}; see `{self.prog} --help`")

    def format_help(self) -> str:
        """Return the page of `--help`, with the comments of the fields."""
        words = [action.metavar for action, _, _ in self.added.values() if not action.option_strings]
        self.usage: str | None = " ".join([self.prog, "[OPTIONS]", *map(str, words)])
        for name, (action, kind, own) in self.added.items():
            default = self.defaults.get(name, own)
            shown_default = " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
            end = "(required)" if default is MISSING else f"(default: {shown_default})"
            text = f"{comments_of(kind).get(name, '')} {'' if default == () else end}"
            action.help = text.strip().replace("%", "%%") or " "
        return super().format_help()


_COMMENTS: dict[ConfigClass, dict[str, str]] = {}


def comments_of(kind: ConfigClass) -> dict[str, str]:
    """Return the comments beside or above the fields of a dataclass, by their names.

    >>> from drl.settings.experiment import RunConfig
    >>> comments_of(RunConfig)["seed"]
    'seed of all random streams'
    """
    if kind in _COMMENTS:
        return _COMMENTS[kind]
    comments = _COMMENTS[kind] = dict[str, str]()
    for owner in reversed(inspect.getmro(kind)):
        try:
            lines = inspect.getsource(owner).splitlines() if is_dataclass(owner) else []
        except OSError:  # a class of an interactive session
            lines = []
        above: list[str] = []
        for line in lines:
            if field := re.match(r"    (\w+): (?:.*?  # (.*))?", line):
                comments[field[1]] = field[2] or " ".join(above)
            above = [*above, line.removeprefix("    # ")] if line.startswith("    # ") else []
    return comments


def parse_flags(kind: type[DataclassT], words: Iterable[str], prog: str, description: str = "") -> DataclassT:
    """Make `kind` from the command line."""
    return kind(**Parser(prog, description or kind.__doc__ or "", {"": kind}).parse(words))
