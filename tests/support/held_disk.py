"""A local disk that can be held at one act of Spark, to look at a moment of microseconds.

Hadoop's own file system for ``file:`` with two methods more, compiled by the Janino that Spark brings along. It waits
while the gate file is there: ``rename PART`` between Hadoop's look at the target and the rename itself, ``list PART``
before a folder is read by the thread that executes a query. What the agent in a driver does to the disk waits in the
same way, by Python's audit events. ``<gate>.reached`` appears when something waits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

GATE = "held.disk.gate"
CONF = {"fs.AbstractFileSystem.file.impl": "HeldFs"}
JAVA = """
public class HeldDisk extends org.apache.hadoop.fs.RawLocalFileSystem {
  public boolean rename(org.apache.hadoop.fs.Path from, org.apache.hadoop.fs.Path to) throws java.io.IOException {
    pass("rename", to);
    return super.rename(from, to);
  }
  public org.apache.hadoop.fs.FileStatus[] listStatus(org.apache.hadoop.fs.Path folder) throws java.io.IOException {
    if (Thread.currentThread().getName().startsWith("stream execution thread")) pass("list", folder);
    return super.listStatus(folder);
  }
  private void pass(String act, org.apache.hadoop.fs.Path path) throws java.io.IOException {
    java.io.File gate = new java.io.File(getConf().get("held.disk.gate", "/nonexistent"));
    if (!gate.exists()) return;
    String[] wanted = new String(java.nio.file.Files.readAllBytes(gate.toPath())).split(" ");
    if (wanted.length != 2 || !wanted[0].equals(act) || !path.toUri().getPath().endsWith(wanted[1])) return;
    new java.io.File(gate.getPath() + ".reached").createNewFile();
    try {
      while (gate.exists()) Thread.sleep(10L);
    } catch (InterruptedException e) {
      throw new java.io.InterruptedIOException();
    }
  }
}
public class HeldRawFs extends org.apache.hadoop.fs.DelegateToFileSystem {
  public HeldRawFs(java.net.URI uri, org.apache.hadoop.conf.Configuration conf)
      throws java.io.IOException, java.net.URISyntaxException {
    super(java.net.URI.create("file:///"), new HeldDisk(), conf, "file", false);
  }
  public int getUriDefaultPort() { return -1; }
}
public class HeldFs extends org.apache.hadoop.fs.ChecksumFs {
  public HeldFs(java.net.URI uri, org.apache.hadoop.conf.Configuration conf)
      throws java.io.IOException, java.net.URISyntaxException {
    super(new HeldRawFs(uri, conf));
  }
}
"""


HELD_DRIVER = (
    f"HELD_JAVA = {JAVA!r}\n"
    + """
import os, sys, time

def pass_gate(event, arguments):
    act = {"os.link": "link", "os.rename": "rename"}.get(event)
    if act is None:
        return
    try:
        with open(base + "/agent-gate") as gate:
            wanted = gate.read().split(" ")
    except OSError:
        return
    if wanted[0] == act and str(arguments[1]).endswith(wanted[1]):
        open(base + "/agent-gate.reached", "w").close()
        while os.path.exists(base + "/agent-gate"):
            time.sleep(0.02)

sys.addaudithook(pass_gate)
compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
compiler.setParentClassLoader(spark._jsc.hadoopConfiguration().getClassLoader())
compiler.cook(HELD_JAVA)
spark._jsc.hadoopConfiguration().setClassLoader(compiler.getClassLoader())
spark.conf.set("fs.AbstractFileSystem.file.impl", "HeldFs")
spark.conf.set("held.disk.gate", base + "/gate")
"""
)
"""What a script that has its ``base`` and ``spark`` does to be held: Spark by ``gate``, the agent by ``agent-gate``."""


class Gate:
    """The gate of a disk.

    Args:
        path: of the file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reached = path.with_name(f"{path.name}.reached")

    def hold(self, act: str, suffix: str) -> None:
        """Hold the next caller of this: ``rename`` or ``link`` to a path, or ``list`` of a folder, with this end."""
        self._reached.unlink(missing_ok=True)
        hidden = self.path.with_name(f".{self.path.name}")
        hidden.write_text(f"{act} {suffix}")
        hidden.rename(self.path)

    @property
    def is_reached(self) -> bool:
        """Whether a caller waits, or has waited."""
        return self._reached.exists()

    def open(self) -> None:
        """Let it continue."""
        self.path.unlink(missing_ok=True)


def hold_disk_of(spark: Any, folder: Path) -> Gate:
    """Give the queries that this session starts from now on a disk that can be held; its gate is in ``folder``."""
    hadoop_conf = spark._jsc.hadoopConfiguration()
    if hadoop_conf.getClassByNameOrNull("HeldFs") is None:
        compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(hadoop_conf.getClassLoader())
        compiler.cook(JAVA)
        hadoop_conf.setClassLoader(compiler.getClassLoader())
    gate = Gate(folder / "gate")
    for key, value in {**CONF, GATE: str(gate.path)}.items():
        spark.conf.set(key, value)
    return gate
