-- The way to Redis: one TB.MTAKE for all rules of a request, so that a request that one rule refuses takes
-- nothing from the others.

local bit = require "bit"
local redis = require "nginx.redis" -- `resty.redis` outside Debian

local M = {}

local IDLE_MS = 60000
local POOL_SIZE = 100

local config
local seed = 1 -- which of config.nodes to ask when nothing better is known; per worker
local owner_of_slot = {} -- learnt from redirections; per worker

local function parse_nodes(text)
    local nodes = {}
    for item in (text .. ","):gmatch("([^,]*),") do
        local host, port = item:match("^%s*(.-):(%d+)%s*$")
        if not host or host == "" or tonumber(port) > 65535 then
            error("REDIS_NODES: must be host:port[,host:port...], is " .. text, 0)
        end
        nodes[#nodes + 1] = { host = host, port = tonumber(port) }
    end
    return nodes
end

function M.configure(settings)
    local timeout_ms = tonumber(settings.timeout_ms)
    if not timeout_ms or timeout_ms < 1 or timeout_ms > 60000 or timeout_ms % 1 ~= 0 then
        error("REDIS_TIMEOUT_MS: must be a whole number from 1 to 60000, is " .. settings.timeout_ms, 0)
    end
    config = {
        nodes = parse_nodes(settings.nodes),
        password = settings.password,
        timeout_ms = timeout_ms,
        cluster = settings.cluster,
    }
end

-- One call to one node. nil and a text: no reply. false and a text: Redis replied that error.
local function call(node, asking, arguments)
    local connection = redis:new()
    connection:set_timeout(config.timeout_ms)
    local ok, problem = connection:connect(node.host, node.port)
    if ok and config.password and connection:get_reused_times() == 0 then
        ok, problem = connection:auth(config.password)
    end
    if ok and asking then
        ok, problem = connection:asking()
    end
    local reply = nil
    if ok then
        reply, problem = connection["TB.MTAKE"](connection, unpack(arguments))
    end
    if reply then
        connection:set_keepalive(IDLE_MS, POOL_SIZE)
        return reply
    end
    -- Not back to the pool even after an error reply: READONLY and LOADING come from a server that has changed,
    -- and a new connection may find the right one.
    connection:close()
    return reply, node.host .. ":" .. node.port .. ": " .. tostring(problem), problem
end

-- The slot of a hash tag: CRC16 (XMODEM) modulo 16384, as the cluster specification has it.
local function slot_of(hash_tag)
    local crc = 0
    for i = 1, #hash_tag do
        crc = bit.bxor(crc, bit.lshift(hash_tag:byte(i), 8))
        for _ = 1, 8 do
            local carry = bit.band(crc, 0x8000) ~= 0
            crc = bit.band(bit.lshift(crc, 1), 0xffff)
            if carry then
                crc = bit.bxor(crc, 0x1021)
            end
        end
    end
    return crc % 16384
end

-- "MOVED 3999 127.0.0.1:6381" -> "MOVED", the node. No host means the one that said so.
local function redirection(error_text, from)
    local kind, host, port = (error_text or ""):match("^(%u+) %d+ (.*):(%d+)$")
    if kind ~= "MOVED" and kind ~= "ASK" then
        return nil
    end
    return kind, { host = host ~= "" and host or from.host, port = tonumber(port) }
end

local function call_cluster(hash_tag, arguments)
    local slot = slot_of(hash_tag)
    local node = owner_of_slot[slot] or config.nodes[seed]
    local reply, problem, error_text = call(node, false, arguments)
    local kind, other = redirection(error_text, node)
    if kind then
        if kind == "MOVED" then
            owner_of_slot[slot] = other
        end
        return call(other, kind == "ASK", arguments)
    end
    if not reply then
        owner_of_slot[slot] = nil
    end
    return reply, problem
end

-- Takes every charge's cost from its bucket, or nothing from any. Returns the decision and leaves each bucket's
-- own in its charge, or nil and why there is none.
function M.take_all(charges)
    local arguments = { #charges }
    for _, charge in ipairs(charges) do
        local n = #arguments
        arguments[n + 1] = charge.key
        arguments[n + 2] = charge.tier.burst
        arguments[n + 3] = charge.tier.tokens_per_second
        arguments[n + 4] = charge.cost
    end
    local reply, problem
    if config.cluster then
        reply, problem = call_cluster(charges[1].hash_tag, arguments)
    else
        reply, problem = call(config.nodes[seed], false, arguments)
    end
    if not reply then
        seed = seed % #config.nodes + 1
        return nil, problem
    end
    for i, charge in ipairs(charges) do
        local own = reply[5][i]
        charge.allowed = own[1] == 1
        charge.remaining = math.max(own[2], 0)
        charge.retry_after_ms = own[3]
        charge.reset_after_ms = own[4]
    end
    return { allowed = reply[1] == 1 }
end

return M
