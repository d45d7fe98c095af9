"""What a driver on this machine inherits of the environment of the process that launches it.

A list of what is kept: a worker's environment holds secrets under any name. What else a script needs, its deployment
names by its environment; what the driver needs to reach its home, the controller hands over.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*", "TERM"),
    *("JAVA_HOME", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "LD_LIBRARY_PATH"),
    *("SPARK_*", "PYSPARK_*", "HADOOP_*", "YARN_CONF_DIR", "HIVE_CONF_DIR", "KRB5_CONFIG"),
    # Where Python finds what the script imports.
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "XDG_CACHE_HOME"),
    *("MALLOC_ARENA_MAX", "OMP_NUM_THREADS"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
)
"""Names, and patterns of names."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a driver on this machine inherits."""
    return {name: value for name, value in environ.items() if any(fnmatch.fnmatchcase(name, one) for one in KEPT)}
