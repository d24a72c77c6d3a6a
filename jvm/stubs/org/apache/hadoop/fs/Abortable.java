package org.apache.hadoop.fs;

public interface Abortable {
    interface AbortableResult {}
}
