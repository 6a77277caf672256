-- What the caller is told. RateLimit and RateLimit-Policy as draft-ietf-httpapi-ratelimit-headers-11 has them,
-- and the three fields of its early versions, which most clients still read.

local cjson = require "cjson.safe"

local M = {}

local function whole_seconds(ms)
    return math.ceil(ms / 1000)
end

-- Says whether the quota of the rules counts: an override of an operator leaves more.
local function has_quota(charge)
    return charge.remaining <= charge.tier.quota
end

-- `charge` is the one that the three old fields, which know only one limit, are about.
local function set_fields(charges, shown, charge, reset_s)
    local policies, limits = {}, {}
    for _, each in ipairs(charges) do
        if has_quota(each) then
            policies[#policies + 1] = each.tier.policy
        end
    end
    for i, each in ipairs(shown) do
        limits[i] = ('"%s";r=%.0f'):format(each.limit.name, each.remaining)
        if each.reset_s then
            limits[i] = limits[i] .. (";t=%.0f"):format(each.reset_s)
        end
    end
    if policies[1] then
        ngx.header["RateLimit-Policy"] = table.concat(policies, ", ")
    end
    ngx.header["RateLimit"] = table.concat(limits, ", ")
    if has_quota(charge) then
        ngx.header["RateLimit-Limit"] = ("%.0f"):format(charge.tier.quota)
    end
    ngx.header["RateLimit-Remaining"] = ("%.0f"):format(charge.remaining)
    ngx.header["RateLimit-Reset"] = ("%.0f"):format(reset_s)
end

-- Every rule with what is left of it; "t" is the time until it is full again.
function M.allow(charges)
    local tightest = charges[1]
    for _, charge in ipairs(charges) do
        charge.reset_s = whole_seconds(charge.reset_after_ms)
        if charge.remaining < tightest.remaining then
            tightest = charge
        end
    end
    set_fields(charges, charges, tightest, tightest.reset_s)
end

-- The wait in whole seconds, up to half as long again: by how much depends on who asks and on nothing else. A
-- crowd that was refused in one second spreads out, and a caller that asks twice is not told two things.
local function jittered_seconds(ms, identity)
    local share = ngx.crc32_long(identity) / 2 ^ 32
    return whole_seconds(ms * (1 + share / 2))
end

-- 429, and the rules that refused; "t" is then the time until the rule would allow this request, so that
-- Retry-After never points to before it, as the draft asks.
function M.deny(charges)
    local refusing, names, longest = {}, {}, nil
    for _, charge in ipairs(charges) do
        if not charge.allowed then
            refusing[#refusing + 1] = charge
            names[#names + 1] = charge.limit.name
            charge.never = charge.retry_after_ms < 0
            charge.reset_s = not charge.never and whole_seconds(charge.retry_after_ms) or nil
            if not longest or not longest.never
                and (charge.never or charge.retry_after_ms > longest.retry_after_ms) then
                longest = charge
            end
        end
    end
    set_fields(charges, refusing, longest, longest.reset_s or whole_seconds(longest.reset_after_ms))
    local reason, detail
    if longest.never then
        -- No wait helps, so none is promised.
        reason, detail = "cost-exceeds-burst", "This request costs more than its limit ever holds."
    else
        local wait_s = jittered_seconds(longest.retry_after_ms, longest.identity)
        reason, detail = "rate-exceeded", ("Try again in %.0f s."):format(wait_s)
        ngx.header["Retry-After"] = ("%.0f"):format(wait_s)
    end
    ngx.header["X-RateLimit-Reason"] = ('%s;rule="%s"'):format(reason, longest.limit.name)
    ngx.header["Cache-Control"] = "no-store"
    ngx.header["Content-Type"] = "application/problem+json"
    -- cjson writes every / as \/, which is right and hard to read.
    local body = cjson.encode({
        type = "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title = "Quota Exceeded",
        status = 429,
        detail = detail,
        ["violated-policies"] = names,
    }):gsub("\\/", "/") .. "\n"
    ngx.header["Content-Length"] = #body
    ngx.status = 429
    ngx.print(body)
    return ngx.exit(ngx.HTTP_OK)
end

return M
