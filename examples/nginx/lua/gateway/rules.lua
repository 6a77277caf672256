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

local RULE_FIELDS = { name = true, limit_keys = true, match = true, algorithm_config = true }
local CONFIG_FIELDS = {
    tokens_per_second = true, rps = true, burst = true, cost_source = true, fixed_cost = true, default_cost = true,
}

local function shown(value)
    if value == nil or value == cjson.null then
        return "missing"
    end
    return type(value) == "table" and "a list or an object" or cjson.encode(value)
end

-- `where` names the rule and the field in it.
local function check(holds, where, problem)
    if not holds then
        error(where .. ": " .. problem, 0)
    end
end

-- Shows the value that is wrong, too.
local function check_value(holds, where, wanted, value)
    check(holds, where, wanted .. ", is " .. shown(value))
end

local function is_list(value)
    return type(value) == "table" and (next(value) == nil or value[1] ~= nil)
end

local function is_object(value)
    return type(value) == "table" and value[1] == nil
end

local function check_fields(prefix, object, known)
    for field in pairs(object) do
        check(known[field], prefix .. tostring(field), "no such field")
    end
end

-- "header:X-Api-Key" -> { kind = "header", name = "X-Api-Key", text = "header:X-Api-Key" }
local function parse_selector(text)
    if text == "ip:address" or text == "path" then
        return { kind = text:match("^%a+"), text = text }
    end
    local kind, name = (type(text) == "string" and text or ""):match("^(%a+):(.+)$")
    if kind == "query" or kind == "jwt" then
        return { kind = kind, name = name, text = text }
    end
    -- nginx drops header names with anything else in them.
    if kind == "header" and name:find("^[%w-]+$") then
        return { kind = kind, name = name, text = text, variable = "http_" .. name:lower():gsub("-", "_") }
    end
    return nil
end

local function checked_selector(where, text, options)
    local selector = parse_selector(text)
    check_value(selector, where, "must be " .. SELECTORS, text)
    check(selector.kind ~= "jwt" or options.has_jwt_secret, where,
        text .. " needs JWT_SECRET in the environment: claims count only in a verified token")
    return selector
end

local function checked_keys(where, keys, options)
    check_value(is_list(keys) and #keys > 0, where, "must be a list of at least one of " .. SELECTORS, keys)
    local selectors, seen = {}, {}
    for i, text in ipairs(keys) do
        selectors[i] = checked_selector(where, text, options)
        check(not seen[text], where, shown(text) .. " is named twice")
        seen[text] = true
    end
    return selectors
end

local function checked_conditions(where, match, options)
    local conditions = {}
    if match == nil then
        return conditions
    end
    check_value(is_object(match), where, 'must be an object such as {"jwt:plan": "enterprise"}', match)
    for text, wanted in pairs(match) do
        local field = where .. "." .. text
        local condition = { selector = checked_selector(field, text, options), wanted = wanted }
        check_value(type(wanted) == "string" and wanted ~= "", field, "must be a string that is not empty", wanted)
        if condition.selector.kind == "path" and wanted:sub(-1) == "*" then
            condition.prefix = wanted:sub(1, -2)
        end
        conditions[#conditions + 1] = condition
    end
    return conditions
end

local function checked_number(where, value)
    check_value(type(value) == "number" and value > 0, where, "must be a number > 0", value)
    check_value(value < MAX_TOKENS, where, "must be below 10^12", value)
    return value
end

-- As many digits as a double keeps: 0.3 and not 0.29999999999999999, which would round down.
local function decimal(number)
    return ("%.14g"):format(number)
end

-- The field of the costs of requests, or of those that do not say theirs, and where others come from.
local function checked_cost_source(where, source)
    if source == nil or source == "fixed" then
        return "fixed_cost", nil
    end
    local selector = parse_selector(source)
    check_value(selector and (selector.kind == "header" or selector.kind == "query"), where .. "cost_source",
        "must be fixed, header:NAME or query:NAME", source)
    return "default_cost", selector
end

local function checked_config(where, name, config)
    check_value(is_object(config), where, "must be an object", config)
    where = where .. "."
    check_fields(where, config, CONFIG_FIELDS)

    local rate_field = config.rps ~= nil and "rps" or "tokens_per_second"
    check(config.rps == nil or config.tokens_per_second == nil, where .. "rps",
        "is the same as tokens_per_second: give one of the two")
    local tokens_per_second = checked_number(where .. rate_field, config[rate_field])
    check_value(tokens_per_second >= MIN_TOKENS_PER_SECOND, where .. rate_field, "must be at least 10^-9",
        tokens_per_second)

    local burst = checked_number(where .. "burst", config.burst)
    check_value(burst >= tokens_per_second, where .. "burst",
        "must be >= " .. rate_field .. " (" .. decimal(tokens_per_second) .. ")", burst)
    check_value(burst >= MIN_TOKENS, where .. "burst", "must be at least 10^-6", burst)
    check(burst / tokens_per_second <= MAX_REFILL_SECONDS, where .. "burst", "would take more than 100 years to refill")

    local costs = {}
    for _, field in ipairs { "fixed_cost", "default_cost" } do
        costs[field] = checked_number(where .. field, config[field] == nil and 1 or config[field])
    end
    local cost_field, cost_selector = checked_cost_source(where, config.cost_source)
    local cost = costs[cost_field]
    check(cost <= burst, where .. cost_field, "is " .. decimal(cost) .. ", above burst (" .. decimal(burst)
        .. "): no such request would ever pass")

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

-- Checks one rule of the file. Returns what names it, its keys, and itself as a tier.
local function checked_rule(where, rule, options)
    check_value(is_object(rule), where, "must be an object", rule)
    local name = rule.name
    check_value(type(name) == "string" and name:find("^[%w_-]+$") and #name <= 64, where .. ": name",
        "must be 1 to 64 letters, digits, - or _", name)
    where = where .. ' "' .. name .. '": '
    check_fields(where, rule, RULE_FIELDS)
    local keys = checked_keys(where .. "limit_keys", rule.limit_keys, options)
    local tier = checked_config(where .. "algorithm_config", name, rule.algorithm_config)
    tier.conditions = checked_conditions(where .. "match", rule.match, options)
    return where, keys, tier
end

local function read(path, file)
    local handle, problem = io.open(path)
    check(handle, "RULES_FILE", problem)
    local document
    document, problem = cjson.decode(handle:read("*a") or "")
    handle:close()
    check(document ~= nil, file, "not JSON: " .. tostring(problem))
    check(is_object(document) and is_list(document.rules) and #document.rules > 0, file,
        'must be {"rules": [...]} with at least one rule')
    check_fields(file .. ": ", document, { rules = true })
    return document.rules
end

-- The limits in the order of the file. Rules of one name are the tiers of one limit: one bucket per caller,
-- whose size the first tier that matches decides.
function M.load(path, options)
    local file = path:match("[^/]+$")
    local limits, by_name, first_key = {}, {}, nil
    for position, rule in ipairs(read(path, file)) do
        local where, keys, tier = checked_rule(file .. ": rule " .. position, rule, options)
        local named_keys = table.concat(rule.limit_keys, "\n")
        local limit = by_name[rule.name]
        if not limit then
            limit = { name = rule.name, keys = keys, named_keys = named_keys, tiers = {} }
            by_name[rule.name] = limit
            limits[#limits + 1] = limit
        end
        check(limit.named_keys == named_keys, where .. "limit_keys", "must be the same in every tier of a rule")
        local previous = limit.tiers[#limit.tiers]
        check(not previous or #previous.conditions > 0, where .. "match",
            "never reached: an earlier tier of this rule has no match and takes every request")
        limit.tiers[#limit.tiers + 1] = tier
        -- One TB.MTAKE needs one slot, and so one hash tag: the first part of the identity.
        first_key = first_key or keys[1].text
        check(not options.cluster or keys[1].text == first_key, where .. "limit_keys", "must start with " .. first_key
            .. ", as those of the first rule: in a cluster the rules of one caller must share a slot")
    end
    return limits
end

return M
