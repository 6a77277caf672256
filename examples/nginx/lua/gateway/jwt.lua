-- Whether a bearer token may be believed. HS256 only: the algorithm is ours to choose and not the token's, so
-- neither "none" nor a public key passed off as a secret gets through.

local cjson = require "cjson.safe"
local crypto = require "gateway.crypto"

local M = {}

local function decode_base64url(text)
    if not text:find("^[%w_-]+$") then
        return nil
    end
    return ngx.decode_base64((text:gsub("[-_]", { ["-"] = "+", ["_"] = "/" })) .. ("="):rep(-#text % 4))
end

local function decode_object(text)
    local object = cjson.decode(decode_base64url(text) or "")
    return type(object) == "table" and object or nil
end

-- The claims of `Authorization: Bearer ...` when its signature and times are right, else nil. A token that is
-- not right counts as none at all: turning it away is for the application, choosing a tier by it is for nobody.
function M.verified_claims(authorization, secret, now_s)
    local head, body, signature = (authorization or ""):match("^[Bb][Ee][Aa][Rr][Ee][Rr] +([^.%s]+)%.([^.%s]+)%.([^.%s]+)$")
    if not head then
        return nil
    end
    local given = decode_base64url(signature)
    local expected = crypto.hmac_sha256(secret, head .. "." .. body)
    if not given or not expected or not crypto.equal(given, expected) then
        return nil
    end
    local header, claims = decode_object(head), decode_object(body)
    -- RFC 7515, section 4.1.11: a token that demands an extension we do not know must not be accepted.
    if not header or header.alg ~= "HS256" or header.crit ~= nil or not claims then
        return nil
    end
    if claims.exp ~= nil and not (type(claims.exp) == "number" and now_s < claims.exp) then
        return nil
    end
    if claims.nbf ~= nil and not (type(claims.nbf) == "number" and now_s >= claims.nbf) then
        return nil
    end
    return claims
end

return M
