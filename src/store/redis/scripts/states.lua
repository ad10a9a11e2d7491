-- Reads the states of holds. Changes nothing.
-- KEYS: the holds.
-- Reply: for each hold its state, or '' if it is unknown.
local states = {}
for place, hold in ipairs(KEYS) do
  states[place] = redis.call('HGET', hold, 'state') or ''
end
return states
