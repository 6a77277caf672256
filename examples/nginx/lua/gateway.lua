-- The gateway: one request, one TB.MTAKE over every rule that applies to it, one answer.
--
-- Settings come from the environment:
--   RULES_FILE        the rules; default rules.json in the folder given with `nginx -p`
--   REDIS_NODES       host:port[,host:port...]; default 127.0.0.1:6379. A name instead of an address needs
--                     nginx's `resolver`. More than one: tried in turn when one does not answer
--   REDIS_PASSWORD    sent with AUTH when set
--   REDIS_TIMEOUT_MS  how long Redis may take to connect or to answer; default 100
--   REDIS_CLUSTER     "yes": keys carry hash tags and redirections are followed
--   JWT_SECRET        verifies HS256 tokens; needed as soon as a rule names a jwt: claim

local answer = require "gateway.answer"
local buckets = require "gateway.buckets"
local callers = require "gateway.caller"
local rules = require "gateway.rules"

local M = {}

local limits

local function setting(name, default)
    local value = os.getenv(name)
    if value == nil or value == "" then
        return default
    end
    return value
end

local function configure()
    local cluster = setting("REDIS_CLUSTER", "no")
    if cluster ~= "yes" and cluster ~= "no" then
        error("REDIS_CLUSTER: must be yes or no", 0)
    end
    local jwt_secret = setting("JWT_SECRET")
    -- RFC 7518, section 3.2: a key shorter than the hash makes the signature easier to guess.
    if jwt_secret and #jwt_secret < 32 then
        error("JWT_SECRET: must be at least 32 bytes", 0)
    end
    buckets.configure {
        nodes = setting("REDIS_NODES", "127.0.0.1:6379"),
        password = setting("REDIS_PASSWORD"),
        timeout_ms = setting("REDIS_TIMEOUT_MS", "100"),
        cluster = cluster == "yes",
    }
    callers.configure { jwt_secret = jwt_secret, cluster = cluster == "yes" }
    limits = rules.load(setting("RULES_FILE", ngx.config.prefix() .. "rules.json"), {
        has_jwt_secret = jwt_secret ~= nil,
        cluster = cluster == "yes",
    })
end

-- Reads the settings and the rules. An error is what nginx refuses to start (or to reload) with.
function M.start()
    local ok, problem = pcall(configure)
    if not ok then
        -- Raised again from here: nginx prints a stack trace after it, and where in the checks it arose is of no
        -- use to who wrote the rules.
        error(problem, 0)
    end
end

-- Every rule that applies to this caller, with the tier, key and cost that it applies with.
local function charges_of(caller)
    local charges = {}
    for _, limit in ipairs(limits) do
        for _, tier in ipairs(limit.tiers) do
            if caller:matches(tier.conditions) then
                local identity, hash_tag = caller:identity(limit.keys)
                charges[#charges + 1] = {
                    limit = limit,
                    tier = tier,
                    identity = identity,
                    hash_tag = hash_tag,
                    key = "tb:" .. limit.name .. ":" .. identity,
                    cost = caller:cost(tier),
                }
                break
            end
        end
    end
    return charges
end

-- Redis did not decide. A limiter that is away must not take the service with it, but nobody should have to
-- guess that it is away: each request is counted, and one line a second logged.
local function let_through(problem)
    local shared = ngx.shared.gateway
    local count = shared:incr("failed_open", 1, 0)
    if shared:add("log_pause", true, 1) then
        ngx.log(ngx.ERR, "rate limits are not enforced: ", problem, "; requests let through so far: ", count)
    end
end

-- The access phase of one request.
function M.limit()
    local charges = charges_of(callers.new())
    if #charges == 0 then
        return
    end
    local decision, problem = buckets.take_all(charges)
    if not decision then
        return let_through(problem)
    end
    if decision.allowed then
        ngx.shared.gateway:incr("allowed", 1, 0)
        return answer.allow(charges)
    end
    ngx.shared.gateway:incr("denied", 1, 0)
    return answer.deny(charges)
end

-- Counters since nginx started, in the text format that Prometheus reads.
function M.metrics()
    ngx.header["Content-Type"] = "text/plain; version=0.0.4"
    ngx.say("# TYPE gateway_requests_total counter")
    for _, result in ipairs { "allowed", "denied", "failed_open" } do
        ngx.say('gateway_requests_total{result="', result, '"} ', ngx.shared.gateway:get(result) or 0)
    end
end

return M
