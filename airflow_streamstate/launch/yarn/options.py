"""The options of the YARN launcher."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.options import read_options
from airflow_streamstate.launch.yarn.resource_manager import SITE, addresses_in, need_addresses, read_site

if TYPE_CHECKING:
    from typing_extensions import Self

TAGS = "spark.yarn.tags"
MUST = ("spark.yarn.maxAppAttempts", "spark.yarn.submit.waitAppCompletion")
"""Settings that the launcher's promises stand on: restarts are ours, and a launch returns."""
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_PREFIX = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True, kw_only=True)
class YarnOptions:
    """Where drivers run, and as what; none of it is secret.

    Attributes:
        hadoop_conf_dir: the folder with the cluster's yarn-site.xml and core-site.xml; by default HADOOP_CONF_DIR or
            YARN_CONF_DIR of the caller.
        resource_manager: addresses of the ResourceManagers' web interfaces, separated by commas; by default those of
            yarn-site.xml.
        queue: of the applications; "" for Spark's default.
        user: the name on a cluster without Kerberos; "" for the caller's.
        keytab, principal: for a cluster with Kerberos: the path of a keytab on every machine that launches, and its
            name.
        python: the Python on the nodes; "" for the cluster's choice.
        python_env: an archive (conda-pack, venv-pack) of the Python environment: a URI, or the path of a file here.
        spark_yarn_jars: where the nodes have Spark's jars (spark.yarn.jars), which are uploaded otherwise.
        staging_dir: where files of applications are put (spark.yarn.stagingDir); "" for the user's home on the
            cluster's file system.
        tag_prefix: what the tag of an application begins with.
    """

    hadoop_conf_dir: str = ""
    resource_manager: str = ""
    queue: str = ""
    user: str = ""
    keytab: str = ""
    principal: str = ""
    python: str = ""
    python_env: str = ""
    spark_yarn_jars: str = ""
    staging_dir: str = ""
    tag_prefix: str = "streamstate"

    @classmethod
    def from_options(cls, raw: Mapping[str, object], environ: Mapping[str, str]) -> Self:
        """The options, with what the environment says where they say nothing.

        Raises:
            InvalidRequestError: one has no such name, or an impossible value.
        """
        values = read_options("yarn", raw, [one.name for one in fields(cls)])
        if isinstance(values.get("resource_manager"), list | tuple):
            values["resource_manager"] = ",".join(str(one) for one in values["resource_manager"])  # type: ignore[attr-defined]
        for name, value in values.items():
            if not isinstance(value, str) or value != value.strip() or "\n" in value:
                raise InvalidRequestError(
                    "this option of the launcher yarn is a text in one line",
                    option=name,
                    next_step=f"Give it as {name}=TEXT, without blanks around it.",
                )
        given = {name: str(value) for name, value in values.items()}
        given["hadoop_conf_dir"] = (
            given.get("hadoop_conf_dir") or environ.get("HADOOP_CONF_DIR") or environ.get("YARN_CONF_DIR") or ""
        )
        options = cls(**given)
        options._check()
        return options

    def need_conf_dir(self) -> None:
        """Refuse a launch without the cluster's configuration, which spark-submit reads.

        Raises:
            InvalidRequestError: there is none.
        """
        if not (self.hadoop_conf_dir and (Path(self.hadoop_conf_dir) / SITE).is_file()):
            raise InvalidRequestError(
                "spark-submit needs the configuration of the YARN cluster on this machine, and there is none",
                hadoop_conf_dir=self.hadoop_conf_dir or "not set",
                next_step=f"Set HADOOP_CONF_DIR to the folder with the cluster's {SITE} and core-site.xml, or give it"
                " as --launcher-option hadoop_conf_dir=FOLDER.",
            )

    def need_files(self, placed_later: str = "") -> None:
        """Refuse a launch from a machine that lacks a file which an option names; other calls need none.

        Args:
            placed_later: the folder whose files need not exist yet; "" for none.

        Raises:
            InvalidRequestError: one is not there.
        """
        for name, path in self._local_files():
            is_later = bool(placed_later) and path.startswith(f"{placed_later}/")
            if not is_later and not Path(path).is_file():
                raise InvalidRequestError(
                    "a file that an option of the launcher yarn names is not there",
                    option=name,
                    path=path,
                    next_step="Correct the path; a keytab must be there on every machine that launches this stream.",
                )

    def addresses(self) -> tuple[str, ...]:
        """URLs of the ResourceManagers.

        Raises:
            InvalidRequestError: none is known.
        """
        if self.resource_manager:
            return need_addresses([one.strip() for one in self.resource_manager.split(",") if one.strip()])
        self.need_conf_dir()
        found = addresses_in(read_site(Path(self.hadoop_conf_dir)))
        if not found:
            raise InvalidRequestError(
                f"the cluster's {SITE} does not say where the ResourceManager is",
                hadoop_conf_dir=self.hadoop_conf_dir,
                next_step="Give it as --launcher-option resource_manager=http://HOST:8088.",
            )
        return found

    def conf(self, tag: str, name: str) -> dict[str, str]:
        """Spark's configuration of an application with this tag and name."""
        python = self.python or ("env/bin/python" if self.python_env else "")
        values = {
            TAGS: tag,
            "spark.app.name": name,
            "spark.yarn.maxAppAttempts": "1",
            "spark.yarn.submit.waitAppCompletion": "false",
            # A driver that waits for its turn has no session yet; YARN itself gives it ten minutes.
            "spark.yarn.am.waitTime": "600s",
            "spark.yarn.queue": self.queue,
            "spark.kerberos.keytab": self.keytab,
            "spark.kerberos.principal": self.principal,
            "spark.yarn.jars": self.spark_yarn_jars,
            "spark.yarn.stagingDir": self.staging_dir,
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": python,
            "spark.executorEnv.PYSPARK_PYTHON": python,
        }
        return {key: value for key, value in values.items() if value}

    def _local_files(self) -> list[tuple[str, str]]:
        """The options that name a file of this machine, and its path."""
        named = ((name, str(getattr(self, name))) for name in ("python_env", "keytab"))
        return [(name, path) for name, path in named if path and not _SCHEME.match(path)]

    def _check(self) -> None:
        if bool(self.keytab) != bool(self.principal):
            raise InvalidRequestError(
                "a keytab needs its principal, and a principal its keytab",
                next_step="Give both as options, or neither.",
            )
        if not _PREFIX.fullmatch(self.tag_prefix):
            raise InvalidRequestError(
                "this prefix of tags is impossible",
                tag_prefix=self.tag_prefix,
                next_step="Use lower-case letters, digits and dashes, 31 at most.",
            )
        if ("keytab", self.keytab) in self._local_files() and not Path(self.keytab).is_absolute():
            raise InvalidRequestError(
                "the path of this option must be absolute: later drivers are launched from other folders",
                option="keytab",
                path=self.keytab,
                next_step="Give the whole path, or a URI that every machine reads.",
            )
        if self.resource_manager:
            self.addresses()
