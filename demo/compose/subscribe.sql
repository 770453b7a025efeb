/*
 * What compose.yaml adds to the shop: goods to sell, and the receiver, which
 * knows the secret already.
 */

\getenv secret WEBHOOK_SECRET

SELECT stock_receive(sku, 100) FROM unnest('{hat,mug,lamp}'::text[]) AS sku;
SELECT outbox_subscribe('receiver', 'http://receiver:8080/',
	topics => '{order.*}', secret => :'secret') AS secret
\gset
