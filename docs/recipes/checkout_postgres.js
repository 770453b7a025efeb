// checkout_postgres.js
//
// Takes an order once for each key, with postgres.js: sql is its client, and
// lines has the quantities, such as { cup: 2, plate: 1 }. The steps are explained
// in docs/drivers.md, "The examples".

'use strict';

async function checkout(sql, key, lines) {
  const [claim] = await sql`
    SELECT outcome, token, response FROM idem_claim(${key}, 'checkout', ${'40 s'}, ${JSON.stringify(lines)})`;
  if (claim.outcome === 'completed') return claim.response;
  if (claim.outcome !== 'claimed') throw new Error(claim.outcome);

  return sql.begin(async (sql) => {
    const [{ outcome }] = await sql`SELECT outcome FROM stock_reserve_many(${lines}, ${key})`;
    if (outcome === 'reserved') await sql`SELECT outbox_enqueue('order.placed', ${lines}, ${key})`;
    await sql`SELECT idem_complete(${key}, ${claim.token}, ${{ outcome }}, 'checkout')`;
    return { outcome };
  });
}

module.exports = { checkout };
