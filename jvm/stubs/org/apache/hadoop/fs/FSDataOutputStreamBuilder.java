package org.apache.hadoop.fs;

import java.io.IOException;
import org.apache.hadoop.fs.impl.AbstractFSBuilderImpl;

public abstract class FSDataOutputStreamBuilder<
                S extends FSDataOutputStream, B extends FSDataOutputStreamBuilder<S, B>>
        extends AbstractFSBuilderImpl<S, B> {
    public abstract B recursive();

    public abstract S build() throws IllegalArgumentException, IOException;
}
