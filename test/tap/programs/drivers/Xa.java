/*
 * Xa.java
 *		An application with two databases and the transaction manager Bitronix,
 *		which commits in both or in neither, by PREPARE TRANSACTION.
 *
 * Reads lines "order commit" or "rollback", with the name of an order, and prints
 * them again when the transaction has ended.  If CRASH is set, the program dies
 * in the first commit:
 *   preparing		when one database has prepared its part
 *   prepared		when both have, and the manager has not noted it
 *   committing		when the manager has noted it, and no database has committed
 *   committed		when one database has
 * At its start the manager ends what it finds prepared.
 *
 * Environment: PGPORT, PGUSER; LOG_DIR, where the manager notes its decisions.
 */

import bitronix.tm.BitronixTransactionManager;
import bitronix.tm.Configuration;
import bitronix.tm.TransactionManagerServices;
import bitronix.tm.resource.jdbc.PoolingDataSource;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import javax.sql.XAConnection;
import javax.transaction.xa.XAResource;
import org.postgresql.xa.PGXADataSource;

public class Xa {
    private static final String CRASH = System.getenv().getOrDefault("CRASH", "");

    // A data source whose branches of transactions may crash the program.
    public static class Source extends PGXADataSource {
        private static int prepares = 0;
        private static int commits = 0;

        private static void dieIf(boolean dies) {
            if (dies)
                Runtime.getRuntime().halt(1);
        }

        private static <T> T watched(Class<T> type, Object target, InvocationHandler after) {
            InvocationHandler handler = (proxy, method, arguments) -> {
                if (method.getName().equals("commit"))
                    dieIf(CRASH.equals("committing"));
                try {
                    Object result = method.invoke(target, arguments);
                    Object instead = after.invoke(result, method, arguments);
                    return instead != null ? instead : result;
                } catch (InvocationTargetException e) {
                    throw e.getCause();
                }
            };
            return type.cast(Proxy.newProxyInstance(Xa.class.getClassLoader(), new Class<?>[] {type}, handler));
        }

        private static Object afterBranch(Object result, java.lang.reflect.Method method, Object[] arguments) {
            if (method.getName().equals("prepare"))
                dieIf(CRASH.equals(++prepares == 1 ? "preparing" : "prepared"));
            if (method.getName().equals("commit"))
                dieIf(CRASH.equals("committed") && ++commits == 1);
            return null;
        }

        @Override
        public XAConnection getXAConnection(String user, String password) throws SQLException {
            return watched(XAConnection.class, super.getXAConnection(user, password), (result, method, arguments) ->
                method.getName().equals("getXAResource") ?
                    watched(XAResource.class, result, Source::afterBranch) : null);
        }
    }

    private static PoolingDataSource source(String database) {
        PoolingDataSource source = new PoolingDataSource();
        source.setClassName(Source.class.getName());
        source.setUniqueName(database);
        source.setMaxPoolSize(2);
        source.getDriverProperties().setProperty("url", String.format("jdbc:postgresql://127.0.0.1:%s/%s",
            System.getenv("PGPORT"), database));
        source.getDriverProperties().setProperty("user", System.getenv("PGUSER"));
        source.init();
        return source;
    }

    private static void query(PoolingDataSource source, String sql, String... values) throws SQLException {
        try (Connection db = source.getConnection(); PreparedStatement query = db.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++)
                query.setString(i + 1, values[i]);
            query.executeQuery();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = TransactionManagerServices.getConfiguration();
        configuration.setServerId("xa");
        configuration.setLogPart1Filename(System.getenv("LOG_DIR") + "/1.tlog");
        configuration.setLogPart2Filename(System.getenv("LOG_DIR") + "/2.tlog");
        PoolingDataSource orders = source("orders");
        PoolingDataSource depot = source("depot");
        BitronixTransactionManager manager = TransactionManagerServices.getTransactionManager();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");

        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String name = line.split(" ")[0];
            manager.begin();
            query(orders, "SELECT idem_claim(?, 'orders')", name);
            query(orders, "SELECT stock_reserve('hat', 1, ?)", name);
            query(orders, "SELECT outbox_enqueue('ordered', to_jsonb(?))", name);
            query(depot, "SELECT stock_reserve('box', 1, ?)", name);
            query(depot, "SELECT outbox_enqueue('packed', to_jsonb(?))", name);
            if (line.endsWith(" commit"))
                manager.commit();
            else
                manager.rollback();
            System.out.println(line);
        }
        orders.close();
        depot.close();
        manager.shutdown();
    }
}
