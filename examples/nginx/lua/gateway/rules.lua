-- Reads and checks the rules. Runs once, when nginx starts or reloads, so that a request meets only rules that
-- are known to be right: a mistake that Redis would answer with an error would let every request through.

local cjson = require "cjson.safe"

local M = {}

-- What the module accepts; see its documentation of numbers.
local MAX_TOKENS = 1e12
local MIN_TOKENS = 1e-6
local MIN_TOKENS_PER_SECOND = 1e-9
local MAX_REFILL_SECONDS = 100 * 365 * 24 * 3600

local SELECTORS = "ip:address, path, header:NAME, query:NAME or jwt:CLAIM"

-- `where` names the rule, `field` the field in it.
local function fail(where, field, problem)
    error(where .. ": " .. field .. ": " .. problem, 0)
end

local function shown(value)
    if value == nil or value == cjson.null then
        return "missing"
    end
    if type(value) == "table" then
        return "a list or an object"
    end
    return cjson.encode(value)
end

local function is_list(value)
    return type(value) == "table" and (next(value) == nil or value[1] ~= nil)
end

local function is_object(value)
    return type(value) == "table" and value[1] == nil
end

local function refuse_unknown_fields(where, prefix, object, known)
    for field in pairs(object) do
        if not known[field] then
            fail(where, prefix .. tostring(field), "no such field")
        end
    end
end

-- "header:X-Api-Key" -> { kind = "header", name = "X-Api-Key", text = "header:X-Api-Key" }
local function parse_selector(text)
    if text == "ip:address" or text == "path" then
        return { kind = text:match("^%a+"), text = text }
    end
    if type(text) ~= "string" then
        return nil
    end
    local kind, name = text:match("^(%a+):(.+)$")
    if kind == "query" or kind == "jwt" then
        return { kind = kind, name = name, text = text }
    end
    -- nginx drops header names with anything else in them.
    if kind == "header" and name:find("^[%w-]+$") then
        return { kind = kind, name = name, text = text, variable = "http_" .. name:lower():gsub("-", "_") }
    end
    return nil
end

local function checked_selector(where, field, text, options)
    local selector = parse_selector(text)
    if not selector then
        fail(where, field, "must be " .. SELECTORS .. ", is " .. shown(text))
    end
    if selector.kind == "jwt" and not options.has_jwt_secret then
        fail(where, field, text .. " needs JWT_SECRET in the environment: claims count only in a verified token")
    end
    return selector
end

local function checked_keys(where, keys, options)
    if not is_list(keys) or #keys == 0 then
        fail(where, "limit_keys", "must be a list of at least one of " .. SELECTORS .. ", is " .. shown(keys))
    end
    local selectors, seen = {}, {}
    for i, text in ipairs(keys) do
        selectors[i] = checked_selector(where, "limit_keys", text, options)
        if seen[text] then
            fail(where, "limit_keys", shown(text) .. " is named twice")
        end
        seen[text] = true
    end
    return selectors
end

local function checked_conditions(where, match, options)
    if match == nil then
        return {}
    end
    if not is_object(match) then
        fail(where, "match", 'must be an object such as {"jwt:plan": "enterprise"}, is ' .. shown(match))
    end
    local conditions = {}
    for text, wanted in pairs(match) do
        local field = "match." .. text
        local selector = checked_selector(where, field, text, options)
        if type(wanted) ~= "string" or wanted == "" then
            fail(where, field, "must be a string that is not empty, is " .. shown(wanted))
        end
        local condition = { selector = selector, wanted = wanted }
        if selector.kind == "path" and wanted:sub(-1) == "*" then
            condition.prefix = wanted:sub(1, -2)
        end
        conditions[#conditions + 1] = condition
    end
    return conditions
end

local function checked_number(where, config, name, default)
    local value = config[name]
    if value == nil then
        value = default
    end
    local field = "algorithm_config." .. name
    if type(value) ~= "number" or not (value > 0) then
        fail(where, field, "must be a number > 0, is " .. shown(value))
    end
    if value >= MAX_TOKENS then
        fail(where, field, "must be below 10^12, is " .. shown(value))
    end
    return value
end

-- As many digits as a double keeps: 0.3 and not 0.29999999999999999, which would round down.
local function decimal(number)
    return ("%.14g"):format(number)
end

local CONFIG_FIELDS = {
    tokens_per_second = true, rps = true, burst = true, cost_source = true, fixed_cost = true, default_cost = true,
}

local function checked_config(where, name, config)
    if not is_object(config) then
        fail(where, "algorithm_config", "must be an object, is " .. shown(config))
    end
    refuse_unknown_fields(where, "algorithm_config.", config, CONFIG_FIELDS)

    local rate_field = "tokens_per_second"
    if config.rps ~= nil then
        if config.tokens_per_second ~= nil then
            fail(where, "algorithm_config.rps", "is the same as tokens_per_second: give one of the two")
        end
        rate_field = "rps"
    end
    local tokens_per_second = checked_number(where, config, rate_field)
    if tokens_per_second < MIN_TOKENS_PER_SECOND then
        fail(where, "algorithm_config." .. rate_field, "must be at least 10^-9, is " .. shown(tokens_per_second))
    end

    local burst = checked_number(where, config, "burst")
    if burst < tokens_per_second then
        fail(where, "algorithm_config.burst", "must be >= " .. rate_field .. " (" .. decimal(tokens_per_second)
            .. "), is " .. decimal(burst))
    end
    if burst < MIN_TOKENS then
        fail(where, "algorithm_config.burst", "must be at least 10^-6, is " .. shown(burst))
    end
    if burst / tokens_per_second > MAX_REFILL_SECONDS then
        fail(where, "algorithm_config.burst", "would take more than 100 years to refill")
    end

    local fixed_cost = checked_number(where, config, "fixed_cost", 1)
    local default_cost = checked_number(where, config, "default_cost", 1)
    local cost_source = config.cost_source
    local cost_selector
    if cost_source ~= nil and cost_source ~= "fixed" then
        cost_selector = parse_selector(cost_source)
        if not cost_selector or (cost_selector.kind ~= "header" and cost_selector.kind ~= "query") then
            fail(where, "algorithm_config.cost_source",
                "must be fixed, header:NAME or query:NAME, is " .. shown(cost_source))
        end
    end
    local cost_field = cost_selector and "default_cost" or "fixed_cost"
    local cost = cost_selector and default_cost or fixed_cost
    if cost > burst then
        fail(where, "algorithm_config." .. cost_field, "is " .. decimal(cost) .. ", above burst ("
            .. decimal(burst) .. "): no such request would ever pass")
    end

    return {
        tokens_per_second = decimal(tokens_per_second),
        burst = decimal(burst),
        cost = decimal(cost),
        cost_selector = cost_selector,
        quota = math.floor(burst),
        -- The window in which the quota flows in, as the RateLimit-Policy field tells it; whole seconds, never 0.
        policy = ('"%s";q=%.0f;w=%.0f'):format(name, math.floor(burst), math.ceil(burst / tokens_per_second)),
    }
end

local RULE_FIELDS = { name = true, limit_keys = true, match = true, algorithm_config = true }

-- Checks one rule as it stands in the file and returns it as a tier.
local function checked_rule(file, position, rule, options)
    local where = file .. ": rule " .. position
    if not is_object(rule) then
        fail(file, "rule " .. position, "must be an object, is " .. shown(rule))
    end
    local name = rule.name
    if type(name) ~= "string" or not name:find("^[%w_-]+$") or #name > 64 then
        fail(where, "name", "must be 1 to 64 letters, digits, - or _, is " .. shown(name))
    end
    where = where .. ' "' .. name .. '"'
    refuse_unknown_fields(where, "", rule, RULE_FIELDS)
    local keys = checked_keys(where, rule.limit_keys, options)
    local tier = checked_config(where, name, rule.algorithm_config)
    tier.conditions = checked_conditions(where, rule.match, options)
    return where, name, keys, tier
end

local function same_keys(a, b)
    if #a ~= #b then
        return false
    end
    for i = 1, #a do
        if a[i].text ~= b[i].text then
            return false
        end
    end
    return true
end

-- The limits in the order of the file. Rules of one name are the tiers of one limit: one bucket per caller,
-- whose size the first tier that matches decides.
function M.load(path, options)
    local file = path:match("[^/]+$")
    local handle, problem = io.open(path)
    if not handle then
        error("RULES_FILE: " .. problem, 0)
    end
    local text = handle:read("*a")
    handle:close()
    local document
    document, problem = cjson.decode(text or "")
    if document == nil then
        error(file .. ": not JSON: " .. tostring(problem), 0)
    end
    if not is_object(document) or not is_list(document.rules) or #document.rules == 0 then
        error(file .. ': must be {"rules": [...]} with at least one rule', 0)
    end
    refuse_unknown_fields(file, "", document, { rules = true })

    local limits, by_name = {}, {}
    for position, rule in ipairs(document.rules) do
        local where, name, keys, tier = checked_rule(file, position, rule, options)
        local limit = by_name[name]
        if not limit then
            limit = { name = name, keys = keys, tiers = {} }
            by_name[name] = limit
            limits[#limits + 1] = limit
        end
        if not same_keys(limit.keys, keys) then
            fail(where, "limit_keys", "must be the same in every tier of a rule")
        end
        local previous = limit.tiers[#limit.tiers]
        if previous and #previous.conditions == 0 then
            fail(where, "match", "never reached: an earlier tier of this rule has no match and takes every request")
        end
        limit.tiers[#limit.tiers + 1] = tier
        -- One TB.MTAKE needs one slot, and so one hash tag: the first part of the identity.
        if options.cluster and limits[1].keys[1].text ~= keys[1].text then
            fail(where, "limit_keys", "must start with " .. limits[1].keys[1].text .. ", as those of the first rule: "
                .. "in a cluster the rules of one caller must share a slot")
        end
    end
    return limits
end

return M
