"""The recorded options of sources and sinks: those that decide what is read and written.

Other options are not recorded, so no credential is, whatever its name. Names in lower case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

SOURCE_OPTIONS = frozenset(
    {
        # files
        "pathglobfilter", "recursivefilelookup", "latestfirst", "filenameonly", "modifiedbefore", "modifiedafter",
        "cleansource", "maxfileage", "basepath", "mergeschema", "multiline", "wholetext", "linesep", "header", "sep",
        "delimiter", "quote", "escape", "comment", "nullvalue", "emptyvalue", "mode", "columnnameofcorruptrecord",
        "dateformat", "timestampformat", "timestampntzformat", "timezone", "locale", "encoding", "charset", "rowtag",
        "primitivesasstring", "prefersdecimal", "dropfieldifallnull", "ignoreleadingwhitespace",
        "ignoretrailingwhitespace", "enforceschema",
        # Kafka
        "kafka.bootstrap.servers", "subscribe", "subscribepattern", "assign", "startingoffsets",
        "startingoffsetsbytimestamp", "startingtimestamp", "failondataloss", "includeheaders",
        "kafka.isolation.level",
        # tables
        "ignorechanges", "ignoredeletes", "skipchangecommits", "readchangefeed", "startingversion",
        "stream-from-timestamp", "streaming-skip-delete-snapshots", "streaming-skip-overwrite-snapshots", "branch",
        # rate and socket
        "rowspersecond", "rampuptime", "rowsperbatch", "advancemillisperbatch", "starttimestamp", "host", "port",
        "includetimestamp",
    }
)  # fmt: skip
"""Of sources: what is read, and how."""

PACE_OPTIONS = frozenset(
    {"maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"}
    | {"minpartitions", "maxrecordsperpartition", "numpartitions"}
)
"""Of sources: how much is read in one batch, and in how many parts. They change no result."""

SINK_OPTIONS = frozenset(
    {
        "topic", "kafka.bootstrap.servers", "includeheaders", "compression", "header", "sep", "delimiter", "linesep",
        "nullvalue", "dateformat", "timestampformat", "timezone", "encoding", "ignorenullfields", "mergeschema",
        "overwriteschema", "replacewhere", "partitionoverwritemode", "txnappid", "txnversion", "fanout-enabled",
        "branch", "retention",
    }
)  # fmt: skip
"""Of sinks."""


def kept_options(options: Mapping[str, str], kept: frozenset[str], hide: Callable[[str], str]) -> dict[str, str]:
    """The options named in ``kept``, sorted, their values passed through ``hide``, which removes secrets."""
    return {name.lower(): hide(value) for name, value in sorted(options.items()) if name.lower() in kept}
