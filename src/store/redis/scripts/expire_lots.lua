-- Lets credit of an account expire whose time has come. The scripts that move money do so first;
-- this one is for accounts on which nothing happens.
-- KEYS: the account, the journal.
-- Reply: 'done'.
-- It comes after lots.lua.
find_lots(KEYS[1])
return {'done'}
