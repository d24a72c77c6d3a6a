package gazette_spark.testing

import java.net.URI
import java.util.concurrent.atomic.AtomicInteger

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{ChecksumFs, DelegateToFileSystem, Path, RawLocalFileSystem}

/** The local file system, on which the process group dies at one exact rename.
  *
  * Spark (query checkpoint) and Delta (log) make a file visible by renaming it, both through Hadoop's
  * FileContext, so `fs.AbstractFileSystem.file.impl` puts this class under every step of a batch. The
  * variable GAZETTE_SPARK_KILL_AT_RENAME holds `before` or `after`, a number n, and a regular expression,
  * separated by spaces: SIGKILL comes at the n-th rename whose target's path ends with a match. A file's
  * checksum is a file of its own, renamed after it.
  */
class KillAtRename(uri: URI, conf: Configuration) extends ChecksumFs(new KillAtRenameRaw(uri, conf))

class KillAtRenameRaw(uri: URI, conf: Configuration)
    extends DelegateToFileSystem(uri, new RawLocalFileSystem, conf, "file", false) {
  import KillAtRename._

  override def getUriDefaultPort: Int = -1

  override def isValidName(src: String): Boolean = true // As Hadoop's own local file system.

  // The other form of rename, with `overwrite`, ends here too.
  override def renameInternal(src: Path, dst: Path): Unit = around(dst)(super.renameInternal(src, dst))
}

object KillAtRename {
  private val armed = sys.env.get("GAZETTE_SPARK_KILL_AT_RENAME").map(_.split(" ", 3))
  private val left = new AtomicInteger(armed.fold(0)(_(1).toInt))

  def around(target: Path)(rename: => Unit): Unit = {
    val hit = armed.exists(a => (".*" + a(2)).r.matches(target.toUri.getPath)) && left.decrementAndGet() == 0
    if (hit && armed.get(0) == "before") die()
    rename
    if (hit && armed.get(0) == "after") die()
  }

  /** SIGKILL the process group; this thread does not go on while the signal is on its way. */
  private def die(): Unit = {
    val group = sys.env("GAZETTE_SPARK_FAILPOINT_GROUP")
    new ProcessBuilder("sh", "-c", s"kill -KILL -$group").start()
    while (true) Thread.sleep(1000)
  }
}
