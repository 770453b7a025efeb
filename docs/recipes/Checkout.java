// Checkout.java
//
// Takes an order once for each key, with JDBC: lines has the quantities as JSON,
// such as {"cup": 2, "plate": 1}. The steps are explained in docs/drivers.md,
// "The examples".

import java.sql.*;

class Checkout {
    static String checkout(Connection db, String key, String lines) throws SQLException {
        db.setAutoCommit(true);
        Object[] claim = row(db, "SELECT outcome, token, response FROM idem_claim(?, ?, ?::interval, ?)",
                             key, "checkout", "40 s", lines);
        if (claim[0].equals("completed")) return claim[2].toString();
        if (!claim[0].equals("claimed")) throw new IllegalStateException(claim[0].toString());

        db.setAutoCommit(false);
        try {
            Object outcome = row(db, "SELECT outcome FROM stock_reserve_many(?::jsonb, ?)", lines, key)[0];
            if (outcome.equals("reserved")) row(db, "SELECT outbox_enqueue(?, ?::jsonb, ?)", "order.placed", lines, key);
            String answer = "{\"outcome\": \"" + outcome + "\"}";
            row(db, "SELECT idem_complete(?, ?, ?::jsonb, ?)", key, claim[1], answer, "checkout");
            db.commit();
            return answer;
        } catch (SQLException e) {
            db.rollback();
            throw e;
        }
    }

    static Object[] row(Connection db, String sql, Object... values) throws SQLException {
        try (PreparedStatement query = db.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) query.setObject(i + 1, values[i]);
            ResultSet result = query.executeQuery();
            result.next();
            Object[] columns = new Object[result.getMetaData().getColumnCount()];
            for (int i = 0; i < columns.length; i++) columns[i] = result.getObject(i + 1);
            return columns;
        }
    }
}
