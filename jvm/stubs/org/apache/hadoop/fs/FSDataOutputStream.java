package org.apache.hadoop.fs;

import java.io.DataOutputStream;
import java.io.IOException;

public abstract class FSDataOutputStream extends DataOutputStream {
    protected FSDataOutputStream() {
        super(null);
    }

    @Override
    public abstract void close() throws IOException;

    public abstract Abortable.AbortableResult abort();
}
