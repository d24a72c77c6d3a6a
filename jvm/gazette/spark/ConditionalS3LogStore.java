package gazette.spark;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A log store for Delta tables on {@code s3a://} that any number of drivers may write.
 *
 * <p>Delta takes a version of a table by creating {@code _delta_log/<version>.json}, which must fail if the file
 * exists. Delta's own store for S3 looks for the file first and then puts it, so two drivers can both believe that
 * they took a version, and the commit of one of them is overwritten. This one puts the file on condition that it does
 * not exist ({@code If-None-Match: *}), and S3 itself accepts only one driver.
 *
 * <p>Needs Hadoop 3.4.2 or later, whose S3A supports conditional puts; with an earlier one every commit fails.
 */
public final class ConditionalS3LogStore extends HadoopFileSystemLogStore {
    private static final String CONDITION = "fs.option.create.conditional.overwrite";
    private static final String CONDITIONS_ENABLED = "fs.s3a.create.conditional.enabled";

    /** Delta calls this. */
    public ConditionalS3LogStore(Configuration conf) {
        super(conf);
    }

    /** Creates a file of lines; it is visible as a whole or not at all. */
    @Override
    public void write(Path path, Iterator<String> lines, Boolean overwrite, Configuration conf) throws IOException {
        ByteArrayOutputStream collected = new ByteArrayOutputStream();
        while (lines.hasNext()) {
            collected.write(lines.next().getBytes(StandardCharsets.UTF_8));
            collected.write('\n');
        }
        byte[] content = collected.toByteArray();
        FileSystem store = path.getFileSystem(conf);
        if (overwrite) {
            put(store.create(path, true), content);
            return;
        }
        FSDataOutputStream target = createOnCondition(store, path, conf);
        try {
            put(target, content);
        } catch (IOException error) {
            // The error alone does not reveal whose file is there. If the answer to a put that succeeded was lost, the
            // client has put it again and got the answer that the file exists, which is this writer's own. A
            // commit names its transaction, so no other writer's file has the same bytes.
            byte[] stored = read(store, path);
            if (stored == null) {
                throw error;
            }
            if (!Arrays.equals(stored, content)) {
                FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
                exists.initCause(error);
                throw exists;
            }
        }
    }

    /** A put is atomic. */
    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration conf) {
        return false;
    }

    private static FSDataOutputStream createOnCondition(FileSystem store, Path path, Configuration conf)
            throws IOException {
        if (!conf.getBoolean(CONDITIONS_ENABLED, true)) {
            throw new IOException(
                    CONDITIONS_ENABLED + "=false: without conditional puts no commit to " + path + " is safe. Unset it");
        }
        FSDataOutputStreamBuilder<?, ?> builder = store.createFile(path);
        builder.recursive();
        builder.must(CONDITION, true);
        try {
            return builder.build();
        } catch (IllegalArgumentException error) {
            throw new IOException(
                    "the file system of " + path + " has no conditional puts: use s3a:// of Hadoop 3.4.2 or later",
                    error);
        }
    }

    private static void put(FSDataOutputStream target, byte[] content) throws IOException {
        try {
            target.write(content);
        } catch (IOException | RuntimeException error) {
            target.abort(); // Closing it would put an incomplete file.
            throw error;
        }
        target.close();
    }

    /** Returns the bytes of a file, or null if it does not exist. */
    private static byte[] read(FileSystem store, Path path) throws IOException {
        try (FSDataInputStream source = store.open(path)) {
            return source.readAllBytes();
        } catch (FileNotFoundException missing) {
            return null;
        }
    }
}
