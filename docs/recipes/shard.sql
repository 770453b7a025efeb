-- Each shard has a part of the accounts, and this function. idem_claim checks
-- and inserts ids, and they expire without a DELETE.

CREATE TABLE accounts (
	name    text PRIMARY KEY,
	balance bigint NOT NULL
);

-- Adds an amount to an account and returns the new balance, once for each id.
-- A repeated call returns the saved answer of the first call, even if the
-- account has changed since.
CREATE FUNCTION deposit(id text, account text, amount bigint)
RETURNS jsonb
LANGUAGE plpgsql
AS $$
DECLARE
	claim  idem_answer;
	answer jsonb;
BEGIN
	claim := idem_claim(id, scope => 'deposit',
		request => jsonb_build_array(account, amount)::text);

	CASE claim.outcome
		WHEN 'claimed' THEN
			NULL;
		WHEN 'completed' THEN
			RETURN claim.response;
		WHEN 'mismatch' THEN
			RAISE EXCEPTION 'id "%" was used for another deposit', id
				USING ERRCODE = '22023';
	END CASE;

	INSERT INTO accounts AS a VALUES (account, amount)
	ON CONFLICT (name) DO UPDATE SET balance = a.balance + excluded.balance
	RETURNING jsonb_build_object('account', name, 'balance', balance) INTO answer;

	PERFORM idem_complete(id, claim.token, answer, scope => 'deposit');
	RETURN answer;
END
$$;
