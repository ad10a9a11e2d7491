local states = {}
for place, hold in ipairs(KEYS) do
  states[place] = redis.call('HGET', hold, 'state') or ''
end
return states
