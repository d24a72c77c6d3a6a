package gazette_spark.testing

import java.net.URI
import java.util.concurrent.atomic.AtomicInteger

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{ChecksumFs, DelegateToFileSystem, Path, RawLocalFileSystem}

/** The local file system, on which the process group dies at one exact rename.
  *
  * Spark (query checkpoint) and Delta (log) make a file visible by renaming it, both through Hadoop's
  * FileContext, so `fs.AbstractFileSystem.file.impl` puts this class under every step of a batch. The
  * system property gazette_spark.fail_at_rename holds `before` or `after`, a number n, and a regular
  * expression, separated by spaces: SIGKILL comes at the n-th rename, from when the property was set, whose
  * target's path ends with a match. A file's checksum is a file of its own, renamed after it.
  */
class FailAtRename(uri: URI, conf: Configuration) extends ChecksumFs(new FailAtRenameRaw(uri, conf))

class FailAtRenameRaw(uri: URI, conf: Configuration)
    extends DelegateToFileSystem(uri, new RawLocalFileSystem, conf, "file", false) {
  import FailAtRename._

  override def getUriDefaultPort: Int = -1

  override def isValidName(src: String): Boolean = true // As Hadoop's own local file system.

  // The other form of rename, with `overwrite`, ends here too.
  override def renameInternal(src: Path, dst: Path): Unit = around(dst)(super.renameInternal(src, dst))
}

object FailAtRename {
  private val hits = new AtomicInteger(0)

  def around(target: Path)(rename: => Unit): Unit = {
    val order = Option(System.getProperty("gazette_spark.fail_at_rename")).map(_.split(" ", 3))
    val hit = order.exists(o => (".*" + o(2)).r.matches(target.toUri.getPath)) &&
      hits.incrementAndGet() == order.get(1).toInt
    if (hit && order.get(0) == "before") die()
    rename
    if (hit && order.get(0) == "after") die()
  }

  /** SIGKILL the process group; this thread does not go on while the signal is on its way. */
  private def die(): Unit = {
    val group = sys.env("GAZETTE_SPARK_FAILPOINT_GROUP")
    new ProcessBuilder("sh", "-c", s"kill -KILL -$group").start()
    while (true) Thread.sleep(1000)
  }
}
