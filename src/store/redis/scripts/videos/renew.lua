local record, revision, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not is_claim(record, revision) then return {'gone'} end
redis.call('HSET', record, 'until', text(now_ms() + lease))
raise(record, 'version')
return told('renewed', record)
