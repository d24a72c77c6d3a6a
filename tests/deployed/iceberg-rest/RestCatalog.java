import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Serves the REST catalog of Iceberg's own tests, whose program listens on all addresses, on this machine only.
 *
 * <p>java -cp JARS RestCatalog.java PORT DATABASE WAREHOUSE
 */
public class RestCatalog {
    public static void main(String[] arguments) throws Exception {
        var backend = CatalogUtil.buildIcebergCatalog(
            "backend",
            Map.of(
                "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri", "jdbc:sqlite:" + arguments[1],
                "warehouse", arguments[2],
                // SQLite has one writer. A second connection would be told that the database is locked.
                "clients", "1"),
            new Configuration());
        var context = new ServletContextHandler();
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(backend))), "/*");
        var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
        server.setHandler(context);
        server.start();
        server.join();
    }
}
