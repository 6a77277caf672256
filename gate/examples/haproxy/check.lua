-- Asks tokenbucket-gate about a request, and leaves its reply in variables of the transaction. `gate` is the address of
-- `listen gate` in haproxy.cfg, which bounds how long a request waits.

-- The headers that the rules use. Not all that a caller sends: with 98 of them HAProxy's own HTTP client crashes
-- (seen in 2.6.12).
local handed_on = { "x-user" }

local function ask_gate(txn, gate)
  local sent = txn.http:req_get_headers()
  local headers = {
    ["x-forwarded-for"] = { [0] = txn.sf:src() },
    ["x-forwarded-method"] = { [0] = txn.sf:method() },
    ["x-forwarded-uri"] = { [0] = txn.sf:pathq() },
    ["x-forwarded-host"] = { [0] = txn.sf:hdr("host") },
  }
  for _, name in ipairs(handed_on) do
    local values = sent[name]
    if values then headers[name] = { [0] = table.concat(values, ",", 0) } end
  end

  local question = { url = "http://" .. gate .. "/check", headers = headers }
  local reply = core.httpclient():get(question)
  if not reply then return end
  txn:set_var("txn.gate_status", reply.status)
  local variables = { ratelimit = "ratelimit", ["ratelimit-policy"] = "policy", ["retry-after"] = "retry_after" }
  for header, variable in pairs(variables) do
    local values = reply.headers and reply.headers[header]
    if values then txn:set_var("txn.gate_" .. variable, values[0] or values[1]) end
  end
end

core.register_action("ask_gate", { "http-req" }, ask_gate, 1)
