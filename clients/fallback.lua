-- The decisions of the module for servers that load no modules: TAKE, PEEK, TAKEUPTO, RESERVE, CHARGE, GIVE and MTAKE.
--
--   EVALSHA sha 1 key TAKE capacity rate [cost]                         as TB.TAKE key capacity rate [cost]
--   EVALSHA sha 2 one other MTAKE capacity rate cost capacity rate cost as TB.MTAKE 2 one … other …
--
-- Behind the name of the operation come the command's arguments without its keys. The reply is the command's. Clients
-- append `:script` to their keys: no key is a bucket of the module at one time and one of the script at another.
--
-- A bucket is the string `tb1 <level> <refilled at> <expires at>`: micro-tokens, Unix microseconds, Unix milliseconds. A
-- key that is not there is a full bucket. The fraction of a micro-token that a refill ends on is dated back, as in
-- core/src/bucket: the refill time is as many whole microseconds ago as that fraction took to flow.
--
-- Numbers are doubles: whole numbers are exact up to 2^53. So a bucket holds at most 10^9 tokens (10^15 micro-tokens),
-- times go up to the year 2255, and products that may be larger are never written out (`mul_div`). Nothing is rounded
-- that the module does not round.

-- What is replicated are the writes, not the script. From Redis 7.0 on that is always so; before, it has to be said.
if redis.replicate_commands then redis.replicate_commands() end

-- A server runs all of a script at each call, so what is rarely needed is defined where it is needed.

local floor, ceil, fmod, min, max = math.floor, math.ceil, math.fmod, math.min, math.max
local format = string.format

local MICRO = 1000000 -- Micro-tokens in a token, and microseconds in a second.
local MOST_MICRO = 1e9 * MICRO
local EXACT = 2 ^ 53
local INFINITE = 1 / 0
local NEVER_MS = -1

-- Ends the call with an error line. Nothing was written before.
local function refuse(line)
  error({ refusal = line }, 0)
end

-- A reply of the server, whose error is the error of the call. Redis 6 puts the line of the script in front of some.
local function expect(reply)
  if type(reply) == 'table' and reply.err then
    refuse(reply.err:match('%u%u+ [^\r\n]*') or reply.err)
  end
  return reply
end

local function server(...)
  return expect(redis.pcall(...))
end

-- Whole numbers

-- How often `b` is in `a`, and the rest. Dividing first would round, and might come to one too many.
local function divide(a, b)
  local rest = fmod(a, b)
  return (a - rest) / b, rest
end

-- How often `c`, at most 2^51, is in `a * b`, and the rest. From 2^53 on it is infinite.
local function mul_div(a, b, c)
  if a * b < EXACT then return divide(a * b, c) end
  local wholes, below = divide(a, c)
  -- Long division of `below * b`, in the largest base in which a rest times the base stays exact.
  local base, place = 2, 1
  while base * c * 4 <= EXACT do base = base * 2 end
  while place * base <= b do place = place * base end
  local digits, quotient, rest = b, 0, 0
  while place >= 1 do
    local digit, part
    digit, digits = divide(digits, place)
    part, rest = divide(rest * base + below * digit, c)
    quotient, place = quotient * base + part, place / base
  end
  quotient = quotient + wholes * b
  if quotient >= EXACT then return INFINITE, 0 end
  return quotient, rest
end

-- A whole number for the server, in plain digits.
local function shown(number)
  return format('%.0f', number)
end

-- Arguments: what nearly every client sends is read here, and all else by `any_numbers`.

-- A rate: `gain` micro-tokens in every `time` microseconds, which is also tokens in seconds.
local function within_bounds(gain, time)
  if gain > time * 1e12 or time > gain * 3155760000 then
    refuse('ERR rate must be at least 1 token in 100 years (with @: 0.000001 at each boundary) and at most 1e12 tokens per second')
  end
  return gain, time
end

-- A unit of time: as many of it as the first number are the second number of seconds long.
local function unit(name)
  if name == 's' then return 1, 1 end
  if name == 'm' then return 1, 60 end
  if name == 'h' then return 1, 3600 end
  if name == 'd' then return 1, 86400 end
  if name == 'ms' then return 1000, 1 end
end

-- How to read any amount, any whole number and any rate.
local function any_numbers()
  local MOST_BYTES = 128 -- Of a number.
  local MOST_DIVISOR = 2 ^ 51 -- Of mul_div.
  local MALFORMED = 'ERR rate must be tokens per second above 0, like 5 or 0.25, count/period, like 100/m or 10/15s (ms, s, m, h, d), or count@period, like 1000@d or 1000@mo+14d+09:00 (also w, 3mo, y)'
  local CALENDAR_NEEDS_MODULE = 'ERR rate at boundaries of the calendar, like 1000@d, needs the module'

  -- The digits of a decimal without leading zeros, and how many of them stand before the point. Nil if it is none.
  local function decimal(text)
    if #text > MOST_BYTES then return nil end
    local mantissa, power = text:match('^%+?([%d.]+)[eE]([+-]?%d+)$')
    if not mantissa then mantissa, power = text:match('^%+?([%d.]+)$') or '', '0' end
    local before, behind = mantissa:match('^(%d*)%.?(%d*)$')
    if not before or before .. behind == '' then return nil end
    local digits = (before .. behind):gsub('^0+', '')
    return digits, #digits - #behind + tonumber(power)
  end

  -- Whole tokens, the micro-tokens beside them, and whether there is more. What is within 10^-12 tokens of a whole
  -- micro-token is that micro-token: so floats are what they were meant to be.
  local function parts(digits, point)
    if digits == '' or point < -MOST_BYTES then return 0, 0, false end
    if point > 20 then return INFINITE, 0, false end
    digits, point = ('0'):rep(-point) .. digits, max(point, 0)
    digits = digits .. ('0'):rep(point + 12 - #digits)
    local tokens = tonumber(digits:sub(1, point)) or 0
    local micro = tonumber(digits:sub(point + 1, point + 6))
    local millionths = tonumber(digits:sub(point + 7, point + 12))
    if millionths == 999999 then
      local above, below = divide(micro + 1, MICRO)
      return tokens + above, below, false
    end
    return tokens, micro, millionths > 1 or (millionths == 1 and digits:find('[1-9]', point + 13) ~= nil)
  end

  -- An amount in micro-tokens. What lies between two goes down, or up where the caller pays it.
  local function amount(name, text, rounds_up)
    local digits, point = decimal(text)
    local tokens, micro, is_more = INFINITE, 0, false
    if digits then tokens, micro, is_more = parts(digits, point) end
    if is_more and rounds_up then micro = micro + 1 end
    if tokens > 1e12 or (tokens == 1e12 and micro > 0) then
      refuse('ERR ' .. name .. ' must be a decimal number of tokens from 0 to 1e12')
    end
    if tokens * MICRO + micro > MOST_MICRO then
      refuse('ERR ' .. name .. ' must be at most 1e9 tokens without the module')
    end
    return tokens * MICRO + micro
  end

  -- A whole number in any spelling of a decimal.
  local function whole(text, least, most, line)
    local digits, point = decimal(text)
    local number, micro, is_more = INFINITE, 0, false
    if digits then number, micro, is_more = parts(digits, point) end
    if micro > 0 or is_more or number < least or number > most then refuse(line) end
    return number
  end

  local function greatest_common_divisor(a, b)
    while b > 0 do a, b = b, fmod(a, b) end
    return a
  end

  -- A number as a whole one of at most 12 digits and a power of ten, and whether it had more digits.
  local function twelve_digits(digits, point)
    digits = digits:gsub('0+$', '')
    local kept = min(#digits, 12)
    return tonumber(digits:sub(1, kept)), point - kept, #digits > kept
  end

  -- The count of a rate. Where it is as near to a whole micro-token as clients' floats are, it is that.
  local function count_of(digits, point)
    local tokens, micro, is_more = parts(digits, point)
    if not is_more and tokens < 1e9 and tokens + micro > 0 then
      digits = shown(tokens * MICRO + micro)
      point = #digits - 6
    end
    return twelve_digits(digits, point)
  end

  -- `a * factor` and `b`, without what the factor and `b` have in common.
  local function multiply(a, b, factor)
    local common = greatest_common_divisor(factor, b)
    return a * (factor / common), b / common
  end

  -- The ratio of `count` in `period` units, times a power of ten. As many of the unit as `per_second` are `seconds` long.
  local function ratio(count, period, exponent, per_second, seconds)
    local common = greatest_common_divisor(count, period)
    local gain, time = multiply(count / common, period / common, per_second)
    time, gain = multiply(time, gain, seconds)
    for _ = 1, min(math.abs(exponent), 40) do
      if exponent > 0 then
        gain, time = multiply(gain, time, 10)
      else
        time, gain = multiply(time, gain, 10)
      end
    end
    within_bounds(gain, time)
    if gain * 1000 > MOST_DIVISOR or time > MOST_DIVISOR then refuse('ERR rate must be a ratio of smaller numbers without the module') end
    return gain, time
  end

  -- Any rate: `0.25`, `1e-3`, `0.7/1.1m`.
  local function any_rate(text, may_be_pool)
    local count, sign, behind = text:match('^([^/@]*)([/@]?)(.*)$')
    local digits, point = decimal(count)
    if digits == '' and sign == '' then refuse(may_be_pool and 'ERR rate 0 is a pool that nothing but ending holds refills, and holds need the module'
          or 'ERR rate 0 is a pool that nothing but ending holds refills: only TB.HOLD, TB.SETTLE, TB.MHOLD, TB.MSETTLE, TB.PEEK and TB.GIVE accept it') end
    if not digits or digits == '' then refuse(MALFORMED) end
    if sign == '@' then refuse(behind:find('^%d*%l') and CALENDAR_NEEDS_MODULE or MALFORMED) end
    local per_second, seconds, period, period_exponent = 1, 1, 1, 0
    if sign == '/' then
      local number, name = behind:match('^(.-)([a-df-z]*)$')
      per_second, seconds = unit(name)
      if not per_second then refuse(MALFORMED) end
      local period_digits, period_point = decimal(number == '' and '1' or number)
      if not period_digits or period_digits == '' then refuse(MALFORMED) end
      local is_more
      period, period_exponent, is_more = twelve_digits(period_digits, period_point)
      -- Up: a rate is never above what was asked.
      if is_more then period = period + 1 end
    end
    local mantissa, exponent = count_of(digits, point)
    return ratio(mantissa, period, exponent - period_exponent, per_second, seconds)
  end

  return amount, whole, any_rate
end

-- An amount in micro-tokens. What lies between two goes down, or up where the caller pays it.
local function amount(name, text, rounds_up)
  if #text < 10 and text:find('^%d+$') then return tonumber(text) * MICRO end
  local any_amount = any_numbers()
  return any_amount(name, text, rounds_up)
end

local function whole(text, least, most, line)
  local number = #text < 10 and text:find('^%d+$') and tonumber(text)
  if number and number >= least and number <= most then return number end
  local _, any_whole = any_numbers()
  return any_whole(text, least, most, line)
end

-- `5`, `100/m`, `10/15s`.
local function rate(text, may_be_pool)
  local count, slash, number, name = text:match('^(%d+)(/?)(%d*)(%l*)$')
  if count and #count < 10 and #number < 10 and tonumber(count) > 0 then
    if slash .. number .. name == '' then return within_bounds(tonumber(count), 1) end
    local per_second, seconds = unit(name)
    local period = tonumber(number) or 1
    if slash == '/' and per_second and period > 0 then
      return within_bounds(tonumber(count) * per_second, period * seconds)
    end
  end
  local _, _, any_rate = any_numbers()
  return any_rate(text, may_be_pool)
end

local function limit_of(capacity_text, rate_text, may_be_pool)
  local capacity = amount('capacity', capacity_text, false)
  local gain, time = rate(rate_text, may_be_pool)
  local refill_us, rest = mul_div(capacity, time, gain)
  -- 100 years.
  if refill_us > 3155760000 * MICRO or (refill_us == 3155760000 * MICRO and rest > 0) then
    refuse('ERR refilling capacity from empty at this rate would take more than 100 years')
  end
  return { capacity = capacity, gain = gain, time = time }
end

-- Buckets

local function now_us()
  local time = server('TIME')
  return tonumber(time[1]) * MICRO + tonumber(time[2])
end

-- What is stored under a key; nil for a full bucket.
local function bucket_at(key)
  local text = server('GET', key)
  if not text then return nil end
  local level, at, expires_ms = text:match('^tb1 (%-?%d+) (%d+) (%d+)$')
  if not level then refuse('WRONGTYPE Operation against a key holding the wrong kind of value') end
  return { level = tonumber(level), at = tonumber(at), expires_ms = tonumber(expires_ms) }
end

-- In what time so much flows in: whole milliseconds, and the microseconds beside them, rounded up.
local function lasts(limit, micro)
  if micro <= 0 then return 0, 0 end
  local ms, rest = mul_div(micro, limit.time, limit.gain * 1000)
  return ms, ceil(rest / limit.gain)
end

-- Milliseconds from now until what was `level` at `at` reaches `wanted`, rounded up.
local function wait_ms(view, level, at, wanted)
  local ms, us = lasts(view.limit, wanted - level)
  local gone_ms, gone_us = divide(view.now - at, 1000)
  return min(max(ms - gone_ms + ceil((us - gone_us) / 1000), 0), EXACT)
end

-- A bucket as one call sees it: `level` at `at` is what it holds now, and `old_level` at `old_at` what the next call
-- finds if this one writes nothing. A clock that stepped back adds nothing.
local function look(key, limit, now)
  local stored = bucket_at(key)
  local found = stored or { level = limit.capacity, at = now }
  local old_level, old_at = min(found.level, limit.capacity), min(found.at, now)
  local level, at = limit.capacity, now
  local flow, rest = mul_div(now - old_at, limit.gain, limit.time)
  if old_level + flow < limit.capacity then
    level, at = old_level + flow, now - divide(rest, limit.gain)
  end
  return {
    key = key, limit = limit, now = now, stored = stored,
    level = level, at = at, old_level = old_level, old_at = old_at,
  }
end

-- How long until a take of so much is allowed.
local function wait_for(view, micro)
  if micro > view.limit.capacity then return NEVER_MS end
  return wait_ms(view, view.old_level, view.old_at, micro)
end

-- Outcomes: a decision, and what is to be stored: nothing, or `level` at `at`, or no key, as the bucket is full.

local function decision(allowed, level, retry_after_ms, reset_after_ms)
  return { allowed, floor(level / MICRO), retry_after_ms, reset_after_ms }
end

local function untouched(view, allowed, retry_after_ms)
  local reset_after_ms = wait_for(view, view.limit.capacity)
  return { decision = decision(allowed, view.level, retry_after_ms, reset_after_ms) }
end

-- A denial writes only where the clock stepped back: the bucket would stand still until it has caught up.
local function denied(view, retry_after_ms)
  local outcome = untouched(view, 0, retry_after_ms)
  if view.stored and view.now < view.stored.at then
    outcome.level, outcome.at = view.stored.level, view.now
  end
  return outcome
end

local function moved(view, allowed, micro, retry_after_ms)
  local level = view.level - micro
  local reset_after_ms = wait_ms(view, level, view.at, view.limit.capacity)
  return { decision = decision(allowed, level, retry_after_ms, reset_after_ms), level = level, at = view.at }
end

local function is_too_deep(level)
  return level < -MOST_MICRO
end

local function set_until(key, text, expires_ms)
  local reply = redis.pcall('SET', key, text, 'PXAT', expires_ms)
  if not (reply.err and reply.err:find('syntax error', 1, true)) then return expect(reply) end
  -- Redis 6.0 knows no such expiry.
  server('SET', key, text)
  server('PEXPIREAT', key, expires_ms)
end

-- The key expires when the bucket is full, never before, and an expiry is only ever lengthened: what is full under one
-- limit may not be under another.
local function store(view, outcome)
  if outcome.is_full then server('DEL', view.key) end
  if not outcome.level then return end
  local ms, us = lasts(view.limit, view.limit.capacity - outcome.level)
  local at_ms, at_us = divide(outcome.at, 1000)
  local full_at_ms = min(at_ms + ms + ceil((at_us + us) / 1000), EXACT)
  local expires_ms = shown(max(full_at_ms, view.stored and view.stored.expires_ms or 0))
  local text = format('tb1 %.0f %.0f %s', outcome.level, outcome.at, expires_ms)
  set_until(view.key, text, expires_ms)
end

-- Operations: how many arguments stand behind the limit, at the fewest and at the most, and what reads them and returns
-- how to decide on a bucket. And whether it only looks, and whether the module accepts pools there.
local function operation(name)
  if name == 'TAKE' or name == 'PEEK' then
    return 0, 1, function(cost_text)
      local cost = cost_text and amount('cost', cost_text, true) or MICRO
      return function(view)
        if cost > view.level then return denied(view, wait_for(view, cost)) end
        if cost == 0 then return untouched(view, 1, 0) end
        return moved(view, 1, cost, 0)
      end
    end, name == 'PEEK', name == 'PEEK'
  elseif name == 'TAKEUPTO' then
    return 1, 1, function(max_text)
      local most = whole(max_text, 1, 1e12, 'ERR max must be a whole number of tokens from 1 to 1e12')
      return function(view)
        local granted = min(floor(view.level / MICRO), most)
        if granted < 1 then return denied(view, wait_for(view, MICRO)) end
        return moved(view, granted, granted * MICRO, 0)
      end
    end
  elseif name == 'RESERVE' then
    return 2, 2, function(cost_text, max_wait_text)
      local cost = amount('cost', cost_text, true)
      local line = 'ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000'
      local max_wait_ms = whole(max_wait_text, 0, 3155760000000, line)
      return function(view)
        local wait = wait_for(view, cost)
        if wait == NEVER_MS or wait > max_wait_ms then return denied(view, wait) end
        if cost == 0 then return untouched(view, 1, wait) end
        if is_too_deep(view.level - cost) then return denied(view, wait) end
        return moved(view, 1, cost, wait)
      end
    end
  elseif name == 'CHARGE' then
    return 1, 1, function(amount_text)
      local micro = amount('amount', amount_text, true)
      return function(view)
        if micro == 0 then return untouched(view, 1, wait_for(view, 0)) end
        local level = view.level - micro
        if is_too_deep(level) then
          refuse('ERR the bucket would be more than 1e9 tokens in debt, the deepest without the module')
        end
        return moved(view, 1, micro, wait_ms(view, level, view.at, 0))
      end
    end
  elseif name == 'GIVE' then
    return 1, 1, function(amount_text)
      local micro = amount('amount', amount_text, false)
      return function(view)
        local room = view.limit.capacity - view.level
        if micro == 0 or room == 0 then return untouched(view, 1, 0) end
        if micro < room then return moved(view, 1, -micro, 0) end
        return { decision = decision(1, view.limit.capacity, 0, 0), is_full = true }
      end
    end, false, true
  end
  refuse('ERR without the module there are TAKE, PEEK, TAKEUPTO, RESERVE, CHARGE, GIVE and MTAKE; holds and all else need it')
end

local function decide_on_one(name)
  local fewest, most, decider, only_looks, may_be_pool = operation(name)
  local arguments = #ARGV - 3
  if #KEYS ~= 1 or arguments < fewest or arguments > most then
    refuse("ERR wrong number of arguments for 'tb." .. name:lower() .. "' command")
  end
  local limit = limit_of(ARGV[2], ARGV[3], may_be_pool)
  local decide = decider(ARGV[4], ARGV[5])
  local view = look(KEYS[1], limit, now_us())
  local outcome = decide(view)
  if not only_looks then store(view, outcome) end
  return outcome.decision
end

-- MTAKE: several buckets, all or nothing.
local function decide_on_several()
  local _, _, take = operation('TAKE')

  local function requests_of_several()
    if #KEYS < 1 or #KEYS > 1024 then refuse('ERR numkeys must be a whole number from 1 to 1024') end
    if #ARGV - 1 ~= #KEYS * 3 then
      refuse("ERR numkeys must match the number of 'key capacity rate cost' groups")
    end
    local requests, has = {}, {}
    for place, key in ipairs(KEYS) do
      local capacity, rate_text, cost = ARGV[place * 3 - 1], ARGV[place * 3], ARGV[place * 3 + 1]
      requests[place] = { key = key, limit = limit_of(capacity, rate_text), decide = take(cost) }
    end
    for _, key in ipairs(KEYS) do
      if has[key] then refuse('ERR key must not be given twice in one call') end
      has[key] = true
    end
    return requests
  end

  -- A bucket that would have allowed what another denies is told as it is, and it too counts on from a clock that
  -- stepped back.
  local function withheld(view)
    local outcome = denied(view, 0)
    outcome.decision[1] = 1
    return outcome
  end

  -- The tightest of each field binds the caller. A wait of -1 never ends.
  local function tighter(one, other)
    local is_never = min(one[3], other[3]) < 0
    return {
      min(one[1], other[1]),
      min(one[2], other[2]),
      is_never and NEVER_MS or max(one[3], other[3]),
      max(one[4], other[4]),
    }
  end

  local requests, now = requests_of_several(), now_us()
  local views, outcomes, all_allow = {}, {}, true
  for place, request in ipairs(requests) do
    views[place] = look(request.key, request.limit, now)
    outcomes[place] = request.decide(views[place])
    all_allow = all_allow and outcomes[place].decision[1] == 1
  end
  local own, binding = {}, nil
  for place, view in ipairs(views) do
    if not all_allow and outcomes[place].decision[1] == 1 then outcomes[place] = withheld(view) end
    own[place] = outcomes[place].decision
    binding = tighter(binding or own[place], own[place])
  end
  for place, view in ipairs(views) do store(view, outcomes[place]) end
  binding[5] = own
  return binding
end

local function run()
  local name = ARGV[1] or ''
  if name == 'MTAKE' then return decide_on_several() end
  return decide_on_one(name)
end

local is_decided, reply = pcall(run)
if is_decided then return reply end
if type(reply) == 'table' and reply.refusal then return redis.error_reply(reply.refusal) end
error(reply, 0)
