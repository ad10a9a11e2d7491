local record, owner = KEYS[1], ARGV[1]
if is_running(record, owner) then redis.call('DEL', record) end
return {'done'}
