package org.apache.hadoop.fs;

import java.io.DataInputStream;

public abstract class FSDataInputStream extends DataInputStream {
    protected FSDataInputStream() {
        super(null);
    }
}
