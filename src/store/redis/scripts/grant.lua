-- Adds credit to a lot, once. It is the operation `add_grant` of src/ledger/prepaid/transfer.rs.
-- KEYS: the account, its payments, its transfers, the journal.
-- ARGV: the id of the grant, the amount, the lot.
return redis.error_reply('ERR lots')
