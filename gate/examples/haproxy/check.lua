-- Asks tokenbucket-gate about a request, and leaves its reply in variables of the transaction.

local function ask_gate(txn, gate)
  local headers = txn.http:req_get_headers()
  -- Whatever the caller sent under these names is replaced.
  headers["x-forwarded-for"] = { [0] = txn.sf:src() }
  headers["x-forwarded-method"] = { [0] = txn.sf:method() }
  headers["x-forwarded-uri"] = { [0] = txn.sf:pathq() }
  headers["x-forwarded-host"] = { [0] = txn.sf:hdr("host") }
  for _, own in ipairs({ "host", "connection", "content-length", "transfer-encoding", "expect", "upgrade" }) do
    headers[own] = nil
  end

  -- How long a request waits for the gate, in milliseconds. Later it passes, as it does without a gate.
  local question = { url = "http://" .. gate .. "/check", headers = headers, timeout = 100 }
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
