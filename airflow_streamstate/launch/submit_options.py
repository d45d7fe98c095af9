"""Options that reach ``spark-submit`` from more than one side, joined.

``spark-submit`` lets a later ``--py-files`` replace an earlier one, and either replace ``spark.submit.pyFiles``; a
``--conf`` on the command line, which every user can read, wins over any file. So these options of a given command
prefix or of the configuration are taken out there and joined here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass

_LISTS = {"--py-files": "py_files", "--files": "files", "--packages": "packages", "--jars": "jars"}
_CONF_LISTS = {
    "spark.submit.pyFiles": "py_files",
    "spark.files": "files",
    "spark.jars.packages": "packages",
    "spark.jars": "jars",
}
_SWITCHES = frozenset({"--verbose", "-v", "--supervise", "--load-spark-defaults", "--usage-error", "--version"})


@dataclass(frozen=True)
class SubmitOptions:
    """What ``spark-submit`` is told beside the application.

    Attributes:
        master: of a given prefix; "" for none.
        has_properties_file: a given prefix names a properties file of its own.
    """

    conf: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    master: str = ""
    has_properties_file: bool = False

    def joined_with(self, later: SubmitOptions) -> SubmitOptions:
        """These and the later ones: lists are concatenated, single values of the later one win."""
        lists = {name: getattr(self, name) + getattr(later, name) for name in _LISTS.values()}
        return SubmitOptions(
            conf={**self.conf, **later.conf},
            master=later.master or self.master,
            has_properties_file=self.has_properties_file or later.has_properties_file,
            **lists,
        )


def absorb_conf(options: SubmitOptions) -> SubmitOptions:
    """The options with the lists of the configuration moved into the fields."""
    conf = dict(options.conf)
    for key, name in _CONF_LISTS.items():
        listed = _split(conf.pop(key, ""))
        options = replace(options, **{name: listed + getattr(options, name)})
    return replace(options, conf=conf)


def read_prefix(arguments: Sequence[str]) -> tuple[tuple[str, ...], SubmitOptions]:
    """The options of a command prefix: those that stay in place, and those to be joined.

    Raises:
        InvalidRequestError: it asks for cluster mode, or a ``--conf`` is no ``KEY=VALUE``.
    """
    rest: list[str] = []
    found = SubmitOptions()
    for name, value, words in _pairs(arguments):
        if name in _LISTS:
            found = found.joined_with(SubmitOptions(**{_LISTS[name]: _split(value)}))  # type: ignore[arg-type]
        elif name in ("--conf", "-c"):
            found = found.joined_with(SubmitOptions(conf=_key_value(value)))
        elif name == "--deploy-mode":
            found = found.joined_with(SubmitOptions(conf={"spark.submit.deployMode": value}))
        else:
            rest.extend(words)
            found = replace(
                found,
                master=value if name == "--master" else found.master,
                has_properties_file=found.has_properties_file or name == "--properties-file",
            )
    return tuple(rest), found


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Option, value ("" for a switch) and the original words, for ``--x y``, ``--x=y`` and ``--switch``."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        name, equals, value = word.partition("=")
        if equals and word.startswith("--"):
            yield name, value, (word,)
            at += 1
        elif not word.startswith("-") or word in _SWITCHES or at + 1 == len(arguments):
            yield word, "", (word,)
            at += 1
        else:
            yield word, arguments[at + 1], (word, arguments[at + 1])
            at += 2


def _key_value(text: str) -> dict[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(
            "a --conf of the command that starts Spark is no KEY=VALUE", key=key, next_step="Correct the command."
        )
    return {key: value}


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
