-- Where is an item? \set sku hat
SELECT available, reserved, waiting, received, adjusted, confirmed, backorder FROM stock_levels WHERE sku = :'sku';
SELECT reservation, quantity, expires_at FROM stock_holds WHERE sku = :'sku' ORDER BY expires_at LIMIT 100;
