package org.apache.hadoop.conf;

public abstract class Configuration {
    public abstract boolean getBoolean(String name, boolean defaultValue);
}
