-- What has become of a reservation? \set reservation order-1
SELECT at, change, sku, quantity, actor, note FROM stock_history WHERE reservation = :'reservation' ORDER BY id;
