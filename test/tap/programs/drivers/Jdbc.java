/*
 * Jdbc.java
 *		Calls the functions by JDBC as an application does, and prints a line
 *		for each step.  t/drivers.pl has the expected lines, and puts the
 *		example of docs/drivers.md into the class Checkout.
 *
 * Argument: "jdbc", or "unspecified" for a connection with
 * stringtype=unspecified and queries without casts; and maybe a file with SQL, a
 * statement a line, which is executed instead.
 */

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Array;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

class Jdbc {
    private static final String SCOPE = "drivers";
    private static final String ANSWER = "{\"order\": 17, \"note\": \"Grüße, 漢字\"}";
    private static final OffsetDateTime LATER = OffsetDateTime.parse("2040-01-02T03:04:05Z");

    private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final Connection db;
    private final boolean hasCasts;

    private Jdbc(String name) throws SQLException {
        hasCasts = name.equals("jdbc");
        db = DriverManager.getConnection(String.format("jdbc:postgresql://127.0.0.1:%s/%s?user=%s%s",
            System.getenv("PGPORT"), System.getenv("PGDATABASE"), System.getenv("PGUSER"),
            hasCasts ? "" : "&stringtype=unspecified"));
    }

    // All rows, with their columns as text.
    private List<String[]> rows(String sql, Object... values) throws SQLException {
        try (PreparedStatement query = db.prepareStatement(hasCasts ? sql : sql.replaceAll("::\\w+", ""))) {
            for (int i = 0; i < values.length; i++) {
                if (values[i] instanceof String)
                    query.setString(i + 1, (String) values[i]);
                else
                    query.setObject(i + 1, values[i]);
            }
            List<String[]> rows = new ArrayList<>();
            ResultSet result = query.executeQuery();
            while (result.next()) {
                String[] row = new String[result.getMetaData().getColumnCount()];
                for (int i = 0; i < row.length; i++)
                    row[i] = result.getString(i + 1);
                rows.add(row);
            }
            return rows;
        }
    }

    private String[] row(String sql, Object... values) throws SQLException {
        return rows(sql, values).get(0);
    }

    private Array array(String... elements) throws SQLException {
        return db.createArrayOf("text", elements);
    }

    // A field of a JSON object whose values need no escapes.
    private static String field(String json, String name) {
        Matcher field = Pattern.compile("\"" + name + "\": (?:\"([^\"]*)\"|(\\w+))").matcher(json);
        if (!field.find())
            return "no " + name;
        return field.group(1) != null ? field.group(1) : field.group(2);
    }

    private static String fields(String array, Function<String, String> show) {
        return Pattern.compile("\\{[^}]*\\}").matcher(array).results()
            .map(object -> show.apply(object.group())).collect(Collectors.joining(", "));
    }

    private String[] claim(String request) throws SQLException {
        return row("SELECT outcome, token, attempt, response FROM idem_claim(?, ?, ?::interval, ?)",
            "key", SCOPE, "40 s", request);
    }

    private void claims() throws SQLException {
        String[] claim = claim("request");
        out.println("claim: " + claim[0] + " " + claim[2]);
        out.println("claim again: " + claim("request")[0]);
        out.println("claim for another request: " + claim("other")[0]);
        row("SELECT idem_complete(?, ?, ?::jsonb, ?)", "key", Long.valueOf(claim[1]), ANSWER, SCOPE);
        String[] replay = claim("request");
        out.println("replay: " + replay[0] + " " + field(replay[3], "order") + " " + field(replay[3], "note"));

        out.println("claim many: " + rows("SELECT key, outcome FROM idem_claim_many(?, ?)", array("key", "new"), SCOPE)
            .stream().map(row -> row[0] + " " + row[1]).collect(Collectors.joining(", ")));
    }

    private void events() throws SQLException {
        String[] event = row("SELECT outbox_enqueue(?, ?::jsonb, ?, ?, ?::jsonb, ?)",
            "order.placed", ANSWER, "ann", "order", "{\"X-Shop\": \"hats\"}", LATER);
        out.println("enqueue: " + (Long.parseLong(event[0]) > 0));
    }

    private void reservations() throws SQLException {
        out.println("reserve: " + row("SELECT outcome FROM stock_reserve(?, ?, ?, ?::interval, ?)",
            "hat", 2, "one", "2 h", "ann")[0]);
        out.println("reserve by three parameters: " + row("SELECT outcome FROM stock_reserve(?, ?, ?)", "hat", 1L, "two")[0]);
        out.println("reserve many: " + row("SELECT outcome FROM stock_reserve_many(?::jsonb, ?)",
            "{\"hat\": 1, \"scarf\": 2}", "many")[0]);

        String[] tooMany = row("SELECT outcome, shortages FROM stock_reserve_many(?::jsonb, ?)",
            "[{\"sku\": \"hat\", \"quantity\": 100}, {\"sku\": \"scarf\", \"quantity\": 1}]", "too many");
        out.println("shortage: " + tooMany[0] + " " + fields(tooMany[1], line -> String.join(" ",
            field(line, "sku"), field(line, "wanted"), field(line, "available"), field(line, "missing"))));

        out.println("confirm: " + row("SELECT outcome FROM stock_confirm(?, ?)", "many", array("hat"))[0]);
        String[] status = row("SELECT state, lines FROM stock_reservation_status(?)", "many");
        out.println("status: " + status[0] + ", "
            + fields(status[1], line -> field(line, "sku") + " " + field(line, "state")));
    }

    private void lostLease() throws Exception {
        String claim = "SELECT token FROM idem_claim(?, ?, ?::interval)";
        Long token = Long.valueOf(row(claim, "lost", SCOPE, "1 ms")[0]);
        Thread.sleep(50);
        row(claim, "lost", SCOPE, "1 ms");

        db.setAutoCommit(false);
        try {
            row("SELECT stock_reserve(?, ?, ?)", "hat", 1, "lost");
            row("SELECT idem_complete(?, ?, ?::jsonb, ?)", "lost", token, ANSWER, SCOPE);
        } catch (SQLException e) {
            out.println("lost lease: " + e.getSQLState());
        }
        db.rollback();
        db.setAutoCommit(true);
        String[] level = row("SELECT available, reserved FROM stock_level(?)", "hat");
        out.println("level: " + level[0] + " " + level[1]);
    }

    private String checkout(String key, String lines) throws SQLException {
        try {
            return field(Checkout.checkout(db, key, lines), "outcome");
        } catch (IllegalStateException e) {
            return e.getMessage();
        }
    }

    private void example() throws SQLException {
        out.println("checkout: " + checkout("order-1", "{\"cup\": 2, \"plate\": 2}"));
        out.println("checkout again: " + checkout("order-1", "{\"cup\": 2, \"plate\": 2}"));
        out.println("checkout of another order: " + checkout("order-1", "{\"cup\": 3}"));
        out.println("checkout of too much: " + checkout("order-2", "{\"cup\": 20}"));
    }

    private void executeAll(String file) throws Exception {
        for (String sql : Files.readAllLines(Path.of(file))) {
            try (Statement statement = db.createStatement()) {
                statement.execute(sql);
            }
        }
        out.println("executed");
    }

    public static void main(String[] arguments) throws Exception {
        Jdbc jdbc = new Jdbc(arguments[0]);
        if (arguments.length > 1) {
            jdbc.executeAll(arguments[1]);
            return;
        }
        jdbc.claims();
        jdbc.events();
        jdbc.reservations();
        jdbc.lostLease();
        jdbc.example();
        jdbc.db.close();
    }
}
