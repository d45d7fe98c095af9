"""Settings that a script makes in its own code: what they overrule of the deployment's, and what comes too late.

As with ``spark-submit``, a script's builder and ``spark.conf.set`` win over the command line, but for what Spark reads
only when it starts its JVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_streamstate.protocol.redaction import HIDDEN, is_secret_name
from airflow_streamstate.protocol.references import is_reference

MASTER = "spark.master"
_OF_THE_LAUNCH = {
    "spark.driver.memory": "--conf",
    "spark.driver.memoryOverhead": "--conf",
    "spark.driver.extraClassPath": "--conf",
    "spark.driver.extraLibraryPath": "--conf",
    "spark.jars.packages": "--packages",
    "spark.jars.repositories": "--conf",
    "spark.jars.excludes": "--conf",
    "spark.jars.ivySettings": "--conf",
}
"""What Spark reads only at its launch, and the option of the verbs that gives it."""
# Spark puts options of its own before what is asked for.
_SUPPLEMENTED = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def notes_on_own_settings(
    master: str, conf: Mapping[str, str], in_force: Mapping[str, str], at_launch: Mapping[str, str]
) -> Iterator[str]:
    """Sentences for people on the settings that a script made itself.

    Args:
        master: of the deployment; "" for that of a connection.
        conf: of the deployment; references to secrets are not compared.
        in_force: what holds in the script's session.
        at_launch: the same keys, as the JVM was launched with; without those that it was not launched with.
    """
    own = in_force.get(MASTER, "")
    given = master or at_launch.get(MASTER, "")
    if own and given and own != given:
        where = "" if own.startswith("local") else "; give that as --master, so that executors get the script's modules"
        yield f"the script sets its own master {own}, which wins over {given} of the deployment{where}"
    for key in sorted({*conf, *_OF_THE_LAUNCH} & set(in_force)):
        value = in_force[key]
        if key in _OF_THE_LAUNCH:
            if value != at_launch.get(key, ""):
                yield (
                    f"the script sets {key}={_shown(key, value)} when the JVM runs already, where Spark does not read"
                    f" it any more; give it by {_OF_THE_LAUNCH[key]}"
                )
        elif value != conf[key] and key not in _SUPPLEMENTED and not is_reference(conf[key]):
            yield (
                f"the script sets {key}={_shown(key, value)}, which wins over {_shown(key, conf[key])} of the"
                " deployment"
            )


def _shown(key: str, value: str) -> str:
    return HIDDEN if is_secret_name(key) else value


def launch_keys(conf: Mapping[str, str]) -> tuple[str, ...]:
    """The keys whose values at the launch have to be known."""
    return tuple(sorted({MASTER, *conf, *_OF_THE_LAUNCH}))
