-- Who is asking: what the rules can know of a request, and the identity that its buckets are kept under.

local crypto = require "gateway.crypto"
local jwt = require "gateway.jwt"

local Caller = {}
Caller.__index = Caller

local M = {}
local config

function M.configure(settings)
    config = settings
end

function M.new()
    return setmetatable({}, Caller)
end

-- The address as one customer has it. Of IPv6 that is the first 64 bits: whoever is given one address is given
-- the whole /64, and would have a fresh bucket for each of its addresses.
local function address()
    local bytes = ngx.var.binary_remote_addr
    if #bytes ~= 16 then
        return ngx.var.remote_addr
    end
    if bytes:sub(1, 12) == ("\0"):rep(10) .. "\255\255" then
        return ("%d.%d.%d.%d"):format(bytes:byte(13, 16))
    end
    local a, b, c, d, e, f, g, h = bytes:byte(1, 8)
    return ("%x:%x:%x:%x::/64"):format(a * 256 + b, c * 256 + d, e * 256 + f, g * 256 + h)
end

-- A claim as text. Numbers that a double does not tell apart are not an identity.
local function claim_text(value)
    if type(value) == "string" then
        return value
    elseif type(value) == "boolean" then
        return tostring(value)
    elseif type(value) == "number" and value % 1 == 0 and math.abs(value) < 2 ^ 53 then
        return ("%.0f"):format(value)
    end
    return nil
end

local read = {}

function read.ip()
    return address()
end

-- Decoded and normalised by nginx, so that /a and //%61 are one path.
function read.path()
    return ngx.var.uri
end

function read.header(_, selector)
    return ngx.var[selector.variable]
end

function read.query(_, selector)
    -- All of them: by default it reads 100, behind which a caller could hide this one.
    local value = ngx.req.get_uri_args(0)[selector.name]
    if type(value) == "table" then
        value = value[1]
    end
    return type(value) == "string" and value or nil
end

function read.jwt(caller, selector)
    if caller.claims == nil then
        caller.claims = jwt.verified_claims(ngx.var.http_authorization, config.jwt_secret, ngx.time()) or false
    end
    return caller.claims and claim_text(caller.claims[selector.name]) or nil
end

-- The value that a selector finds in this request, or nil.
local function value_of(caller, selector)
    local value = read[selector.kind](caller, selector)
    if value == "" then
        return nil
    end
    return value
end

function Caller:matches(conditions)
    for _, condition in ipairs(conditions) do
        local value = value_of(self, condition.selector)
        if not value then
            return false
        end
        if condition.prefix then
            if value:sub(1, #condition.prefix) ~= condition.prefix then
                return false
            end
        elseif value ~= condition.wanted then
            return false
        end
    end
    return true
end

-- Text as a part of a key. What separates parts (,), marks them (=) or is a hash tag to Redis ({}) is escaped, so
-- that no value can pass for another; a long one is hashed, so that callers do not choose how much memory a key takes.
local function key_part(value)
    if #value > 128 then
        return "sha256=" .. crypto.sha256_hex(value)
    end
    return (value:gsub("[^%w._~@:/+-]", function(byte)
        return ("%%%02X"):format(byte:byte())
    end))
end

-- The identity under these keys, and its first part, which is the hash tag in a cluster. Who does not show a key
-- is known by the address instead: leaving a header out must not be a way around the limit, nor should
-- everybody who does so share one bucket.
function Caller:identity(selectors)
    local parts = {}
    for i, selector in ipairs(selectors) do
        local value = value_of(self, selector)
        parts[i] = value and key_part(value) or "ip=" .. key_part(address())
    end
    local hash_tag = parts[1]
    if config.cluster then
        parts[1] = "{" .. hash_tag .. "}"
    end
    return table.concat(parts, ","), hash_tag
end

-- What this request costs, as text. Only what the module reads as a positive number is passed on: its error
-- would let the request through.
function Caller:cost(tier)
    local text = tier.cost_selector and value_of(self, tier.cost_selector)
    if not text or #text > 32 or not ngx.re.find(text, [[\A[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?\z]], "jo") then
        return tier.cost
    end
    local number = tonumber(text)
    if not number or number <= 0 then
        return tier.cost
    end
    -- More than the module counts, and more than any burst: never allowed either way.
    return number > 1e12 and "1e12" or text
end

return M
