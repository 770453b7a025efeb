# Takes an order once for each key, with the gem pg: conn is a PG::Connection, and
# lines has the quantities, such as { cup: 2, plate: 1 }. The steps are explained
# in docs/drivers.md, "The examples".

require 'json'
require 'pg'

def checkout(conn, key, lines)
  claim = conn.exec_params('SELECT outcome, token, response FROM idem_claim($1, $2, $3, $4)',
                           [key, 'checkout', '40 s', lines.to_json])[0]
  return JSON.parse(claim['response']) if claim['outcome'] == 'completed'
  raise claim['outcome'] unless claim['outcome'] == 'claimed'

  conn.transaction do
    outcome = conn.exec_params('SELECT outcome FROM stock_reserve_many($1, $2)', [lines.to_json, key])[0]['outcome']
    if outcome == 'reserved'
      conn.exec_params('SELECT outbox_enqueue($1, $2, $3)', ['order.placed', lines.to_json, key])
    end
    answer = { 'outcome' => outcome }
    conn.exec_params('SELECT idem_complete($1, $2, $3, $4)', [key, claim['token'], answer.to_json, 'checkout'])
    answer
  end
end
