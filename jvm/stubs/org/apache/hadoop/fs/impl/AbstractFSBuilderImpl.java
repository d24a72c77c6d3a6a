package org.apache.hadoop.fs.impl;

import org.apache.hadoop.fs.FSBuilder;

public abstract class AbstractFSBuilderImpl<S, B extends FSBuilder<S, B>> implements FSBuilder<S, B> {
    public abstract B must(String key, boolean value);
}
