# ruby.rb
#		Calls the functions by the gem pg as an application does, and prints a
#		line for each step.  t/drivers.pl has the expected lines.
#
# Arguments: the driver's name, and a file with the example of docs/drivers.md; or
# a file with SQL, a statement a line, which is executed instead.

require 'json'
require 'pg'

SCOPE = 'drivers'.freeze
ANSWER = { order: 17, note: 'Grüße, 漢字' }.to_json.freeze
LATER = Time.utc(2040, 1, 2, 3, 4, 5)

$stdout.set_encoding('UTF-8')

def rows(sql, *values)
  $connection.exec_params(sql, values).to_a
end

def array(elements)
  PG::TextEncoder::Array.new.encode(elements)
end

def claims
  claim = lambda do |request|
    rows('SELECT outcome, token, attempt, response FROM idem_claim($1, $2, $3, $4)', 'key', SCOPE, '40 s', request)[0]
  end

  first = claim.call('request')
  puts "claim: #{first['outcome']} #{first['attempt']}"
  puts "claim again: #{claim.call('request')['outcome']}"
  puts "claim for another request: #{claim.call('other')['outcome']}"
  rows('SELECT idem_complete($1, $2, $3, $4)', 'key', first['token'], ANSWER, SCOPE)
  replay = claim.call('request')
  response = JSON.parse(replay['response'])
  puts "replay: #{replay['outcome']} #{response['order']} #{response['note']}"

  many = rows('SELECT key, outcome FROM idem_claim_many($1, $2)', array(%w[key new]), SCOPE)
  puts "claim many: #{many.map { |row| "#{row['key']} #{row['outcome']}" }.join(', ')}"
end

def events
  position = rows('SELECT outbox_enqueue($1, $2, $3, $4, $5, $6) AS position',
                  'order.placed', ANSWER, 'ann', 'order', { 'X-Shop' => 'hats' }.to_json, LATER)[0]['position']
  puts "enqueue: #{position.to_i.positive?}"
end

def reservations
  one = rows('SELECT outcome FROM stock_reserve($1, $2, $3, $4, $5)', 'hat', 2, 'one', '2 h', 'ann')[0]
  puts "reserve: #{one['outcome']}"
  two = rows('SELECT outcome FROM stock_reserve($1, $2, $3)', 'hat', 1, 'two')[0]
  puts "reserve by three parameters: #{two['outcome']}"
  many = rows('SELECT outcome FROM stock_reserve_many($1, $2)', { hat: 1, scarf: 2 }.to_json, 'many')[0]
  puts "reserve many: #{many['outcome']}"

  too_many = rows('SELECT outcome, shortages FROM stock_reserve_many($1, $2)',
                  [{ sku: 'hat', quantity: 100 }, { sku: 'scarf', quantity: 1 }].to_json, 'too many')[0]
  lines = JSON.parse(too_many['shortages']).map { |line| line.values_at('sku', 'wanted', 'available', 'missing').join(' ') }
  puts "shortage: #{too_many['outcome']} #{lines.join(', ')}"

  confirmed = rows('SELECT outcome FROM stock_confirm($1, $2)', 'many', array(%w[hat]))[0]
  puts "confirm: #{confirmed['outcome']}"
  status = rows('SELECT state, lines FROM stock_reservation_status($1)', 'many')[0]
  lines = JSON.parse(status['lines']).map { |line| "#{line['sku']} #{line['state']}" }
  puts "status: #{status['state']}, #{lines.join(', ')}"
end

def lost_lease
  claim = -> { rows('SELECT token FROM idem_claim($1, $2, $3)', 'lost', SCOPE, '1 ms')[0]['token'] }
  token = claim.call
  sleep 0.05
  claim.call
  begin
    $connection.transaction do
      rows('SELECT stock_reserve($1, $2, $3)', 'hat', 1, 'lost')
      rows('SELECT idem_complete($1, $2, $3, $4)', 'lost', token, ANSWER, SCOPE)
    end
  rescue PG::Error => e
    puts "lost lease: #{e.result.error_field(PG::PG_DIAG_SQLSTATE)}"
  end
  level = rows('SELECT available, reserved FROM stock_level($1)', 'hat')[0]
  puts "level: #{level['available']} #{level['reserved']}"
end

def example
  outcome = lambda do |key, lines|
    checkout($connection, key, lines)['outcome']
  rescue RuntimeError => e
    e.message
  end

  puts "checkout: #{outcome.call('order-1', { cup: 2, plate: 2 })}"
  puts "checkout again: #{outcome.call('order-1', { cup: 2, plate: 2 })}"
  puts "checkout of another order: #{outcome.call('order-1', { cup: 3 })}"
  puts "checkout of too much: #{outcome.call('order-2', { cup: 20 })}"
end

$connection = PG.connect
if ARGV[1].end_with?('.sql')
  File.foreach(ARGV[1]) { |statement| rows(statement) }
  puts 'executed'
  exit
end
load ARGV[1]
claims
events
reservations
lost_lease
example
