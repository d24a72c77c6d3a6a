package io.delta.storage;

import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

public abstract class HadoopFileSystemLogStore {
    public HadoopFileSystemLogStore(Configuration conf) {}

    public abstract void write(Path path, Iterator<String> lines, Boolean overwrite, Configuration conf)
            throws IOException;

    public abstract Boolean isPartialWriteVisible(Path path, Configuration conf) throws IOException;
}
